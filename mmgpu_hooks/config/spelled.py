"""Reads literals of a config that is not to be loaded. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from mmgpu_hooks.config.draft import parse_module
from mmgpu_hooks.config.expression import parse_literal
from mmgpu_hooks.config.locate import locate_setting
from mmgpu_hooks.config.outcome import RefusedError


def parse_spelled(text: str, settings: Iterable[str]) -> dict[str, object]:
    """Reads those of the settings that a text spells as a literal."""
    found: dict[str, object] = {}
    for dotted in settings:
        root, *keys = dotted.split('.')
        try:
            spot = locate_setting(parse_module(text), root, tuple(keys))
        except RefusedError:
            continue
        literal = parse_literal(spot.node) if spot.node is not None else None
        if spot.kind == 'value' and literal is not None:
            found[dotted] = literal[1]
    return found


def has_bases(text: str) -> bool:
    """Says whether a text names other configs that it inherits."""
    names = {getattr(node, 'id', '') for node in ast.walk(ast.parse(text))}
    return bool(names & {'_base_', 'read_base'})
