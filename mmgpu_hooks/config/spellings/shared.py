"""A dict that other statements use too, which are to see no change."""

from __future__ import annotations

from mmgpu_hooks.config.edit import Edit, Statement
from mmgpu_hooks.config.locate import KeyPath, locate_setting
from mmgpu_hooks.config.outcome import Setting
from mmgpu_hooks.config.syntax import Module


def match(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Adds ``x = dict(x, key=value)`` at the end."""
    return override(module, path) if locate_setting(module, path).shared else None


def override(module: Module, path: KeyPath) -> Statement:
    """Binds the name anew at the end, whatever there is to edit."""
    bound = any(
        touch.how in ('bind', 'change') and not touch.path and not touch.inherited
        for touch in module.touches(path[0])
    )
    return Statement('rebind' if bound or module.is_lazy else 'inherit')
