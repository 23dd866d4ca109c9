"""A key that is to be taken out, and that the file does not have."""

from __future__ import annotations

from mmgpu_hooks.config.edit import Edit
from mmgpu_hooks.config.locate import KeyPath, locate_setting
from mmgpu_hooks.config.outcome import REMOVE, Setting
from mmgpu_hooks.config.syntax import Module


def match(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Leaves the text as it is; what a base says shows when the result is loaded."""
    is_absent = locate_setting(module, path).kind != 'value'
    return Edit() if value is REMOVE and is_absent else None
