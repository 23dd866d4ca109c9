"""What an edit is: a piece of the text, and what replaces it. Pure.

An entry of a ``dict(...)`` or ``{...}`` is added in its style. The others are
read with what follows it up to the next entry or the bracket: perhaps a comma, and the
gap (blanks, newlines, comments).
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from mmgpu_hooks.config.loading import KeyPath, Setting
from mmgpu_hooks.config.syntax import (
    Display,
    Entry,
    Module,
    parse_entries,
    parse_string,
)

Span = tuple[int, int, str]
"""Start and stop of a piece of text, and what replaces it."""

INHERIT, UPDATE, REBIND = '{0} = dict({1})', '{0}.update({1})', '{0} = dict({0}, {1})'
"""Statements that set a key of a name. MMEngine merges the first over the base's; what
else stands for the same dict does not see the last."""

HOOK_ROOTS = ('default_hooks', 'custom_hooks')
"""The names that hold hooks."""

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
_BREAK = re.compile(r'\r\n|\n|\r')


@dataclass(frozen=True)
class Edit:
    """An edit of the text."""

    span: Span
    note: str | None = None
    variable: str | None = None
    """The variable that is changed, as nothing else uses it."""


class Layout:
    """A display taken apart, blanks and comments included."""

    def __init__(self, module: Module, display: Display) -> None:
        self.text, self.newline = module.text, module.newline
        start, stop = module.span(display)
        if isinstance(display, ast.Call):
            start = self.text.index('(', module.span(display.func)[1])
        self.start, self.stop = start + 1, stop - 1
        """Between the brackets."""
        self.lead = self._parse_gap(self.start)
        self.slots = [
            self._parse_slot(entry, module.span(entry.value)[1])
            for entry in parse_entries(display)
        ]

    def _parse_gap(self, start: int) -> str:
        stop = start
        for token in _TOKEN.finditer(self.text, start, self.stop):
            if token.group()[0] != '#' and not token.group().isspace():
                break
            stop = token.end()
        return self.text[start:stop]

    def _parse_slot(self, entry: Entry, stop: int) -> Entry:
        comma = None
        for token in _TOKEN.finditer(self.text, stop, self.stop):
            if token.group() == ',':
                comma = token.start()
                break
            stop = token.end() if token.group() == ')' else stop
        gap = self._parse_gap(stop if comma is None else comma + 1)
        return Entry(entry.key, entry.value, stop, comma, gap)

    def insert(self, place: int, code: str) -> Span:
        """Adds an entry before a slot, on a line of its own if others are."""
        if not self.slots:
            return self.stop, self.stop, code
        left = self.slots[place - 1]
        start, gap, comma = left.tail, left.gap, left.comma is not None
        if place == 0:
            start, gap, comma = self.start, self.lead, True
        is_last = place == len(self.slots)
        style = gap
        if is_last:
            style = self.slots[-2].gap if place > 1 else self.lead or ' '
        ahead, behind = '' if comma else ',', ',' if comma or not is_last else ''
        stop = start + len(gap)
        if _is_broken(style):
            own_line = _bare_gap(style)
            line, rest = _split_gap(gap)
            return start, stop, f'{ahead}{line}{own_line}{code}{behind}{rest}'
        before, after = style, gap
        if place == 0:
            before, after = self.lead, _bare_gap(self.slots[0].gap)
            after = ' ' if len(self.slots) == 1 else after
        span = start, stop, f'{ahead}{before}{code}{behind}{after}'
        if self._is_too_long(span):
            # the line is broken behind the entry, or before it where it is the last
            margin = self.newline + ' ' * self._find_margin()
            before, after = (margin, after) if is_last else (before, margin)
            span = start, stop, f'{ahead}{before}{code}{behind}{after}'
        return span

    def _is_too_long(self, span: Span) -> bool:
        head = _BREAK.split(self.text[: span[0]])[-1]
        tail = _BREAK.split(self.text[span[1] :])[0]
        return len(head) + len(_BREAK.split(span[2] + tail)[0]) > WIDTH

    def _find_margin(self) -> int:
        """Returns the column at which the entries start."""
        return len(_BREAK.split(self.text[: self.start + len(self.lead)])[-1])


def insert_entry(
    module: Module, display: Display, rest: tuple[str, ...], value: Setting
) -> Span:
    """Adds the entry that a display lacks.

    It goes behind the last of the short settings, or to the end where it is none of
    them; never before a ``**x`` or a positional dict, which may hold the key as well.
    """
    layout = Layout(module, display)
    place = len(layout.slots)
    if rest[0] in _LEADING_KEYS:
        short = (None, *_LEADING_KEYS)
        before = [i for i, one in enumerate(layout.slots, 1) if one.key in short]
        place = max(before, default=0)
    key = f'{rest[0]}='
    if isinstance(display, ast.Dict):
        spelled = [module.code(one) for one in display.keys if parse_string(one)]
        quote = spelled[0][-1] if spelled else "'"
        key = f'{quote}{rest[0]}{quote}: '
    return layout.insert(place, key + render_value(rest[1:], value))


def render_value(keys: tuple[str, ...], value: Setting) -> str:
    """Renders a value below the keys of a dict."""
    code = repr(value)
    for key in reversed(keys):
        code = f'dict({key}={code})'
    return code


def render_statement(form: str, path: KeyPath, value: Setting) -> str:
    """Renders a statement that sets a key of a name."""
    if form == UPDATE and len(path) > 2 and path[0] not in HOOK_ROOTS:
        # what else the inner dict holds stays
        holder = ''.join(f'.setdefault({key!r}, dict())' for key in path[1:-1])
        return form.format(path[0] + holder, f'{path[-1]}={value!r}')
    code = render_value(path[2:], value)
    return form.format(path[0], f'{path[1]}={code}')


def append(text: str, newline: str, statement: str) -> Span:
    """Adds a statement at the end, after a blank line of its own."""
    ended = not text or text.endswith(('\n', '\r'))
    gap = '' if not text else newline if ended else newline + newline
    return len(text), len(text), f'{gap}{statement}{newline if ended else ""}'


def _is_broken(gap: str) -> bool:
    return _BREAK.search(gap) is not None


def _split_gap(gap: str) -> tuple[str, str]:
    """Splits a gap before its first newline; the comment ahead of it stays left."""
    found = _BREAK.search(gap)
    return ('', gap) if found is None else (gap[: found.start()], gap[found.start() :])


def _bare_gap(gap: str) -> str:
    """Drops comments and empty lines of a gap, keeping its indentation."""
    found = re.search(r'(\r\n|\n|\r)[^\r\n]*\Z', gap)
    return found.group() if found else gap
