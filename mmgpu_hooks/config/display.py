"""Edits the entries of a ``dict(...)``, ``{...}`` or list, keeping its style. Pure.

All are read into slots: an entry, its comma, and the gap (blanks, newlines,
comments) up to the next entry or the bracket. LibCST keeps that gap in four
different places; here it is in one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Union

import libcst as cst

from mmgpu_hooks.config.expression import parse_string

Display = Union[cst.Call, cst.Dict, cst.List]
"""A ``dict(...)`` call, a ``{...}`` literal or a list."""

AnyEntry = Union[cst.Arg, cst.BaseDictElement, cst.BaseElement]
"""An argument or an element; each has a value and a comma."""

Gap = cst.BaseParenthesizableWhitespace

_BLANK = cst.SimpleWhitespace('')
_SPACE = cst.SimpleWhitespace(' ')


@dataclass(frozen=True)
class Slot:
    """One entry of a display."""

    node: AnyEntry
    """The entry; the comma and the gap below count, not its own."""

    comma: cst.Comma | None
    """The comma behind it, ``None`` behind a last entry that has none."""

    gap: Gap
    """What stands between the comma and the next entry or the bracket."""

    @property
    def key(self) -> str | None:
        """Returns the key it spells, ``None`` for ``**x``, ``x`` or ``{x: y}``."""
        if isinstance(self.node, cst.Arg):
            return self.node.keyword.value if self.node.keyword else None
        if isinstance(self.node, cst.DictElement):
            return parse_string(self.node.key)
        return None

    @property
    def value(self) -> cst.BaseExpression:
        """Returns the expression of its value."""
        return self.node.value


@dataclass(frozen=True)
class Entries:
    """A display taken apart: the gap behind its opening bracket, and its slots."""

    lead: Gap
    slots: tuple[Slot, ...]


def parse_entries(display: Display) -> Entries:
    """Takes a display apart."""
    nodes: list[AnyEntry]
    if isinstance(display, cst.Call):
        lead, nodes = display.whitespace_before_args, [*display.args]
    elif isinstance(display, cst.Dict):
        lead, nodes = display.lbrace.whitespace_after, [*display.elements]
    else:
        lead, nodes = display.lbracket.whitespace_after, [*display.elements]
    slots = []
    for entry in nodes:
        node = entry
        comma = node.comma if isinstance(node.comma, cst.Comma) else None
        gap: Gap = comma.whitespace_after if comma else _BLANK
        if comma is None and isinstance(node, cst.Arg):
            gap = node.whitespace_after_arg
            node = node.with_changes(whitespace_after_arg=_BLANK)
        slots.append(Slot(node, comma, gap))
    if slots and isinstance(display, cst.Dict):
        slots[-1] = replace(slots[-1], gap=display.rbrace.whitespace_before)
    elif slots and isinstance(display, cst.List):
        slots[-1] = replace(slots[-1], gap=display.rbracket.whitespace_before)
    return Entries(lead, tuple(slots))


def edit_entries(display: Display, entries: Entries) -> Display:
    """Puts a display together again from edited entries."""
    nodes = []
    for slot in entries.slots:
        node = slot.node
        last = slot is entries.slots[-1]
        # A literal keeps its last gap in the closing bracket.
        inner = _BLANK if last and not isinstance(display, cst.Call) else slot.gap
        if slot.comma is not None:
            comma = slot.comma.with_changes(whitespace_after=inner)
            nodes.append(node.with_changes(comma=comma))
            continue
        node = node.with_changes(comma=cst.MaybeSentinel.DEFAULT)
        if isinstance(node, cst.Arg):
            node = node.with_changes(whitespace_after_arg=inner)
        nodes.append(node)
    if isinstance(display, cst.Call):
        return display.with_changes(whitespace_before_args=entries.lead, args=nodes)
    tail = entries.slots[-1].gap if entries.slots else _BLANK
    if isinstance(display, cst.List):
        return display.with_changes(
            lbracket=display.lbracket.with_changes(whitespace_after=entries.lead),
            elements=nodes,
            rbracket=display.rbracket.with_changes(whitespace_before=tail),
        )
    return display.with_changes(
        lbrace=display.lbrace.with_changes(whitespace_after=entries.lead),
        elements=nodes,
        rbrace=display.rbrace.with_changes(whitespace_before=tail),
    )


def edit_insert(
    entries: Entries,
    place: int,
    node: AnyEntry,
    breaks: tuple[int | None, int | None] = (None, None),
) -> Entries:
    """Adds an entry, on a line of its own if others are.

    Args:
        entries: The display taken apart.
        place: Index of the slot it goes before.
        node: The entry.
        breaks: Columns to break the line to before and behind it. Default: none.
    """
    slots = list(entries.slots)
    if not slots:
        return Entries(entries.lead, (Slot(node, None, _BLANK),))
    if place == 0:
        lead, after = _split_lead(entries)
        return Entries(lead, (Slot(node, cst.Comma(), after), *slots))
    left = slots[place - 1]
    comma: cst.Comma | None = cst.Comma()
    if place < len(slots):
        before, after = _split_gap(left.gap, left.gap)
    else:
        before, after = _split_gap(left.gap, _parse_style(entries))
        comma = None if left.comma is None else cst.Comma()
    before = before if breaks[0] is None else _line_break(breaks[0])
    after = after if breaks[1] is None else _line_break(breaks[1])
    slots[place - 1] = replace(left, comma=left.comma or cst.Comma(), gap=before)
    slots.insert(place, Slot(node, comma, after))
    return Entries(entries.lead, tuple(slots))


def edit_remove(entries: Entries, index: int) -> Entries:
    """Drops an entry, its comma and the comment on its own line."""
    slots = list(entries.slots)
    gone = slots.pop(index)
    before = slots[index - 1].gap if index else entries.lead
    last = index == len(slots)
    gap = _merge_gaps(before, gone.gap, first=index == 0, last=last)
    if index == 0:
        if not slots and not _has_comment(gap):
            gap = _BLANK
        return Entries(gap, tuple(slots))
    comma = slots[index - 1].comma
    if last and gone.comma is None and comma is not None:
        # The last entry had no comma: the new last one gets none either.
        comma = comma if _has_comment(comma.whitespace_before) else None
    slots[index - 1] = replace(slots[index - 1], comma=comma, gap=gap)
    return Entries(entries.lead, tuple(slots))


def _merge_gaps(before: Gap, after: Gap, *, first: bool, last: bool) -> Gap:
    multi_before = isinstance(before, cst.ParenthesizedWhitespace)
    if isinstance(before, cst.ParenthesizedWhitespace) and isinstance(
        after, cst.ParenthesizedWhitespace
    ):
        lines = (*before.empty_lines, *after.empty_lines)
        return before.with_changes(empty_lines=lines, last_line=after.last_line)
    if isinstance(after, cst.ParenthesizedWhitespace):
        # The line's comment also speaks of the entries that stay on it.
        own = any(line.comment for line in after.empty_lines)
        return before if first and not last and not own else after
    if multi_before:
        return after if last and not _has_comment(before) else before
    return after if last else before


def _parse_style(entries: Entries) -> Gap:
    """Returns the gap the file would put behind its last but one entry."""
    if len(entries.slots) > 1:
        return entries.slots[-2].gap
    multi = isinstance(entries.lead, cst.ParenthesizedWhitespace)
    return entries.lead if multi else _SPACE


def _split_lead(entries: Entries) -> tuple[Gap, Gap]:
    lead, gap = entries.lead, entries.slots[0].gap
    alone = len(entries.slots) == 1
    if not isinstance(lead, cst.ParenthesizedWhitespace):
        return lead, _SPACE if alone else _bare_gap(gap)
    if alone or isinstance(gap, cst.ParenthesizedWhitespace):
        return _split_gap(lead, lead)
    return lead, gap


def _split_gap(gap: Gap, style: Gap) -> tuple[Gap, Gap]:
    """Splits a gap around a new entry: the comment on its first line stays left."""
    if not isinstance(style, cst.ParenthesizedWhitespace):
        return style, gap
    if not isinstance(gap, cst.ParenthesizedWhitespace):
        return _bare_gap(style), gap
    before = gap.with_changes(empty_lines=(), last_line=style.last_line)
    return before, gap.with_changes(first_line=cst.TrailingWhitespace())


def _line_break(column: int) -> Gap:
    return cst.ParenthesizedWhitespace(last_line=cst.SimpleWhitespace(' ' * column))


def _bare_gap(gap: Gap) -> Gap:
    """Drops comments and empty lines of a gap, keeping its indentation."""
    if not isinstance(gap, cst.ParenthesizedWhitespace):
        return gap
    return gap.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=())


def _has_comment(gap: Gap) -> bool:
    if not isinstance(gap, cst.ParenthesizedWhitespace):
        return False
    return gap.first_line.comment is not None or any(
        line.comment for line in gap.empty_lines
    )
