"""A run over time: what is drawn, and what the page's script zooms into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.show.pictures.moments import Moment, find_moments
from mmgpu_hooks.show.reported_run import ReportedRun

MOST_CELLS = 120_000
"""Cells a page holds at most, all runs together: neighbours are merged beyond."""


@dataclass(frozen=True)
class Cell:
    """What one quantity came to in one interval, or in some merged ones."""

    mean: float
    low: float
    """Smallest mean of an interval."""
    high: float
    """Largest mean of an interval."""


@dataclass(frozen=True)
class Track:
    """One quantity over the cells of a timeline."""

    title: str
    unit: str
    """``s`` per iteration, or ``%``."""
    role: str
    cells: tuple[Cell | None, ...]
    """``None`` where it is unknown."""


@dataclass(frozen=True)
class Timeline:
    """A run in cells of time."""

    starts_s: tuple[float, ...]
    """Since training began, as all times here."""
    ends_s: tuple[float, ...]
    iterations: tuple[int, ...]
    """Iterations in each cell."""
    last_iterations: tuple[int, ...]
    tracks: tuple[Track, ...]
    moments: tuple[Moment, ...]
    merged: int = 1
    """Intervals in a cell, at most."""
    begin_s: float = 0.0
    """Where the axis begins: when training did."""

    @property
    def end_s(self) -> float:
        """Where the axis ends."""
        return self.ends_s[-1]


def fold_timelines(runs: Sequence[ReportedRun]) -> list[Timeline | None]:
    """Of each run; all together have at most :data:`MOST_CELLS` cells."""
    most_cells = max(MOST_CELLS // max(len(runs), 1), 1)
    return [
        fold_timeline(run.answer.summary, most_cells) if run.answer.summary else None
        for run in runs
    ]


def fold_timeline(run: Run, most_cells: int = MOST_CELLS) -> Timeline | None:
    """A run's intervals as cells; ``None`` when it has none.

    Args:
        run: One rank's.
        most_cells: Neighbouring intervals are merged until there are no more.
    """
    count = len(run.intervals)
    if not count:
        return None
    merged = -(-count // most_cells)
    groups = [range(n, min(n + merged, count)) for n in range(0, count, merged)]
    ends_s = run.column('elapsed_s').tolist()
    durations_s = run.column('duration_s').tolist()
    iterations = [interval.iterations for interval in run.intervals]
    waits_s = _means(run, 'data_wait.total_s')
    steps_s = _means(run, 'step.total_s')
    utils_pct = run.every.values('gpu.util_pct')
    return Timeline(
        starts_s=tuple(ends_s[g[0]] - durations_s[g[0]] for g in groups),
        ends_s=tuple(ends_s[group[-1]] for group in groups),
        iterations=tuple(sum(iterations[n] for n in group) for group in groups),
        last_iterations=tuple(run.intervals[g[-1]].iteration for g in groups),
        tracks=(
            Track('Data wait', 's', 'data_wait', _cells(groups, waits_s, iterations)),
            Track('Step', 's', 'step', _cells(groups, steps_s, iterations)),
            Track(
                'GPU utilisation', '%', 'gpu', _cells(groups, utils_pct, durations_s)
            ),
        ),
        moments=tuple(sorted(find_moments(run), key=lambda moment: moment.at_s)),
        merged=merged,
    )


def _means(run: Run, field: str) -> list[float | None]:
    pairs = zip(run.every.values(field), run.intervals)
    return [
        total / interval.iterations if interval.iterations else None
        for total, interval in pairs
    ]


def _cells(
    groups: Sequence[range],
    values: Sequence[float | None],
    weights: Sequence[float],
) -> tuple[Cell | None, ...]:
    """One cell a group of intervals."""
    cells = [None if value is None else Cell(value, value, value) for value in values]
    if all(len(group) == 1 for group in groups):
        return tuple(cells)
    merged = []
    for group in groups:
        known = [(cell, weights[n]) for n in group if (cell := cells[n]) is not None]
        merged.append(merge_cells([c for c, _ in known], [w for _, w in known]))
    return tuple(merged)


def merge_cells(cells: Sequence[Cell], weights: Sequence[float]) -> Cell | None:
    """The weighted mean of cells, between the smallest and the largest of them."""
    if not cells:
        return None
    whole = sum(weights)
    mean = (
        sum(cell.mean * weight for cell, weight in zip(cells, weights)) / whole
        if whole > 0
        else sum(cell.mean for cell in cells) / len(cells)
    )
    low, high = min(c.low for c in cells), max(c.high for c in cells)
    return Cell(min(max(mean, low), high), low, high)
