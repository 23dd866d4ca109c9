"""Reads what a config takes from a dict that is defined elsewhere. Pure."""

from __future__ import annotations

import libcst as cst

from mmgpu_hooks.config.display import parse_entries
from mmgpu_hooks.config.expression import (
    UNKNOWN,
    is_display,
    parse_chain,
    parse_template,
)
from mmgpu_hooks.config.statements import Touch, parse_touches

_COPIES = (('copy', 'deepcopy'), ('copy', 'copy'), ('deepcopy',))


def is_start(touch: Touch) -> bool:
    """Says whether it gives a name a value in every run, whatever it was before."""
    return touch.how == 'bind' and not touch.path and not touch.conditional


def is_borrowed(node: cst.BaseExpression) -> bool:
    """Says whether a name given this value is another name for the same dict."""
    return isinstance(node, (cst.Name, cst.Attribute, cst.Subscript))


def is_dict_elsewhere(module: cst.Module, node: cst.BaseExpression) -> bool:
    """Says whether a value stands for a dict that is defined elsewhere."""
    if isinstance(node, cst.Name):
        starts = [t for t in parse_touches(module, node.value) if is_start(t)]
        if starts and isinstance(starts[-1].value, (cst.List, cst.Tuple, cst.Integer)):
            return False
    if parse_template(node) is not None:
        return True
    if isinstance(node, cst.Call):
        chain = parse_chain(node.func)
        method = len(chain) > 1 and chain[-1] == 'copy' and not node.args
        return chain in _COPIES or method
    chain = parse_chain(node)
    return UNKNOWN not in chain and chain[0] not in ('None', 'True', 'False')


def parse_keys(module: cst.Module, node: cst.BaseExpression) -> set[str] | None:
    """Reads the keys of a dict or of a variable that holds one, ``None`` if unsure."""
    if isinstance(node, cst.Name):
        touches = parse_touches(module, node.value)
        writers = [touch for touch in touches if touch.how != 'read']
        if len(writers) != 1 or not is_start(writers[0]) or writers[0].inherited:
            return None
        node = writers[0].value
    if not is_display(node):
        return None
    assert isinstance(node, (cst.Call, cst.Dict))
    keys = [slot.key for slot in parse_entries(node).slots]
    return {key for key in keys if key} if None not in keys else None


def deletes_base(node: cst.BaseExpression | None) -> bool:
    """Says whether a dict replaces the base's instead of being merged with it."""
    assert isinstance(node, (cst.Call, cst.Dict))
    return any(slot.key == '_delete_' for slot in parse_entries(node).slots)
