"""``dict(**common)``, ``x['k'] += 1``, ``x.pop('k')``: no literal has the last word."""

from __future__ import annotations

from mmgpu_hooks.config.edit import Edit, Statement
from mmgpu_hooks.config.locate import KeyPath, locate_setting
from mmgpu_hooks.config.outcome import Setting
from mmgpu_hooks.config.syntax import Module


def match(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Adds ``x.update(key=value)`` on the line after the last change."""
    place = locate_setting(module, path)
    known = place.kind in ('override', 'gone')
    return Statement('update', place.index) if known else None
