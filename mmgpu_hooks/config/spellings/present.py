"""Settings that the file spells: ``num_workers=2``, wherever that stands."""

from __future__ import annotations

import ast

from mmgpu_hooks.config.edits import Edit
from mmgpu_hooks.config.outcome import KeyPath, Setting
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


MATCHES = (_match_variable, _match_value)
