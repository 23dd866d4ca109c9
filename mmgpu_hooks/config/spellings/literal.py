"""``num_workers=2``: a literal, wherever it stands."""

from __future__ import annotations

import ast

from mmgpu_hooks.config.edit import Edit, resting
from mmgpu_hooks.config.locate import KeyPath, locate_setting
from mmgpu_hooks.config.outcome import RefusedError, Setting
from mmgpu_hooks.config.syntax import Module, is_display, is_literal


def match(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Replaces the literal."""
    place = locate_setting(module, path)
    if place.kind != 'value':
        return None
    if is_display(place.node) or isinstance(place.node, (ast.List, ast.Tuple)):
        raise RefusedError(
            f'expected a single value in {".".join(path)}, found a dict or list; '
            'change it by hand',
            place.node.lineno,
        )
    if not is_literal(place.node):
        return None
    return Edit((*module.span(place.node), repr(resting(path, value))))
