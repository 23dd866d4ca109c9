"""Rewrites settings in the text of a config. Pure: ``str -> str``.

Each setting is one step, so that the proof can look at one change at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import libcst as cst

from mmgpu_hooks.config.draft import Changes, Draft, parse_module
from mmgpu_hooks.config.entry import (
    edit_alias,
    edit_missing,
    edit_node,
    edit_removal,
    is_alone,
)
from mmgpu_hooks.config.expression import parse_literal
from mmgpu_hooks.config.locate import Path, Spot, lines_of, locate_setting
from mmgpu_hooks.config.outcome import ABSENT, REMOVE, RefusedError, Setting
from mmgpu_hooks.config.override import (
    Form,
    edit_append,
    edit_cut,
    edit_follow,
    render_override,
)
from mmgpu_hooks.config.statements import is_read_base, parse_touches
from mmgpu_hooks.config.value import locate_value

HOOK_ROOTS = ('default_hooks', 'custom_hooks')
"""The names that hold hooks."""


def edit_settings(
    text: str,
    settings: Mapping[str, Setting],
    *,
    apart: bool = False,
    fresh: AbstractSet[str] = frozenset(),
    popped: AbstractSet[str] = frozenset(),
    shared: bool = False,
) -> Draft:
    """Changes settings in a config.

    Args:
        text: Source of the config.
        settings: Values by dotted key, such as ``train_dataloader.num_workers``.
        apart: Override each setting at the end of the file, where no other
            statement can see it, whatever there is to edit.
        fresh: Top-level names that neither the file nor its bases have yet.
        popped: Keys to take out of what is inherited.
        shared: Leave variables alone, since other files may use them too.

    Returns:
        The steps to a text that spells every setting; none if it does already.

    Raises:
        RefusedError: If a setting is spelled in a way that cannot be edited safely.
    """
    draft = Draft(text, parse_module(text))
    changes: dict[str, dict[Path, Setting]] = {}
    for dotted, value in settings.items():
        root, *keys = dotted.split('.')
        changes.setdefault(root, {})[tuple(keys)] = value
    # Refusals name lines of the file as it is, so look before the first step.
    for root, values in changes.items():
        for path, value in values.items():
            _check(draft, root, path, value)
    if shared:
        draft.free.clear()
    aliases = {} if apart else _parse_aliases(draft.module, changes)
    for root, values in changes.items():
        if root not in aliases:
            together = {index for other, index in aliases.values() if other == root}
            _edit_root(draft, root, values, frozenset(together), apart, root in fresh)
    for dotted in popped:
        _edit_pop(draft, *dotted.split('.'))
    return draft


def _edit_pop(draft: Draft, root: str, key: str) -> None:
    touches = parse_touches(draft.module, root)
    if any(t.how == 'change' and t.path == (key,) for t in touches):
        return
    prefix = '' if is_lazy(draft.module) else '_base_.'
    text = edit_append(
        draft.text, f'{prefix}{root}.pop({key!r})', draft.module.default_newline
    )
    draft.move(parse_module(text), root, {(key,): REMOVE}, text=text)


def _check(draft: Draft, root: str, path: Path, value: Setting) -> None:
    module = draft.module
    spot = locate_setting(module, root, path)
    # A hook is taken out as a whole, a loader's entry only if it is a plain value.
    whole = value is REMOVE and root in HOOK_ROOTS
    if spot.kind == 'value' and spot.node is not None and not whole:
        setting = '.'.join((root, *path))
        place = locate_value(module, spot.index, spot.node, setting)
        if place.variable is not None:
            draft.free.add(place.variable)


def _parse_aliases(
    module: cst.Module, changes: Mapping[str, Changes]
) -> dict[str, tuple[str, int]]:
    """Finds names that stand for another's dict and are asked to change alike.

    Returns:
        The other name and the index of the assignment, by name.
    """
    found = {}
    for name, values in changes.items():
        writers = [t for t in parse_touches(module, name) if t.how != 'read']
        if len(writers) != 1 or writers[0].how != 'bind' or writers[0].path:
            continue
        value = writers[0].value
        other = value.value if isinstance(value, cst.Name) else name
        if other != name and values == changes.get(other):
            index = writers[0].index
            spots = [locate_setting(module, other, p, {index}) for p in values]
            if not any(spot.shared for spot in spots):
                found[name] = (other, index)
    return found


def _edit_root(
    draft: Draft,
    root: str,
    changes: Changes,
    together: frozenset[int],
    apart: bool,
    fresh: bool,
) -> None:
    late: dict[tuple[Form, int], dict[Path, Setting]] = {}
    if _is_rebound(draft.module, root, changes, together, apart, fresh):
        # One key alone would hide from a second pass where the others are.
        late['rebind', -1] = {
            path: parse_resting(root, path, value) for path, value in changes.items()
        }
        changes = {}
    for path, value in changes.items():
        spot = locate_setting(draft.module, root, path, together)
        if _is_spelled(spot, path, value):
            continue
        form = _choose_form(draft.module, root, spot, apart)
        form = 'inherit' if fresh and form is not None else form
        if form is None:
            _edit_spot(draft, root, path, spot, value)
        elif value is not REMOVE or spot.kind != 'inherited':
            follows = form == 'update' and spot.kind != 'missing'
            place = spot.index if follows else -1
            late.setdefault((form, place), {})[path] = parse_resting(root, path, value)
    for (form, place), values in late.items():
        if form == 'rebind':
            draft.notes.append(
                f'Other statements use {root} too and are to see no change, so '
                'it gets a statement of its own at the end.'
            )
        _edit_late(draft, root, values, form, place)


def _is_rebound(
    module: cst.Module,
    root: str,
    changes: Changes,
    together: frozenset[int],
    apart: bool,
    fresh: bool,
) -> bool:
    """Says whether one of several settings needs the name to be bound anew."""
    if fresh or len(changes) == 1:
        return False
    spots = {p: locate_setting(module, root, p, together) for p in changes}
    forms = [
        _choose_form(module, root, spot, apart)
        for path, spot in spots.items()
        if not _is_spelled(spot, path, changes[path])
    ]
    return 'rebind' in forms


def _is_spelled(spot: Spot, path: Path, value: Setting) -> bool:
    if spot.kind == 'missing' and value is REMOVE:
        return spot.certain
    if spot.kind == 'gone':
        return value is REMOVE
    if spot.kind != 'value' or spot.node is None:
        return False
    held = ABSENT.get(path[-1], ()) if value is REMOVE else (value,)
    return parse_literal(spot.node) in [(type(one), one) for one in held]


def _choose_form(module: cst.Module, root: str, spot: Spot, apart: bool) -> Form | None:
    """Chooses the statement that overrides, ``None`` to edit where it is spelled."""
    bound = any(
        touch.how in ('bind', 'change') and not touch.path and not touch.inherited
        for touch in parse_touches(module, root)
    )
    lazy = is_lazy(module)
    if spot.shared or apart:
        return 'rebind' if bound or lazy else 'inherit'
    if spot.kind in ('override', 'gone'):
        return 'update'
    empty = isinstance(spot.node, cst.Call) and not spot.node.args
    if root in HOOK_ROOTS and spot.kind == 'missing' and empty and not spot.owner:
        # Filled, it could not be told from a statement of ours and would go too.
        return 'update'
    if spot.kind == 'inherited':
        return 'update' if lazy else 'inherit'
    return None


def is_lazy(module: cst.Module) -> bool:
    """Says whether bases are imported in ``with read_base():``."""
    return any(is_read_base(statement) for statement in module.body)


def _edit_spot(draft: Draft, root: str, path: Path, spot: Spot, value: Setting) -> None:
    if spot.kind == 'alias':
        value = parse_resting(root, path, value)
        draft.move(edit_alias(draft.module, spot, value), root, {path: value})
    elif spot.kind == 'missing':
        value = parse_resting(root, path, value)
        draft.move(edit_missing(draft.module, spot, value), root, {path: value})
    else:
        _edit_value(draft, root, path, spot, value)


def _edit_value(
    draft: Draft, root: str, path: Path, spot: Spot, value: Setting
) -> None:
    assert spot.node is not None
    if value is REMOVE and root in HOOK_ROOTS and is_alone(draft.module, spot):
        lines = lines_of(draft.module, draft.module.body[spot.index])
        text = edit_cut(draft.text, *lines)
        draft.move(parse_module(text), root, {path: REMOVE}, text=text)
        return
    if value is REMOVE and spot.owner is not None:
        draft.move(edit_removal(draft.module, spot), root, {path: REMOVE})
        return
    value = parse_resting(root, path, value)
    setting = '.'.join((root, *path))
    place = locate_value(draft.module, spot.index, spot.node, setting, draft.free)
    # Brackets around the old value, and comments in them, stay.
    literal = cst.parse_expression(repr(value)).with_changes(
        lpar=place.node.lpar, rpar=place.node.rpar
    )
    if place.note is not None:
        draft.notes.append(place.note)
    if place.variable is not None:
        draft.variables[place.variable] = value
        draft.notes.append(
            f'{setting} is the variable {place.variable}, which nothing else in the '
            'file uses, so that was changed.'
        )
    module = edit_node(draft.module, place.index, place.node, literal)
    draft.move(module, root, {path: value}, place.variable)


def _edit_late(
    draft: Draft, root: str, values: Changes, form: Form, place: int
) -> None:
    newline = draft.module.default_newline
    statement = render_override(root, values, form, newline)
    if place >= 0:
        draft.move(edit_follow(draft.module, place, statement), root, values)
    else:
        text = edit_append(draft.text, statement, newline)
        draft.move(parse_module(text), root, values, text=text)


def parse_resting(root: str, path: Path, value: Setting) -> Setting:
    """Returns what stands for a removed key where the key cannot vanish.

    Raises:
        RefusedError: If nothing does.
    """
    if value is not REMOVE:
        return value
    if path[-1] not in ABSENT:
        raise RefusedError(
            f'expected to remove {".".join((root, *path))}, but it is inherited or set '
            'elsewhere; give it another value'
        )
    return ABSENT[path[-1]][0]
