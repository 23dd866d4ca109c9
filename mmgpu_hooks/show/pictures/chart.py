"""A picture that has not got its width yet, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable

from mmgpu_hooks.show.pictures.bars import Bar, draw_bars
from mmgpu_hooks.show.pictures.shapes import Picture


@dataclass(frozen=True)
class Chart:
    """A picture of any width."""

    name: str
    """Of its file, without an ending."""
    title: str
    description: str
    """What a reader who cannot see it is told."""
    draw: Callable[[float], Picture]


@dataclass(frozen=True)
class NoChart:
    """Why there is nothing to draw."""

    name: str
    title: str
    reason: str
    """A sentence."""


def chart_bars(
    name: str,
    title: str,
    description: str,
    bars: Sequence[Bar],
    *,
    is_share: bool = False,
) -> Chart:
    """Rows of bars as a chart; the arguments are those of :func:`draw_bars`."""

    def draw(width: float) -> Picture:
        return draw_bars(name, title, description, bars, width, is_share=is_share)

    return Chart(name, title, description, draw)
