"""The usual spellings: ``num_workers=2`` wherever that stands, or nowhere."""

from __future__ import annotations

import ast

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
from mmgpu_hooks.config.syntax import Module, is_literal, locate_setting, parse_chain


def _match_variable(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Replaces the literal of a variable that nothing else uses."""
    place = locate_setting(module, path)
    if place.kind != 'value' or not isinstance(place.node, ast.Name):
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


def _match_value(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Replaces a value, ``2`` or ``2 * n``, where it is used; variables stay."""
    place = locate_setting(module, path)
    if place.kind != 'value':
        return None
    note = None
    if not is_literal(place.node):
        was = ' '.join(module.code(place.node).split())
        note = f'{".".join(path)} was {was} and no longer follows it.'
    return Edit((*module.span(place.node), repr(value)), note)


def _match_missing_key(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Adds a key to ``train_dataloader = dict(batch_size=2)``, in its style."""
    place = locate_setting(module, path)
    if place.kind != 'missing':
        return None
    return Edit(insert_entry(module, place.node, place.rest, value))


def _match_anything(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Adds a statement at the end, which has the last word."""
    form = UPDATE if module.is_lazy else INHERIT
    if module.is_bound(path[0]):
        # what else an inner dict holds stays
        form = UPDATE if len(path) > 2 else REBIND
    code = render_statement(form, path, value)
    return Edit(append(module.text, module.newline, code))


MATCHES = (_match_variable, _match_value, _match_missing_key, _match_anything)
