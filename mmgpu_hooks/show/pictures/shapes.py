"""What a picture is made of: a few shapes in pixels, coloured by the role they play."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Union

FONT_SIZE = 13.0
_GLYPH_WIDTH = 0.56
"""Mean advance of a sans-serif digit or lower-case letter, over its size."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    role: str
    """A colour of :mod:`mmgpu_hooks.show.pictures.palette`."""
    tip: str = ''
    """Shown when the pointer rests on it."""


@dataclass(frozen=True)
class Line:
    """One or more open polylines, stroked."""

    points: Sequence[Sequence[Point]]
    role: str
    width: float = 1.0
    dash: str = ''
    """As SVG has it: ``4 3``."""


@dataclass(frozen=True)
class Area:
    """One or more closed polygons, filled translucently."""

    points: Sequence[Sequence[Point]]
    role: str


@dataclass(frozen=True)
class Label:
    """A line of text."""

    x: float
    y: float
    """Of the base line."""
    text: str
    role: str = 'ink'
    anchor: str = 'start'
    """``start``, ``middle`` or ``end``."""
    size: float = FONT_SIZE
    bold: bool = False


@dataclass(frozen=True)
class Mark:
    """A small sign whose shape, not only whose colour, says what it is."""

    x: float
    y: float
    """Of its centre."""
    kind: str
    """``circle``, ``diamond``, ``triangle`` or ``bar``."""
    role: str
    size: float = 8.0
    tip: str = ''


@dataclass(frozen=True)
class Layer:
    """Shapes that the page's script may draw anew."""

    name: str
    shapes: Sequence[Shape]


Shape = Union[Box, Line, Area, Label, Mark, Layer]


@dataclass(frozen=True)
class Picture:
    """A drawing with what a reader who cannot see it is told."""

    name: str
    """Of the file, and of the element."""
    title: str
    description: str
    width: float
    height: float
    shapes: Sequence[Shape] = field(default_factory=tuple)


def text_width(text: str, size: float = FONT_SIZE) -> float:
    """About how wide a line of text is, in pixels."""
    return len(text) * size * _GLYPH_WIDTH


def shorten(text: str, width: float, size: float = FONT_SIZE) -> str:
    """Text that fits into ``width``: its middle is left out where it does not."""
    most = int(width / (size * _GLYPH_WIDTH))
    if len(text) <= most:
        return text
    head = max((most - 1) // 2, 1)
    tail = max(most - 1 - head, 1)
    return f'{text[:head]}…{text[-tail:]}'
