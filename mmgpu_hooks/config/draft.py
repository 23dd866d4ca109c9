"""Edits settings in the text of a config. Pure: ``str -> str``.

One step per setting: the first spelling that matches makes the edit, so all other
bytes stay. Settings that need a statement of their own get one together.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from mmgpu_hooks.config.edit import (
    Edit,
    Form,
    Statement,
    append,
    follow,
    render_statement,
    resting,
)
from mmgpu_hooks.config.locate import KeyPath, locate_setting
from mmgpu_hooks.config.outcome import Setting
from mmgpu_hooks.config.spellings import SPELLINGS, absent, shared
from mmgpu_hooks.config.syntax import Module


@dataclass
class Draft:
    """An edit in the making, and in the end its result."""

    text: str
    notes: list[str] = field(default_factory=list)
    variables: dict[str, Setting] = field(default_factory=dict)
    """Those that were changed in place of a setting."""


def edit_settings(
    text: str,
    settings: Mapping[str, Setting],
    *,
    apart: bool = False,
    fresh: AbstractSet[str] = frozenset(),
    popped: AbstractSet[str] = frozenset(),
) -> Draft:
    """Changes settings in a config.

    Args:
        text: Source of the config.
        settings: Values by dotted key, such as ``train_dataloader.num_workers``.
        apart: Override each setting at the end of the file, where no other
            statement can see it, whatever there is to edit.
        fresh: Top-level names that neither the file nor its bases have yet.
        popped: Keys to take out of what is inherited.

    Raises:
        RefusedError: If a setting is spelled in a way that cannot be edited safely.
    """
    original = Module(text)
    roots: dict[str, dict[KeyPath, Setting]] = {}
    for dotted, value in settings.items():
        path = tuple(dotted.split('.'))
        roots.setdefault(path[0], {})[path] = value
    together = {} if apart else _parse_aliases(original, roots)
    draft = Draft(text)
    for root, changes in roots.items():
        if root in together:
            continue
        original.together = {i for other, i in together.values() if other == root}
        # refusals name lines of the file as it is, so match before the first step
        edits = [_match(original, p, v, apart) for p, v in changes.items()]
        forms = [edit.form for edit in edits if isinstance(edit, Statement)]
        # one key alone would hide from a second pass where the others are
        rebound = 'rebind' in forms and root not in fresh
        _edit_root(draft, original, changes, apart or rebound, root in fresh)
    for dotted in popped:
        root, key = dotted.split('.')
        name = root if original.is_lazy else f'_base_.{root}'
        draft.text = append(draft.text, f'{name}.pop({key!r})', original.newline)
    return draft


def _edit_root(
    draft: Draft,
    original: Module,
    changes: Mapping[KeyPath, Setting],
    apart: bool,
    fresh: bool,
) -> None:
    late: dict[tuple[int, Form], dict[KeyPath, Setting]] = {}
    for path, value in changes.items():
        module = Module(draft.text, original)
        edit = _match(module, path, value, apart)
        if isinstance(edit, Statement):
            form: Form = 'inherit' if fresh else edit.form
            late.setdefault((edit.index, form), {})[path] = resting(path, value)
            continue
        for start, stop, code in sorted(edit.spans, reverse=True):
            draft.text = draft.text[:start] + code + draft.text[stop:]
        draft.notes += edit.notes
        if edit.variable is not None:
            draft.variables[edit.variable] = value
    # the last first, so that the indices of the others hold; -1 is the end
    for (index, form), values in sorted(late.items(), reverse=True):
        module = Module(draft.text)
        code = render_statement(values, form, module.newline)
        if index >= 0:
            draft.text = follow(module, index, code)
        else:
            draft.text = append(draft.text, code, module.newline)
        if form == 'rebind':
            root = next(iter(values))[0]
            draft.notes.append(
                f'Other statements use {root} too and are to see no change, so '
                'it gets a statement of its own at the end.'
            )


def _match(module: Module, path: KeyPath, value: Setting, apart: bool) -> Edit:
    if apart and (edit := absent.match(module, path, value)) is not None:
        return edit
    if apart:
        return shared.override(module, path)
    for match in SPELLINGS:
        edit = match(module, path, value)
        if edit is not None:
            return edit
    raise AssertionError(f'no spelling matches {path}')


def _parse_aliases(
    module: Module, roots: Mapping[str, Mapping[KeyPath, Setting]]
) -> dict[str, tuple[str, int]]:
    """Finds names that stand for another's dict and are asked to change alike.

    Returns:
        The other name and the index of the assignment, by name.
    """
    found = {}
    for name, values in roots.items():
        writers = [touch for touch in module.touches(name) if touch.how != 'read']
        if len(writers) != 1 or writers[0].how != 'bind' or writers[0].path:
            continue
        other = getattr(writers[0].node.value, 'id', name)
        alike = {(other, *path[1:]): value for path, value in values.items()}
        if other != name and alike == roots.get(other):
            index = writers[0].index
            places = [locate_setting(module, path, {index}) for path in alike]
            if not any(place.shared for place in places):
                found[name] = (other, index)
    return found
