"""``num_workers=workers``, where nothing else uses the variable."""

from __future__ import annotations

import ast

from mmgpu_hooks.config.edit import Edit, resting
from mmgpu_hooks.config.locate import KeyPath, locate_setting
from mmgpu_hooks.config.outcome import Setting
from mmgpu_hooks.config.syntax import Module, is_literal, parse_chain


def match(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Replaces the literal that the variable is given."""
    place = locate_setting(module, path)
    if place.kind != 'value' or not isinstance(place.node, ast.Name):
        return None
    name = place.node.id
    # an edit before this one may have taken another use away
    if [len(one.list_uses(name)) for one in (module.original, module)] != [2, 2]:
        return None
    note = (
        f'{".".join(path)} is the variable {name}, which nothing else in the file '
        'uses, so that was changed.'
    )
    for one in module.body:
        if not isinstance(one, ast.Assign) or not is_literal(one.value):
            continue
        if parse_chain(one.targets[0]) == (name,):
            code = repr(resting(path, value))
            return Edit((*module.span(one.value), code), note, name)
    return None
