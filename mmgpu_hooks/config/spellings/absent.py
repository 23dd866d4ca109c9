"""Settings that the file does not spell, or in a way that no edit would reach."""

from __future__ import annotations

from mmgpu_hooks.config.edits import (
    INHERIT,
    REBIND,
    UPDATE,
    Edit,
    append,
    insert_entry,
    render_statement,
)
from mmgpu_hooks.config.outcome import KeyPath, Setting
from mmgpu_hooks.config.syntax import Module, locate_setting


def _match_missing_key(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Adds a key to ``train_dataloader = dict(batch_size=2)``, in its style."""
    place = locate_setting(module, path)
    if place.kind != 'missing':
        return None
    return Edit(insert_entry(module, place.node, place.rest, value))


def _match_anything(module: Module, path: KeyPath, value: Setting) -> Edit | None:
    """Adds a statement at the end, which has the last word."""
    form = UPDATE if module.is_lazy else INHERIT
    if module.is_bound(path[0]):
        # what else an inner dict holds stays
        form = UPDATE if len(path) > 2 else REBIND
    code = render_statement(form, path, value)
    return Edit(append(module.text, module.newline, code))


MATCHES = (_match_missing_key, _match_anything)
