"""``num_workers=2 * n``, ``_base_.n``, ``{{_base_.n}}``: what others use as well."""

from __future__ import annotations

import ast

from mmgpu_hooks.config.edit import Edit, Replacement, resting
from mmgpu_hooks.config.locate import KeyPath, locate_setting
from mmgpu_hooks.config.outcome import RefusedError, Setting
from mmgpu_hooks.config.syntax import (
    UNKNOWN,
    Module,
    is_template,
    parse_chain,
)


def match(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Replaces the value where it is used; variables stay as they are."""
    place = locate_setting(module, path)
    if place.kind != 'value':
        return None
    setting, node = '.'.join(path), place.node
    names = _parse_names(node)
    if names is None:
        raise RefusedError(
            f'expected {setting} as a literal or computed from variables, found '
            f'{module.describe(node)}; write the value there as a literal, or change '
            'it by hand',
            node.lineno,
        )
    for name in names:
        for touch in module.touches(name):
            if touch.conditional and touch.how != 'read':
                raise RefusedError(
                    f'expected {setting} to be the same in every run, found that its '
                    f'variable {name} is set below a condition, loop or the like; '
                    'change it by hand',
                    touch.node.lineno,
                )
    note = f'{setting} was {" ".join(module.code(node).split())} and no longer follows'
    users = [name for name in names if module.touches(name)]
    kept = f'; {" and ".join(users)} {"stay" if users[1:] else "stays"} as before'
    note = f'{note} it{kept if users else ""}.'
    return Replacement(((*module.span(node), repr(resting(path, value))),), (note,))


def _parse_names(node: ast.expr) -> list[str] | None:
    """Lists the names in a value that only reads them, ``None`` for any other."""
    if isinstance(node, ast.Constant) or is_template(node):
        return []
    if isinstance(node, ast.BinOp):
        left, right = _parse_names(node.left), _parse_names(node.right)
        if left is None or right is None:
            return None
        return list(dict.fromkeys([*left, *right]))
    if isinstance(node, ast.UnaryOp):
        return _parse_names(node.operand)
    chain = parse_chain(node)
    if UNKNOWN in chain:
        return None
    return [] if chain[0] == '_base_' else [chain[0]]
