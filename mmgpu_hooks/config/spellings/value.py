"""``num_workers=2``, ``num_workers=2 * n``: a value, wherever it stands."""

from __future__ import annotations

from mmgpu_hooks.config.edit import Edit, resting
from mmgpu_hooks.config.locate import KeyPath, locate_setting
from mmgpu_hooks.config.outcome import Setting
from mmgpu_hooks.config.syntax import Module, is_literal


def match(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Replaces it where it is used; variables stay as they are."""
    place = locate_setting(module, path)
    if place.kind != 'value':
        return None
    note = None
    if not is_literal(place.node):
        was = ' '.join(module.code(place.node).split())
        note = f'{".".join(path)} was {was} and no longer follows it.'
    return Edit((*module.span(place.node), repr(resting(path, value))), note)
