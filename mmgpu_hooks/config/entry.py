"""Edits one entry of a parsed config in the style of the file. Pure."""

from __future__ import annotations

import libcst as cst

from mmgpu_hooks.config.display import (
    AnyEntry,
    Display,
    Entries,
    Slot,
    edit_entries,
    edit_insert,
    edit_remove,
    parse_entries,
)
from mmgpu_hooks.config.expression import (
    parse_template,
    render_code,
    render_module,
)
from mmgpu_hooks.config.locate import Spot
from mmgpu_hooks.config.outcome import Setting
from mmgpu_hooks.config.override import WIDTH

_LEADING_KEYS = (
    '_delete_',
    'batch_size',
    'num_workers',
    'persistent_workers',
    'prefetch_factor',
    'pin_memory',
    'pin_memory_device',
    'multiprocessing_context',
    'timeout',
    'drop_last',
)
"""Keys that OpenMMLab's configs put before the sampler and the dataset."""


def edit_node(
    module: cst.Module, index: int, old: cst.CSTNode, new: cst.CSTNode
) -> cst.Module:
    """Replaces one node of a statement; the other statements are the same objects."""
    statement = module.body[index].deep_replace(old, new)
    body = [*module.body[:index], statement, *module.body[index + 1 :]]
    return module.with_changes(body=body)


def edit_alias(module: cst.Module, spot: Spot, value: Setting) -> cst.Module:
    """Turns ``x = y`` into ``x = dict(y, key=value)``."""
    assert spot.node is not None
    source = parse_template(spot.node) or spot.node
    code = f'dict({render_code(source).strip()}, {spot.rest[0]}={value!r})'
    return edit_node(module, spot.index, spot.node, cst.parse_expression(code))


def edit_removal(module: cst.Module, spot: Spot) -> cst.Module:
    """Drops an entry."""
    owner = spot.owner
    assert owner is not None
    entries = edit_remove(parse_entries(owner), spot.position)
    return edit_node(module, spot.index, owner, edit_entries(owner, entries))


def is_alone(module: cst.Module, spot: Spot) -> bool:
    """Says whether a line sets this one entry and holds nothing else."""
    statement = module.body[spot.index]
    if (
        not isinstance(statement, cst.SimpleStatementLine)
        or len(statement.body) > 1
        or isinstance(statement.body[0], cst.AnnAssign)
        or statement.trailing_whitespace.comment
    ):
        return False
    value = getattr(statement.body[0], 'value', None)
    if spot.owner is None:
        return value is spot.node
    only = isinstance(spot.owner, cst.Call) and value is spot.owner
    return only and len(parse_entries(spot.owner).slots) == 1


def edit_missing(module: cst.Module, spot: Spot, value: Setting) -> cst.Module:
    """Adds an entry to the display that lacks it; a long line is broken there."""
    display = spot.node
    assert isinstance(display, (cst.Call, cst.Dict))
    entries = parse_entries(display)
    place = _place(entries, spot.rest[0])
    entry = _entry(display, spot.rest, value)
    one_line = place > 0 and _is_one_line(entries.slots[place - 1])
    margin = _margin(module.body[spot.index], display, entries) if one_line else None
    behind = margin if place < len(entries.slots) else None
    results = []
    for breaks in ((None, None), (None, behind), (margin, None), (margin, behind)):
        edited = edit_entries(display, edit_insert(entries, place, entry, breaks))
        result = edit_node(module, spot.index, display, edited)
        widest = _widest_line(module.body[spot.index], result.body[spot.index])
        results.append((widest, result))
        if widest <= _limit(module):
            return result
    return min(results, key=lambda pair: pair[0])[1]


def _place(entries: Entries, key: str) -> int:
    """Finds where a new key goes: behind the last of the short settings.

    A key that is none of them goes to the end. It never goes before a ``**x`` or a
    positional dict, which may hold the key as well.
    """
    if key not in _LEADING_KEYS:
        return len(entries.slots)
    known = [
        index + 1
        for index, slot in enumerate(entries.slots)
        if slot.key is None or slot.key in _LEADING_KEYS
    ]
    return max(known, default=0)


def _entry(display: Display, rest: tuple[str, ...], value: Setting) -> AnyEntry:
    code = repr(value)
    for key in reversed(rest[1:]):
        code = f'dict({key}={code})'
    literal = cst.parse_expression(code)
    if isinstance(display, cst.Dict):
        quote = _quote(display)
        return cst.DictElement(cst.SimpleString(f'{quote}{rest[0]}{quote}'), literal)
    equal = cst.AssignEqual(cst.SimpleWhitespace(''), cst.SimpleWhitespace(''))
    return cst.Arg(literal, keyword=cst.Name(rest[0]), equal=equal)


def _quote(display: cst.Dict) -> str:
    for element in display.elements:
        key = element.key if isinstance(element, cst.DictElement) else None
        if isinstance(key, cst.SimpleString):
            return key.quote[0]
    return "'"


def _is_one_line(slot: Slot) -> bool:
    return not isinstance(slot.gap, cst.ParenthesizedWhitespace)


def _limit(module: cst.Module) -> int:
    """Returns the columns of the file's longest line, within reason."""
    longest = max(map(len, render_module(module).splitlines()), default=0)
    return max(WIDTH, min(longest, 120))


def _widest_line(before: cst.CSTNode, after: cst.CSTNode) -> int:
    """Returns the length of the longest line that is new."""
    old = set(render_code(before).splitlines())
    new = (line for line in render_code(after).splitlines() if line not in old)
    return max(map(len, new), default=0)


def _margin(statement: cst.CSTNode, display: Display, entries: Entries) -> int:
    """Returns the column at which a display's entries start."""
    code = render_code(display)
    before = render_code(statement).partition(code)[0]
    column = len(before.rpartition('\n')[2])
    if isinstance(entries.lead, cst.ParenthesizedWhitespace):
        return len(entries.lead.last_line.value)
    return column + (5 if isinstance(display, cst.Call) else 1)
