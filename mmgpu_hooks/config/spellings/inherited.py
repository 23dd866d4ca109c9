"""A setting that only a base has."""

from __future__ import annotations

from mmgpu_hooks.config.edit import INHERIT, UPDATE, Edit, append, render_statement
from mmgpu_hooks.config.locate import KeyPath, locate_setting
from mmgpu_hooks.config.outcome import Setting
from mmgpu_hooks.config.syntax import Module


def match(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Adds ``x = dict(key=value)`` at the end, which MMEngine merges over the base."""
    if locate_setting(module, path).kind != 'inherited':
        return None
    form = UPDATE if module.is_lazy else INHERIT
    code = render_statement(form, path, value)
    return Edit(append(module.text, module.newline, code))
