"""An entry that is to be taken out: of a dict, or a hook with its statement."""

from __future__ import annotations

from mmgpu_hooks.config.edit import HOOK_ROOTS, Edit
from mmgpu_hooks.config.entries import Layout
from mmgpu_hooks.config.locate import KeyPath, locate_setting
from mmgpu_hooks.config.outcome import REMOVE, Setting
from mmgpu_hooks.config.syntax import Module


def match(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Takes it out with its comma and the comment on its line."""
    place = locate_setting(module, path)
    if value is not REMOVE or place.kind != 'value':
        return None
    if place.owner is not None:
        return Edit(Layout(module, place.owner).remove(place.position))
    statement = module.body[place.index]
    start, stop = module.offset(statement.lineno, 0), module.span(statement)[1]
    stop += len(module.newline)
    alone = module.text[start:stop] == module.code(statement) + module.newline
    return Edit((start, stop, '')) if alone and path[0] in HOOK_ROOTS else None
