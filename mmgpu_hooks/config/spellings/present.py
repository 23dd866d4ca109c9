"""Settings that the file spells: ``num_workers=2``, wherever that stands."""

from __future__ import annotations

import ast

from mmgpu_hooks.config.edits import Edit, Layout, resting
from mmgpu_hooks.config.outcome import REMOVE, KeyPath, Setting
from mmgpu_hooks.config.syntax import Module, is_literal, locate_setting, parse_chain


def _match_entry(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Takes out an entry of a dict, with its comma and the comment on its line."""
    place = locate_setting(module, path)
    if value is not REMOVE or place.owner is None or place.kind != 'value':
        return None
    return Edit(Layout(module, place.owner).remove(place.position))


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
            code = repr(resting(path, value))
            return Edit((*module.span(one.value), code), note, name)
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
    return Edit((*module.span(place.node), repr(resting(path, value))), note)


MATCHES = (_match_entry, _match_variable, _match_value)
