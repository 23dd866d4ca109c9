"""``num_workers=workers``, where nothing else uses the variable."""

from __future__ import annotations

import ast

from mmgpu_hooks.config.edit import Edit, resting
from mmgpu_hooks.config.locate import KeyPath, locate_setting
from mmgpu_hooks.config.outcome import Setting
from mmgpu_hooks.config.syntax import Module, is_literal


def match(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Replaces the literal that the variable is given."""
    place = locate_setting(module, path)
    if place.kind != 'value' or not isinstance(place.node, ast.Name):
        return None
    name = place.node.id
    # an edit before this one may have taken another use away
    for uses in (module.original.touches(name), module.touches(name)):
        if sorted(touch.how for touch in uses) != ['bind', 'read']:
            return None
    (writer,) = (touch for touch in uses if touch.how == 'bind')
    given = writer.node.value
    if not writer.is_start or writer.inherited or not is_literal(given):
        return None
    note = (
        f'{".".join(path)} is the variable {name}, which nothing else in the file '
        'uses, so that was changed.'
    )
    code = repr(resting(path, value))
    return Edit((*module.span(given), code), note, name)
