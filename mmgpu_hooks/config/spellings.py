"""How configs spell a setting, and the edit of each: where it stands, or at the end."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from mmgpu_hooks.config.edits import (
    INHERIT,
    REBIND,
    UPDATE,
    Edit,
    append,
    insert_entry,
    render_statement,
)
from mmgpu_hooks.config.loading import KeyPath, Setting
from mmgpu_hooks.config.syntax import (
    Module,
    Place,
    is_literal,
    locate_setting,
    parse_chain,
)


@dataclass
class Draft:
    """The text of a config after edits."""

    text: str
    notes: list[str] = field(default_factory=list)
    variables: dict[str, Setting] = field(default_factory=dict)
    """Those that were changed in place of a setting."""


def edit_settings(
    text: str,
    settings: Mapping[str, Setting],
    form: str | None = None,
    original: Module | None = None,
) -> Draft:
    """Changes settings of one top-level name.

    Args:
        text: Source of the config.
        settings: Values by dotted key, such as ``train_dataloader.num_workers``.
        form: Of a statement at the end, which no other statement can see. Default:
            the settings are changed where the config spells them.
        original: The config before all edits. Default: this one.
    """
    original, draft = original or Module(text), Draft(text)
    for dotted, value in settings.items():
        path, module = tuple(dotted.split('.')), Module(draft.text, original)
        if form is None:
            edit = _edit_where_spelled(module, path, value)
        else:
            edit = _append_statement(module, form, path, value)
            if form == REBIND:
                draft.notes.append(
                    f'Other statements use {path[0]} too and are to see no change, so '
                    'it gets a statement of its own at the end.'
                )
            # the others are added to that statement
            form = None
        start, stop, code = edit.span
        draft.text = draft.text[:start] + code + draft.text[stop:]
        if edit.note is not None:
            draft.notes.append(edit.note)
        if edit.variable is not None:
            draft.variables[edit.variable] = value
    return draft


def _edit_where_spelled(module: Module, path: KeyPath, value: Setting) -> Edit:
    place = locate_setting(module, path)
    if place.kind == 'value':
        edit = _edit_variable(module, place, path, value)
        return edit or _edit_value(module, place, path, value)
    if place.kind == 'missing':
        # a key is added to train_dataloader = dict(batch_size=2), in its style
        return Edit(insert_entry(module, place.node, place.rest, value))
    form = UPDATE if module.is_lazy else INHERIT
    if module.is_bound(path[0]):
        # what else an inner dict holds stays
        form = UPDATE if len(path) > 2 else REBIND
    return _append_statement(module, form, path, value)


def _append_statement(module: Module, form: str, path: KeyPath, value: Setting) -> Edit:
    """Adds a statement at the end, which has the last word."""
    statement = render_statement(form, path, value)
    return Edit(append(module.text, module.original.newline, statement))


def _edit_variable(
    module: Module, place: Place, path: KeyPath, value: Setting
) -> Edit | None:
    """Replaces the literal of a variable that nothing else uses."""
    if not isinstance(place.node, ast.Name):
        return None
    name = place.node.id
    # an edit before this one may have taken another use away
    if [len(one.list_uses(name)) for one in (module.original, module)] != [2, 2]:
        return None
    note = (
        f'{".".join(path)} is the variable {name}, which nothing else in the file '
        'uses, so that was changed.'
    )
    for one in module.body:
        if not isinstance(one, ast.Assign) or not is_literal(one.value):
            continue
        if parse_chain(one.targets[0]) == (name,):
            return Edit((*module.span(one.value), repr(value)), note, name)
    return None


def _edit_value(module: Module, place: Place, path: KeyPath, value: Setting) -> Edit:
    """Replaces a value, ``2`` or ``2 * n``, where it is used; variables stay."""
    note = None
    if not is_literal(place.node):
        was = ' '.join(module.code(place.node).split())
        note = f'{".".join(path)} was {was} and no longer follows it.'
    return Edit((*module.span(place.node), repr(value)), note)
