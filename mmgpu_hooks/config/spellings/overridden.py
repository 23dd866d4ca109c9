"""``dict(**common)``, ``x['k'] += 1``, ``x.pop('k')``: no literal has the last word."""

from __future__ import annotations

from mmgpu_hooks.config.edit import UPDATE, Edit, follow, render_statement
from mmgpu_hooks.config.locate import KeyPath, locate_setting
from mmgpu_hooks.config.outcome import Setting
from mmgpu_hooks.config.syntax import Module


def match(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Adds ``x.update(key=value)`` on the line after the last change."""
    place = locate_setting(module, path)
    if place.kind != 'override':
        return None
    return Edit(follow(module, place.index, render_statement(UPDATE, path, value)))
