"""Finds where a config file spells a setting, or says why that is unsafe. Pure.

The last statement that may write the setting decides; what is not understood is
refused with its line.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from mmgpu_hooks.config.entries import parse_entries
from mmgpu_hooks.config.outcome import RefusedError
from mmgpu_hooks.config.syntax import (
    UNKNOWN,
    Display,
    Module,
    Touch,
    is_display,
    parse_chain,
    parse_template,
)

KeyPath = tuple[str, ...]
"""A top-level name and the keys below it."""

_COPIES = (('copy', 'deepcopy'), ('copy', 'copy'), ('deepcopy',))


@dataclass(frozen=True)
class Place:
    """Where a setting is spelled, or where it is best added."""

    kind: Literal['value', 'missing', 'alias', 'override', 'inherited']
    """``value``: ``node`` is its value; ``missing``: ``node`` is the display that
    lacks it; ``alias``: ``node`` is another dict that the name stands for;
    ``override``: it needs a statement of its own after ``index``;
    ``inherited``: the file does not touch it."""

    index: int = -1
    """Index of the statement in the module's body."""

    node: Any = None
    """An expression."""

    rest: KeyPath = ()
    """The keys below ``node``; more than one where a dict is missing too."""

    owner: Display | None = None
    """The display whose entry ``node`` is."""

    position: int = 0
    """The entry's index in its owner."""


def locate_setting(module: Module, path: KeyPath) -> Place:
    """Finds the place of one setting.

    Args:
        module: The parsed config.
        path: The top-level name, such as ``train_dataloader``, and the keys below it.

    Raises:
        RefusedError: If the file spells it in a way that cannot be edited safely.
    """
    touches = _list_writers(module, path[0])
    own = [touch for touch in touches if not touch.inherited]
    starts = [i for i, touch in enumerate(own) if touch.is_start]
    own = own[starts[-1] :] if starts else own
    own = [touch for touch in own if touch.crosses(path[1:])]
    based = [one for one in touches if one.inherited and one.crosses(path[1:])]
    place = _locate_writer(module, path, own or based)
    if place.kind == 'missing' and '_delete_' not in _keys(place.node):
        # what the dict leaves to the base may have been written there
        inner = _locate_writer(module, path, based)
        place = inner if inner.kind == 'value' else place
    return place


def _list_writers(module: Module, name: str) -> list[Touch]:
    return [touch for touch in module.touches(name) if touch.how != 'read']


def _keys(display: Display) -> list[str | None]:
    return [entry.key for entry in parse_entries(display)]


def _refuse_unsafe(root: str, touch: Touch) -> None:
    if touch.conditional:
        raise RefusedError(
            f'expected {root} to be set in every run alike, found it changed below a '
            'condition, loop or the like; take it out of there, or change it by hand',
            touch.node.lineno,
        )
    if touch.how == 'lose':
        raise RefusedError(
            f'expected {root} to be assigned, found it deleted, imported or defined '
            'as a function; write it as a plain assignment',
            touch.node.lineno,
        )


def _locate_writer(module: Module, path: KeyPath, writers: Sequence[Touch]) -> Place:
    for touch in writers:
        _refuse_unsafe(path[0], touch)
    last = writers[-1].index if writers else -1
    space, keys = Place('inherited'), path[1:]
    for touch in reversed(writers):
        whole = touch.how == 'bind' and not touch.path
        if touch.how == 'change' or (touch.inherited and whole):
            return Place('override', last)
        if len(touch.path) > len(keys):
            raise RefusedError(
                f'expected {".".join(path)} to be set as a whole, found a part of it '
                'set here; change it by hand',
                touch.node.lineno,
            )
        if UNKNOWN in touch.path:
            return Place('override', last)
        rest = keys[len(touch.path) :]
        found: Place | None
        if touch.how == 'update':
            found = _locate_update(module, touch, rest)
            if len(rest) == 1 and not touch.node.args and None not in _keys(touch.node):
                space = Place('missing', touch.index, touch.node, rest)
        else:
            start = Place('value', touch.index, touch.node.value, rest)
            found = _descend(module, path[0], start)
        if found is not None:
            return replace(found, index=last) if found.kind == 'override' else found
    # nothing sets it, but what is inherited may be updated here already
    return space


def _locate_update(module: Module, touch: Touch, rest: KeyPath) -> Place | None:
    """Finds the setting in the arguments of ``x.update(...)``."""
    call = touch.node
    if not rest:
        return Place('override')
    found = None
    for position, entry in enumerate(parse_entries(call)):
        here = Place('value', touch.index, entry.value, rest[1:], call, position)
        if entry.key == rest[0]:
            found = _descend(module, module.code(call.func), here)
        elif entry.key is None and not is_display(entry.value):
            found = Place('override')
        elif entry.key is None:
            inner = _descend(module, module.code(call.func), replace(here, rest=rest))
            found = found if inner.kind == 'missing' else inner
    return found


def _descend(module: Module, root: str, place: Place) -> Place:
    """Follows the rest of a path through nested displays."""
    node, rest = place.node, place.rest
    if not rest:
        return place
    if isinstance(node, ast.List) and rest[0].isdigit():
        position = int(rest[0])
        starred = any(isinstance(one, ast.Starred) for one in node.elts)
        if position < len(node.elts) and not starred:
            inner = replace(place, node=node.elts[position], rest=rest[1:], owner=node)
            return _descend(module, root, replace(inner, position=position))
    if is_display(node):
        return _descend_display(module, root, place)
    if isinstance(node, ast.BinOp):
        return Place('override')
    if isinstance(node, (ast.IfExp, ast.BoolOp, ast.Compare)):
        wanted = 'the same dict in every run'
    elif len(rest) == 1 and place.owner is None and _is_dict_elsewhere(node):
        return replace(place, kind='alias')
    else:
        wanted = 'dict(...)'
    raise RefusedError(
        f'expected {root} = {wanted}, found {module.describe(node)}; write it as a '
        'literal there, or change it by hand',
        node.lineno,
    )


def _descend_display(module: Module, root: str, place: Place) -> Place:
    display: ast.Call | ast.Dict = place.node
    entries = parse_entries(display)
    key, rest = place.rest[0], place.rest[1:]
    found = [index for index, entry in enumerate(entries) if entry.key == key]
    if len(found) > 1:
        raise RefusedError(
            f'expected {key} once, found it {len(found)} times',
            entries[found[0]].value.lineno,
        )
    if found:
        # a literal key in dict(...) or after the last ** has the last word
        after = entries[found[0] :]
        if isinstance(display, ast.Dict) and any(one.key is None for one in after):
            return Place('override')
        value = entries[found[0]].value
        inner = replace(place, node=value, rest=rest, owner=display, position=found[0])
        return _descend(module, root, inner)
    for entry in entries:
        if isinstance(display, ast.Dict) or entry.key is not None:
            continue
        known = _parse_spread(module, entry.value)
        is_plain = entry.value in display.args and not isinstance(
            entry.value, (ast.Starred, ast.GeneratorExp)
        )
        # dict(**x, key=1) raises where x has the key
        if not is_plain and (known is None or key in known):
            return Place('override')
    return replace(place, kind='missing')


def _parse_spread(module: Module, node: ast.expr) -> list[str] | None:
    """Reads the keys of a dict or of a variable that holds one, ``None`` if unsure."""
    if isinstance(node, ast.Name):
        writers = _list_writers(module, node.id)
        if len(writers) != 1 or not writers[0].is_start or writers[0].inherited:
            return None
        node = writers[0].node.value
    if not isinstance(node, (ast.Call, ast.Dict)) or not is_display(node):
        return None
    keys = _keys(node)
    return None if None in keys else [key for key in keys if key is not None]


def _is_dict_elsewhere(node: ast.expr) -> bool:
    """Says whether a value stands for a dict that is defined elsewhere."""
    if parse_template(node) is not None:
        return True
    if isinstance(node, ast.Call):
        chain = parse_chain(node.func)
        method = len(chain) > 1 and chain[-1] == 'copy' and not node.args
        return chain in _COPIES or method
    return UNKNOWN not in parse_chain(node)
