"""What only a base has, or what is set in a way that no edit would reach."""

from __future__ import annotations

from mmgpu_hooks.config.edit import (
    INHERIT,
    REBIND,
    UPDATE,
    Edit,
    append,
    render_statement,
)
from mmgpu_hooks.config.locate import KeyPath
from mmgpu_hooks.config.outcome import Setting
from mmgpu_hooks.config.syntax import Module


def match(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Adds a statement at the end, which has the last word."""
    form = UPDATE if module.is_lazy else INHERIT
    if module.is_bound(path[0]):
        # what else an inner dict holds stays
        form = UPDATE if len(path) > 2 else REBIND
    code = render_statement(form, path, value)
    return Edit(append(module.text, module.newline, code))
