"""``train_dataloader = dict(batch_size=2)``: a dict without the key."""

from __future__ import annotations

from mmgpu_hooks.config.edit import Edit, resting
from mmgpu_hooks.config.entries import insert_entry
from mmgpu_hooks.config.locate import KeyPath, locate_setting
from mmgpu_hooks.config.outcome import Setting
from mmgpu_hooks.config.syntax import Module


def match(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Adds the key in the style of the dict."""
    place = locate_setting(module, path)
    if place.kind != 'missing':
        return None
    given = resting(path, value)
    return Edit(insert_entry(module, place.node, place.rest, given))
