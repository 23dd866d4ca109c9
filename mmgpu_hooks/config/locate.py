"""Finds where a config file spells a setting. Pure.

The last statement that sets it decides. What is not understood is found nowhere: the
setting then gets a statement of its own at the end, and the proof is the judge.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from mmgpu_hooks.config.entries import parse_entries
from mmgpu_hooks.config.syntax import Display, Module, is_display, parse_chain

KeyPath = tuple[str, ...]
"""A top-level name and the keys below it."""


@dataclass(frozen=True)
class Place:
    """Where a setting is spelled, or where it is best added."""

    kind: Literal['value', 'missing', 'nowhere']
    """``value``: ``node`` is its value; ``missing``: ``node`` is the display that lacks
    it; ``nowhere``: it is inherited, or set in a way that is not understood."""

    node: Any = None
    """An expression."""

    rest: KeyPath = ()
    """The keys below ``node``; more than one where a dict is missing too."""

    owner: Display | None = None
    """The display whose entry ``node`` is."""

    position: int = 0
    """The entry's index in its owner."""

    statement: Any = None
    """In which all of it is."""


_NOWHERE = Place('nowhere')


def locate_setting(module: Module, path: KeyPath) -> Place:
    """Finds the place of one setting.

    Args:
        module: The parsed config.
        path: The top-level name, such as ``train_dataloader``, and the keys below it.
    """
    space: Place | None = None
    for statement in reversed(module.body):
        # most statements do not name it, and walking them would take long
        if path[0] not in module.code(statement):
            continue
        place = _locate_in(statement, path)
        if place is None:
            continue
        if place.kind == 'value':
            return place
        space = space or place
        # before x.update(...) without the key another statement may set it
        if place.kind == 'nowhere' or not isinstance(statement, ast.Expr):
            break
    return space or _NOWHERE


def _locate_in(statement: ast.stmt, path: KeyPath) -> Place | None:
    """The place of a setting in one statement; ``None`` if that does not set it."""
    targets, node = _parse_write(statement)
    if node is None or len(targets) != 1:
        parts: Sequence[ast.AST] = targets or [statement]
        names = (one for part in parts for one in ast.walk(part))
        is_named = any(parse_chain(one)[-1:] == path[:1] for one in names)
        return _NOWHERE if is_named else None
    keys = parse_chain(targets[0])
    keys = keys[1:] if keys[0] == '_base_' else keys
    if keys != path[: len(keys)]:
        return None
    return _descend(Place('value', node, path[len(keys) :], statement=statement))


def _parse_write(statement: ast.stmt) -> tuple[list[ast.expr], ast.expr | None]:
    """What is set, and to what: by ``x = y`` or ``x.update(y)``."""
    if isinstance(statement, ast.Assign):
        return statement.targets, statement.value
    if isinstance(statement, ast.AnnAssign):
        return [statement.target], statement.value
    call = statement.value if isinstance(statement, ast.Expr) else None
    function = call.func if isinstance(call, ast.Call) else None
    if not isinstance(function, ast.Attribute) or function.attr != 'update':
        return [], None
    assert isinstance(call, ast.Call)
    is_dict = len(call.args) == 1 and is_display(call.args[0])
    return [function.value], call.args[0] if is_dict else call


def _descend(place: Place) -> Place:
    """Follows the rest of a path through nested displays."""
    node, rest = place.node, place.rest
    if not rest:
        return place
    is_list = isinstance(node, ast.List)
    is_update = isinstance(place.statement, ast.Expr) and place.owner is None
    if not is_list and not is_display(node) and (not is_update or node.args):
        return _NOWHERE
    keys = [entry.key for entry in parse_entries(node)]
    values = [entry.value for entry in parse_entries(node)]
    if is_list:
        keys = [str(index) for index in range(len(values))]
    found = [index for index, key in enumerate(keys) if key == rest[0]]
    if not found:
        return _NOWHERE if is_list else replace(place, kind='missing')
    # the last one has the last word, unless **x comes after it
    index = found[-1]
    if isinstance(node, ast.Dict) and None in keys[index:]:
        return _NOWHERE
    inner = replace(place, node=values[index], rest=rest[1:], owner=node)
    return _descend(replace(inner, position=index))
