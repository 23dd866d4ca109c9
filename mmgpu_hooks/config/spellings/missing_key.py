"""``train_dataloader = dict(batch_size=2)``: a dict without the key."""

from __future__ import annotations

import ast

from mmgpu_hooks.config.edit import (
    HOOK_ROOTS,
    Edit,
    Replacement,
    Statement,
    resting,
)
from mmgpu_hooks.config.entries import insert_entry
from mmgpu_hooks.config.locate import KeyPath, locate_setting
from mmgpu_hooks.config.outcome import Setting
from mmgpu_hooks.config.syntax import Module


def match(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Adds the key in the style of the dict."""
    place = locate_setting(module, path)
    if place.kind != 'missing':
        return None
    empty = isinstance(place.node, ast.Call) and module.code(place.node)[-2:] == '()'
    if empty and path[0] in HOOK_ROOTS and place.owner is None:
        # filled, it could not be told from a statement of ours and would go too
        return Statement('update')
    code = insert_entry(module, place.node, place.rest, resting(path, value))
    return Replacement((code,))
