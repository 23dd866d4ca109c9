"""Rows of bars of one or more segments: the picture of everything that adds up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmgpu_hooks.show.pictures.scales import Scale
from mmgpu_hooks.show.pictures.shapes import (
    Box,
    Label,
    Picture,
    Shape,
    shorten,
    text_width,
)

WIDTHS = {'wide': 920.0, 'medium': 560.0, 'narrow': 380.0}
"""Of a picture, in pixels; the page shows the one that fits."""

_BAR = 22.0
_GAP = 9.0
_LINE = 17.0
_SMALL = 12.0
_SWATCH = 11.0
_ABOVE_BELOW = 500.0
"""Width under which labels stand above their bars, not beside them."""


@dataclass(frozen=True)
class Segment:
    """A part of a bar."""

    name: str
    value: float
    text: str
    """The value with its unit."""
    role: str


@dataclass(frozen=True)
class Bar:
    """One row."""

    label: str
    segments: tuple[Segment, ...]
    text: str
    """At its end: the whole with its unit."""


def draw_bars(
    name: str,
    title: str,
    description: str,
    bars: Sequence[Bar],
    width: float,
    *,
    is_share: bool = False,
) -> Picture:
    """Bars on one scale, which begins at 0.

    Args:
        name: Of the picture.
        title: What it shows.
        description: What it says, for those who do not see it.
        bars: From top to bottom.
        width: In pixels.
        is_share: Draw every bar as long as the room is, its segments as shares.
    """
    keys = _number_segments(bars)
    is_narrow = width < _ABOVE_BELOW
    shapes: list[Shape] = list(_legend(keys, width)) if len(keys) > 1 else []
    top = max((s.y for s in shapes if isinstance(s, Label)), default=-_GAP) + _GAP
    left = 0.0 if is_narrow else _label_room(bars, width)
    right = width if is_narrow else width - _text_room(bars)
    longest = max((_sum(bar) for bar in bars), default=0.0)
    for bar in bars:
        base = top + _LINE - 4
        if is_narrow:
            room = width - text_width(bar.text) - 12
            shapes += _label(bar.label, base, room)
            shapes.append(Label(width, base, bar.text, 'ink', 'end'))
            top += _LINE + 2
        else:
            shapes += _label(bar.label, base + 2, left - 12)
            shapes.append(Label(width, base + 2, bar.text, 'ink', 'end'))
        whole = _sum(bar) if is_share else longest
        shapes += _draw_bar(bar, keys, Scale(0, whole or 1.0, left, right), top)
        top += _BAR + _GAP
    return Picture(name, title, description, width, top, tuple(shapes))


def _sum(bar: Bar) -> float:
    return sum(segment.value for segment in bar.segments)


def _number_segments(bars: Sequence[Bar]) -> dict[str, tuple[int, str]]:
    """Number and colour of each name, in the order of the bars."""
    keys: dict[str, tuple[int, str]] = {}
    for bar in bars:
        for segment in bar.segments:
            keys.setdefault(segment.name, (len(keys) + 1, segment.role))
    return keys


def _label_room(bars: Sequence[Bar], width: float) -> float:
    widest = max((text_width(bar.label) for bar in bars), default=0.0)
    return min(widest + 16, width / 3) if widest else 0.0


def _text_room(bars: Sequence[Bar]) -> float:
    return max((text_width(bar.text) for bar in bars), default=0.0) + 12


def _legend(keys: dict[str, tuple[int, str]], width: float) -> Iterator[Shape]:
    x, base = 0.0, 12.0
    for name, (number, role) in keys.items():
        words = f'{number} {name}'
        needs = _SWATCH + 6 + text_width(words, _SMALL) + 14
        if x and x + needs > width:
            x, base = 0.0, base + _LINE
        yield Box(x, base - _SWATCH + 1, _SWATCH, _SWATCH, role)
        yield Label(x + _SWATCH + 6, base, words, 'faint', size=_SMALL)
        x += needs


def _label(words: str, base: float, room: float) -> Iterator[Shape]:
    """A single bar needs none."""
    if words:
        yield Label(0, base, shorten(words, room))


def _draw_bar(
    bar: Bar, keys: dict[str, tuple[int, str]], scale: Scale, top: float
) -> Iterator[Shape]:
    yield Box(scale.start, top + _BAR - 1, scale.end - scale.start, 1, 'rule')
    begin = 0.0
    for segment in bar.segments:
        x, end = scale(begin), scale(begin + segment.value)
        begin += segment.value
        if segment.value <= 0:
            continue
        # a hair of paper between neighbours, but never nothing of what is there
        span = max(end - x - 1, 0.8)
        tip = f'{bar.label}: {segment.name} {segment.text}'.lstrip(': ')
        yield Box(x, top, span, _BAR, segment.role, tip)
        if len(keys) < 2:
            continue
        number = str(keys[segment.name][0])
        for words in (f'{number} {segment.name}', number):
            if text_width(words, _SMALL) + 8 <= span:
                yield Label(x + 5, top + _BAR - 7, words, 'on_fill', size=_SMALL)
                break
