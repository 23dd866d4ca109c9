"""Finds where a config file spells a setting, or says why that is unsafe.

Pure: a parsed file in, a :class:`Spot` out. The last statement that may write the
setting decides; what is not understood is refused with its line.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Literal

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from mmgpu_hooks.config.borrowed import (
    deletes_base,
    is_borrowed,
    is_dict_elsewhere,
    is_start,
    parse_keys,
)
from mmgpu_hooks.config.display import Display, parse_entries
from mmgpu_hooks.config.expression import (
    is_display,
    render_code,
    render_found,
)
from mmgpu_hooks.config.outcome import RefusedError
from mmgpu_hooks.config.statements import Touch, parse_touches

Path = tuple[str, ...]
"""The keys below a top-level name that lead to a setting."""

_ADVICE = 'write it as a literal there, or change it by hand'


@dataclass(frozen=True)
class Spot:
    """Where a setting is spelled, or where it is best added."""

    kind: Literal['value', 'missing', 'alias', 'gone', 'override', 'inherited']
    """``value``: ``node`` is its value; ``missing``: ``node`` is the display that
    lacks it; ``alias``: ``node`` is another dict that the name stands for;
    ``gone``: ``x.pop('k')`` or ``del x['k']`` takes it out behind all else;
    ``override``: it needs a statement of its own behind ``index``;
    ``inherited``: the file does not touch it."""

    index: int = -1
    """Index of the statement in the module's body."""

    node: cst.BaseExpression | None = None
    rest: Path = ()
    """The keys below ``node``; more than one where a dict is missing too."""

    owner: Display | None = None
    """The display whose entry ``node`` is."""

    position: int = 0
    """The entry's index in its owner."""

    certain: bool = True
    """Whether a ``missing`` setting is in nothing that is spread into ``node``."""

    shared: bool = False
    """Whether other statements use the same dict, and would see it change."""


def locate_setting(
    module: cst.Module, root: str, path: Path, together: AbstractSet[int] = frozenset()
) -> Spot:
    """Finds the place of one setting.

    Args:
        module: The parsed config.
        root: The top-level name, such as ``train_dataloader``.
        path: The keys below it.
        together: Statements that share the dict and are to see the change.

    Raises:
        RefusedError: If the file spells it in a way that cannot be edited safely.
    """
    touches = parse_touches(module, root)
    own = [touch for touch in touches if not touch.inherited]
    starts = [i for i, touch in enumerate(own) if is_start(touch)]
    every = own[starts[-1] :] if starts else own
    live = [touch for touch in every if touch.crosses(path)]
    if all(touch.how == 'read' for touch in live):
        live = [t for t in touches if t.inherited and t.crosses(path)]
    writers = [touch for touch in live if touch.how != 'read']
    for touch in writers:
        _refuse_unsafe(module, root, touch)
    spot = _locate_writer(module, root, path, writers)
    if spot.kind == 'missing' and not deletes_base(spot.node):
        # What the dict leaves to the base may have been written there.
        based = [t for t in touches if t.inherited and t.crosses(path)]
        inner = _locate_writer(
            module, root, path, [t for t in based if t.how != 'read']
        )
        if inner.kind == 'value':
            spot, live = inner, based
    readers = [t for t in live if t.how == 'read' and t.index not in together]
    shared = bool(readers) and bool(writers)
    if starts and is_borrowed(every[0].value):
        # What changes the borrowed dict must go on changing it.
        others = [touch for touch in every[1:] if touch.how != 'read']
        shared = bool(others) or spot.kind == 'override'
    elif any(touch.how == 'change' and not touch.path for touch in writers):
        # Another name may stand for the dict that was put there.
        shared = True
    behind = shared or spot.kind in ('override', 'gone')
    if writers and writers[0].inherited and behind:
        return Spot('inherited')
    return replace(spot, shared=shared)


def _refuse_unsafe(module: cst.Module, root: str, touch: Touch) -> None:
    if touch.conditional:
        raise RefusedError(
            f'expected {root} to be set in every run alike, found it changed below a '
            'condition, loop or the like; take it out of there, or change it by hand',
            line_of(module, touch.node),
        )
    if touch.how == 'lose':
        raise RefusedError(
            f'expected {root} to be assigned, found it deleted, imported or defined '
            'as a function; write it as a plain assignment',
            line_of(module, touch.node),
        )


def _locate_writer(
    module: cst.Module, root: str, path: Path, writers: Sequence[Touch]
) -> Spot:
    last = writers[-1].index if writers else -1
    room = Spot('inherited')
    for touch in reversed(writers):
        if touch.path == path and _takes_out(touch.node):
            return Spot('gone', last)
        whole = touch.how == 'bind' and not touch.path
        if touch.how == 'change' or (touch.inherited and whole):
            return Spot('override', last)
        if len(touch.path) > len(path):
            raise RefusedError(
                f'expected {".".join((root, *path))} to be set as a whole, found a '
                'part of it set here; change it by hand',
                line_of(module, touch.node),
            )
        if '?' in touch.path:
            return Spot('override', last)
        rest = path[len(touch.path) :]
        if touch.how == 'update':
            assert isinstance(touch.node, cst.Call)
            spot = _locate_update(module, touch, touch.node, rest)
            if len(rest) == 1 and all(arg.keyword for arg in touch.node.args):
                room = Spot('missing', touch.index, touch.node, rest)
        else:
            start = Spot('value', touch.index, touch.value, rest)
            spot = _descend(module, root, start)
        if spot is not None:
            return replace(spot, index=last) if spot.kind == 'override' else spot
    # Nothing sets it, but what is inherited is updated here already.
    return room


def _takes_out(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return node.func.attr.value == 'pop'
    return isinstance(node, cst.Del)


def _locate_update(
    module: cst.Module, touch: Touch, call: cst.Call, rest: Path
) -> Spot | None:
    """Finds the setting in the arguments of ``x.update(...)``."""
    if not rest:
        return Spot('override')
    spots: list[Spot | None] = []
    for position, slot in enumerate(parse_entries(call).slots):
        here = Spot('value', touch.index, slot.value, rest[1:], call, position)
        if slot.key == rest[0]:
            spots.append(_descend(module, call_name(call), here))
        elif slot.key is None and not is_display(slot.value):
            spots.append(Spot('override'))
        elif slot.key is None:
            inner = _descend(module, call_name(call), replace(here, rest=rest))
            spots.append(None if inner.kind == 'missing' else inner)
    found = [spot for spot in spots if spot is not None]
    return found[-1] if found else None


def call_name(call: cst.Call) -> str:
    """Names the called function."""
    return render_code(call.func)


def _descend(module: cst.Module, root: str, spot: Spot) -> Spot:
    """Follows the rest of a path through nested displays."""
    node, rest = spot.node, spot.rest
    assert node is not None
    if not rest:
        return spot
    if isinstance(node, cst.List) and rest[0].isdigit():
        position = int(rest[0])
        if position < len(node.elements):
            element = node.elements[position]
            if not any(isinstance(e, cst.StarredElement) for e in node.elements):
                inner = replace(spot, node=element.value, rest=rest[1:], owner=node)
                return _descend(module, root, replace(inner, position=position))
    if is_display(node):
        assert isinstance(node, (cst.Call, cst.Dict))
        return _descend_display(module, root, spot, node)
    if isinstance(node, (cst.IfExp, cst.BooleanOperation, cst.Comparison)):
        wanted = 'the same dict in every run'
    elif isinstance(node, cst.BinaryOperation):
        return Spot('override')
    elif len(rest) == 1 and spot.owner is None and is_dict_elsewhere(module, node):
        return replace(spot, kind='alias')
    else:
        wanted = 'dict(...)'
    raise RefusedError(
        f'expected {root} = {wanted}, found {render_found(node)}; {_ADVICE}',
        line_of(module, node),
    )


def _descend_display(
    module: cst.Module, root: str, spot: Spot, display: cst.Call | cst.Dict
) -> Spot:
    slots = parse_entries(display).slots
    key, rest = spot.rest[0], spot.rest[1:]
    found = [index for index, slot in enumerate(slots) if slot.key == key]
    if len(found) > 1:
        raise RefusedError(
            f'expected {key} once, found it {len(found)} times',
            line_of(module, slots[found[0]].value),
        )
    if found:
        # A literal key in dict(...) or behind the last ** has the last word.
        value = slots[found[0]].value
        hidden = isinstance(display, cst.Dict) and any(
            slot.key is None for slot in slots[found[0] :]
        )
        if hidden:
            return Spot('override')
        inner = replace(spot, node=value, rest=rest, owner=display, position=found[0])
        return _descend(module, root, inner)
    certain = True
    for slot in slots:
        keys = set() if slot.key else parse_keys(module, slot.value)
        if keys is None or key in keys:
            if isinstance(slot.node, cst.Arg) and slot.node.star:
                # dict(**x, key=1) raises where x has the key.
                return Spot('override')
            certain = False
    return replace(spot, kind='missing', certain=certain)


def line_of(module: cst.Module, node: cst.CSTNode) -> int | None:
    """Returns the line of a node, from 1; takes as long as parsing."""
    wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
    found = wrapper.resolve(PositionProvider).get(node)
    return found.start.line if found else None


def lines_of(module: cst.Module, statement: cst.CSTNode) -> tuple[int, int]:
    """Returns the first and last line of a statement, from 1."""
    wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
    found = wrapper.resolve(PositionProvider)[statement]
    return found.start.line, found.end.line
