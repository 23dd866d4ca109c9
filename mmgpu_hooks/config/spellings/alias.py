"""``x = y``, ``x = copy.deepcopy(y)``, ``x = {{_base_.y}}``: another's dict."""

from __future__ import annotations

from mmgpu_hooks.config.edit import Edit, resting
from mmgpu_hooks.config.locate import KeyPath, locate_setting
from mmgpu_hooks.config.outcome import Setting
from mmgpu_hooks.config.syntax import Module, parse_template


def match(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Turns ``x = y`` into ``x = dict(y, key=value)``."""
    place = locate_setting(module, path)
    if place.kind != 'alias':
        return None
    source = module.code(parse_template(place.node) or place.node)
    code = f'dict({source}, {place.rest[0]}={resting(path, value)!r})'
    return Edit((*module.span(place.node), code))
