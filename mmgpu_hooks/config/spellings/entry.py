"""An entry that is to be taken out: of a dict, or a hook with its statement."""

from __future__ import annotations

import ast

from mmgpu_hooks.config.edit import HOOK_ROOTS, Edit, Replacement, cut
from mmgpu_hooks.config.entries import Layout, parse_entries
from mmgpu_hooks.config.locate import KeyPath, Place, locate_setting
from mmgpu_hooks.config.outcome import REMOVE, Setting
from mmgpu_hooks.config.syntax import Module


def match(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Takes it out with its comma and the comment on its line."""
    place = locate_setting(module, path)
    if value is not REMOVE or place.kind != 'value':
        return None
    statement = module.body[place.index]
    if path[0] in HOOK_ROOTS and _is_alone(module, statement, place):
        assert statement.end_lineno is not None
        return Replacement((cut(module, statement.lineno, statement.end_lineno),))
    if place.owner is None:
        return None
    return Replacement((Layout(module, place.owner).remove(place.position),))


def _is_alone(module: Module, statement: ast.stmt, place: Place) -> bool:
    """Says whether its lines set this one entry and hold nothing else."""
    lines = module.lines[statement.lineno - 1 : statement.end_lineno]
    if not isinstance(statement, (ast.Assign, ast.Expr)) or (
        ''.join(lines).strip() != module.code(statement)
    ):
        return False
    if place.owner is None:
        return statement.value is place.node
    only = isinstance(place.owner, ast.Call) and len(parse_entries(place.owner)) == 1
    return only and statement.value is place.owner
