"""Fewer points than cells, without hiding a peak; ``page.js`` does the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmgpu_hooks.show.pictures.timeline import Cell, Timeline, Track, merge_cells

_FAR = 4.0
"""A peak so many times the usual ones is cut, and marked, so that the rest shows."""
_KEPT = 2.0
_USUAL = 0.98
_LOOKED_AT = 430
"""Columns of the widest picture, about."""


@dataclass(frozen=True)
class Column:
    """What is drawn between two moments."""

    begin_s: float
    end_s: float
    cell: Cell | None


def fold_columns(timeline: Timeline, track: Track, most: int) -> list[Column]:
    """The cells of a track, or about ``most`` columns where they are more.

    A cell belongs to the column in which its middle lies. The mean of a column is
    weighted by iterations (by time for a share), its extremes are those of the cells.
    """
    if len(track.cells) <= most:
        return [
            Column(begin, end, cell)
            for begin, end, cell in zip(timeline.starts_s, timeline.ends_s, track.cells)
        ]
    low = timeline.begin_s
    width = (timeline.end_s - low) / most
    held: list[list[int]] = [[] for _ in range(most)]
    for index, (begin, end) in enumerate(zip(timeline.starts_s, timeline.ends_s)):
        place = int(((begin + end) / 2 - low) / width) if width > 0 else 0
        held[min(max(place, 0), most - 1)].append(index)
    return [
        Column(
            timeline.starts_s[inside[0]],
            timeline.ends_s[inside[-1]],
            merge_stretch(timeline, track, inside),
        )
        for inside in held
        if inside
    ]


def merge_stretch(
    timeline: Timeline, track: Track, inside: Sequence[int]
) -> Cell | None:
    cells, weights = [], []
    for index in inside:
        cell = track.cells[index]
        if cell is not None:
            cells.append(cell)
            weights.append(
                timeline.ends_s[index] - timeline.starts_s[index]
                if track.unit == '%'
                else timeline.iterations[index]
            )
    return merge_cells(cells, weights)


def find_top(columns: Sequence[Column]) -> float:
    """Up to where the axis reaches: the highest, unless it is far beyond the rest."""
    highs = sorted(column.cell.high for column in columns if column.cell)
    if not highs:
        return 0.0
    usual = highs[int(_USUAL * (len(highs) - 1))]
    return _KEPT * usual if highs[-1] > _FAR * usual > 0 else highs[-1]


def find_reaches(timelines: Sequence[Timeline | None]) -> dict[str, float]:
    """Up to where the axis of each track reaches, the same for runs side by side."""
    reaches: dict[str, float] = {}
    for timeline in timelines:
        if timeline is None:
            continue
        for track in timeline.tracks:
            top = find_top(fold_columns(timeline, track, _LOOKED_AT))
            reaches[track.title] = max(top, reaches.get(track.title, 0.0))
    return reaches


def split_runs(columns: Sequence[Column]) -> Iterator[list[Column]]:
    """Stretches in which the figure is known."""
    stretch: list[Column] = []
    for column in columns:
        if column.cell is None:
            if stretch:
                yield stretch
            stretch = []
        else:
            stretch.append(column)
    if stretch:
        yield stretch
