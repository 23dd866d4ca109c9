"""Adds or drops one entry of a ``dict(...)``, ``{...}`` or list, in its style. Pure.

An entry is read with what follows it up to the next entry or the bracket: perhaps a
comma, and the gap (blanks, newlines, comments).
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any

from mmgpu_hooks.config.outcome import Setting
from mmgpu_hooks.config.syntax import Display, Module, parse_string

Span = tuple[int, int, str]
"""Start and stop of a piece of text, and what replaces it."""

WIDTH = 79
"""Columns of a line in OpenMMLab's configs."""

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

_TOKEN = re.compile(r'#[^\r\n]*|.', re.DOTALL)
_LINES = re.compile(r'([^\r\n]*)(\r\n|\n|\r)(.*)\Z', re.DOTALL)


@dataclass(frozen=True)
class Entry:
    """One entry of a display."""

    key: str | None
    """What it spells, ``None`` for ``**x``, ``x`` or ``{x: y}``."""

    value: Any
    """The expression of its value."""

    stop: int = 0
    """Where its own text, closing brackets included, stops."""

    comma: int | None = None
    """Where the comma behind it is, ``None`` behind a last one that has none."""

    gap: str = ''
    """What stands between it (or its comma) and the next entry or the bracket."""

    @property
    def tail(self) -> int:
        """Where its gap starts."""
        return self.stop if self.comma is None else self.comma + 1


def parse_entries(display: Display) -> list[Entry]:
    """Lists keys and values of a display in the order of the text."""
    if isinstance(display, ast.List):
        return [Entry(None, value) for value in display.elts]
    if isinstance(display, ast.Dict):
        pairs = zip(display.keys, display.values)
        return [Entry(parse_string(key), value) for key, value in pairs]
    found = [Entry(None, value) for value in display.args]
    found += [Entry(item.arg, item.value) for item in display.keywords]
    return sorted(found, key=lambda one: (one.value.lineno, one.value.col_offset))


class Layout:
    """A display taken apart, blanks and comments included."""

    def __init__(self, module: Module, display: Display) -> None:
        self.module = module
        self.display = display
        start, stop = module.span(display)
        if isinstance(display, ast.Call):
            start = module.text.index('(', module.span(display.func)[1])
        self.start, self.stop = start + 1, stop - 1
        """Between the brackets."""
        self.lead = self._parse_gap(self.start)
        self.slots = [self._parse_slot(entry) for entry in parse_entries(display)]

    def _parse_gap(self, start: int) -> str:
        stop = start
        for token in _TOKEN.finditer(self.module.text, start, self.stop):
            if token.group()[0] != '#' and not token.group().isspace():
                break
            stop = token.end()
        return self.module.text[start:stop]

    def _parse_slot(self, entry: Entry) -> Entry:
        stop, comma = self.module.span(entry.value)[1], None
        for token in _TOKEN.finditer(self.module.text, stop, self.stop):
            if token.group() == ',':
                comma = token.start()
                break
            stop = token.end() if token.group() == ')' else stop
        gap = self._parse_gap(stop if comma is None else comma + 1)
        return Entry(entry.key, entry.value, stop, comma, gap)

    def insert(self, place: int, code: str, *breaks: int | None) -> Span:
        """Adds an entry, on a line of its own if others are.

        Args:
            place: Index of the slot it goes before.
            code: The entry.
            breaks: Columns to break the line to before and behind it; ``None``: none.
        """
        if not self.slots:
            return self.stop, self.stop, code
        if place == 0:
            before, after = self._split_lead()
            stop = self.start + len(self.lead)
            return self.start, stop, f'{before}{code},{after}'
        left, behind = self.slots[place - 1], ','
        if place < len(self.slots):
            before, after = _split_gap(left.gap, left.gap)
        else:
            before, after = _split_gap(left.gap, self._parse_style())
            behind = ',' if left.comma is not None else ''
        gaps = [
            gap if column is None else self.module.newline + ' ' * column
            for gap, column in zip((before, after), breaks)
        ]
        ahead = ',' if left.comma is None else ''
        text = f'{ahead}{gaps[0]}{code}{behind}{gaps[1]}'
        return left.tail, left.tail + len(left.gap), text

    def remove(self, index: int) -> Span:
        """Drops an entry, its comma and the comment on its own line."""
        gone, last = self.slots[index], index == len(self.slots) - 1
        stop = gone.tail + len(gone.gap)
        if index == 0:
            gap = _merge_gaps(self.lead, gone.gap, first=True, last=last)
            return self.start, stop, '' if last and '#' not in gap else gap
        left = self.slots[index - 1]
        gap = _merge_gaps(left.gap, gone.gap, first=False, last=last)
        spare = last and gone.comma is None
        if spare and '#' not in self.module.text[left.stop : left.tail]:
            # the last entry had no comma: the new last one gets none either
            return left.stop, stop, gap
        return left.tail, stop, gap

    def _parse_style(self) -> str:
        """Returns the gap the file would put behind its last but one entry."""
        if len(self.slots) > 1:
            return self.slots[-2].gap
        return self.lead if _is_broken(self.lead) else ' '

    def _split_lead(self) -> tuple[str, str]:
        lead, gap, alone = self.lead, self.slots[0].gap, len(self.slots) == 1
        if not _is_broken(lead):
            return lead, ' ' if alone else _bare_gap(gap)
        return _split_gap(lead, lead) if alone or _is_broken(gap) else (lead, gap)


def insert_entry(
    module: Module, display: Display, rest: tuple[str, ...], value: Setting
) -> Span:
    """Adds the entry that a display lacks; a long line is broken there.

    It goes behind the last of the short settings, or to the end where it is none of
    them; never before a ``**x`` or a positional dict, which may hold the key as well.
    """
    layout = Layout(module, display)
    slots = layout.slots
    place = len(slots)
    if rest[0] in _LEADING_KEYS:
        before = [i for i, s in enumerate(slots, 1) if s.key in (None, *_LEADING_KEYS)]
        place = max(before, default=0)
    code = repr(value)
    for key in reversed(rest[1:]):
        code = f'dict({key}={code})'
    key = f'{rest[0]}='
    if isinstance(display, ast.Dict):
        spelled = [module.code(one) for one in display.keys if parse_string(one)]
        quote = spelled[0][-1] if spelled else "'"
        key = f'{quote}{rest[0]}{quote}: '
    margin = None
    if place and not _is_broken(slots[place - 1].gap):
        margin = _parse_margin(layout)
    behind = margin if place < len(slots) else None
    longest = max(map(len, module.text.splitlines()), default=0)
    results = []
    for breaks in ((None, None), (None, behind), (margin, None), (margin, behind)):
        span = layout.insert(place, key + code, *breaks)
        widest = _widest_line(module, span)
        results.append((widest, span))
        if widest <= max(WIDTH, min(longest, 120)):
            return span
    return min(results, key=lambda pair: pair[0])[1]


def _widest_line(module: Module, span: Span) -> int:
    """Returns the length of the longest line that is new."""
    new = (module.text[: span[0]] + span[2] + module.text[span[1] :]).splitlines()
    old = set(module.text.splitlines())
    return max((len(line) for line in new if line not in old), default=0)


def _parse_margin(layout: Layout) -> int:
    """Returns the column at which a display's entries start."""
    start = layout.start + len(layout.lead)
    before = layout.module.text[:start]
    return start - max(before.rfind('\n'), before.rfind('\r')) - 1


def _is_broken(gap: str) -> bool:
    return '\n' in gap or '\r' in gap


def _split_gap(gap: str, style: str) -> tuple[str, str]:
    """Splits a gap around a new entry: the comment on its first line stays left."""
    if not _is_broken(style):
        return style, gap
    found = _LINES.match(gap)
    if found is None:
        return _bare_gap(style), gap
    first, newline, rest = found.groups()
    return first + _bare_gap(style), newline + rest


def _bare_gap(gap: str) -> str:
    """Drops comments and empty lines of a gap, keeping its indentation."""
    found = re.search(r'(\r\n|\n|\r)([^\r\n]*)\Z', gap)
    return found.group() if found else gap


def _merge_gaps(before: str, after: str, *, first: bool, last: bool) -> str:
    head = re.match(r'.*(\r\n|\n|\r)', before, re.DOTALL)
    tail = _LINES.match(after)
    if head and tail:
        return head.group() + tail[3]
    if tail:
        # the line's comment also speaks of the entries that stay on it
        return before if first and not last and '#' not in tail[3] else after
    if head:
        return after if last and '#' not in before else before
    return after if last else before
