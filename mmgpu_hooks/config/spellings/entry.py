"""An entry of a dict that is to be taken out."""

from __future__ import annotations

from mmgpu_hooks.config.edit import Edit
from mmgpu_hooks.config.entries import Layout
from mmgpu_hooks.config.locate import KeyPath, locate_setting
from mmgpu_hooks.config.outcome import REMOVE, Setting
from mmgpu_hooks.config.syntax import Module


def match(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Takes it out with its comma and the comment on its line."""
    place = locate_setting(module, path)
    if value is not REMOVE or place.owner is None or place.kind != 'value':
        return None
    return Edit(Layout(module, place.owner).remove(place.position))
