"""``num_workers=2 * n``, ``_base_.n``, ``{{_base_.n}}``: what others use as well."""

from __future__ import annotations

import ast

from mmgpu_hooks.config.edit import Edit, resting
from mmgpu_hooks.config.locate import KeyPath, locate_setting
from mmgpu_hooks.config.outcome import RefusedError, Setting
from mmgpu_hooks.config.syntax import Module

_READING = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.expr_context),
    *(ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop),
    ast.Set,  # {{_base_.n}}
)
"""What a value that only reads variables is made of."""


def match(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Replaces the value where it is used; variables stay as they are."""
    place = locate_setting(module, path)
    if place.kind != 'value':
        return None
    setting, node = '.'.join(path), place.node
    parts = list(ast.walk(node))
    if not all(isinstance(part, _READING) for part in parts):
        raise RefusedError(
            f'expected {setting} as a literal or computed from variables, found '
            f'{module.describe(node)}; write the value there as a literal, or change '
            'it by hand',
            node.lineno,
        )
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    names = [name for name in dict.fromkeys(names) if name != '_base_']
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
    return Edit((*module.span(node), repr(resting(path, value))), note)
