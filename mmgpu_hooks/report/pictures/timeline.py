"""A run over time: what is drawn, and what the page's script zooms into."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Callable, Optional

from mmgpu_hooks.records import IntervalRecord, RunEvidence, SaveRecord
from mmgpu_hooks.report.figures import format_seconds
from mmgpu_hooks.report.reported_run import ReportedRun

Look = Callable[[IntervalRecord], tuple[Optional[float], float]]
"""A record's figure and the weight it has."""

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
class Moment:
    """Something that happened between iterations."""

    at_s: float
    kind: str
    """``epoch``, ``save`` or ``validation``."""
    words: str


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
        fold_timeline(run.evidence, run.saves, most_cells) if run.evidence else None
        for run in runs
    ]


def fold_timeline(
    evidence: RunEvidence,
    saves: Sequence[SaveRecord] = (),
    most_cells: int = MOST_CELLS,
) -> Timeline | None:
    """A run's intervals as cells; ``None`` when it has none.

    Args:
        evidence: One rank's.
        saves: Of the rank that makes them for all.
        most_cells: Neighbouring intervals are merged until there are no more.
    """
    intervals = evidence.intervals
    if not intervals:
        return None
    merged = -(-len(intervals) // most_cells)
    groups = [
        intervals[first : first + merged] for first in range(0, len(intervals), merged)
    ]
    tracks = (
        Track('Data wait', 's', 'data_wait', tuple(_cells(groups, _wait))),
        Track('Step', 's', 'step', tuple(_cells(groups, _step))),
        Track('GPU utilisation', '%', 'gpu', tuple(_cells(groups, _util))),
    )
    return Timeline(
        starts_s=tuple(g[0].elapsed_s - g[0].duration_s for g in groups),
        ends_s=tuple(group[-1].elapsed_s for group in groups),
        iterations=tuple(sum(r.iterations for r in group) for group in groups),
        last_iterations=tuple(group[-1].iteration for group in groups),
        tracks=tracks,
        moments=tuple(
            sorted(_moments(evidence, saves), key=lambda moment: moment.at_s)
        ),
        merged=merged,
    )


def _wait(record: IntervalRecord) -> tuple[float | None, float]:
    return record.data_wait.mean_s, record.iterations


def _step(record: IntervalRecord) -> tuple[float | None, float]:
    return record.step.mean_s, record.iterations


def _util(record: IntervalRecord) -> tuple[float | None, float]:
    return record.gpu.util_pct if record.gpu else None, record.duration_s


def _cells(
    groups: Sequence[Sequence[IntervalRecord]],
    look: Look,
) -> Iterator[Cell | None]:
    for group in groups:
        seen = [look(record) for record in group]
        known = [(value, weight) for value, weight in seen if value is not None]
        yield merge_cells([Cell(v, v, v) for v, _ in known], [w for _, w in known])


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


def _moments(evidence: RunEvidence, saves: Sequence[SaveRecord]) -> Iterator[Moment]:
    intervals = evidence.intervals
    yield from _epochs(intervals)
    for record in intervals:
        seconds = record.ledger_s.get('validation', 0.0)
        if seconds > 0:
            words = f'validation, {format_seconds(seconds)}'
            yield Moment(record.elapsed_s, 'validation', words)
        if record.saves and not saves:
            seconds = record.ledger_s.get('checkpoint_save', 0.0)
            words = f'{record.saves} save(s), {format_seconds(seconds)}'
            yield Moment(record.elapsed_s, 'save', words)
    lasts = [record.iteration for record in intervals]
    if not saves:
        yield from _last_saves(evidence)
    for save in saves:
        # it fell into the interval that was recorded after it
        at = min(bisect.bisect_right(lasts, save.iteration), len(lasts) - 1)
        words = f'{save.name or "save"}, {format_seconds(save.wall_s)}'
        yield Moment(_moment_of(intervals[at], save.iteration), 'save', words)


def _last_saves(evidence: RunEvidence) -> Iterator[Moment]:
    """Those after the last interval, of which the end record alone tells."""
    end, intervals = evidence.end, evidence.intervals
    if end is None:
        return
    late = end.saves - sum(record.saves for record in intervals)
    if late > 0:
        yield Moment(intervals[-1].elapsed_s, 'save', f'{late} save(s) at the end')


def _moment_of(record: IntervalRecord, iteration: int) -> float:
    """About when an iteration of an interval was over."""
    before = record.iteration - record.iterations
    share = (iteration - before) / record.iterations if record.iterations else 1.0
    begin = record.elapsed_s - record.duration_s
    return begin + min(max(share, 0.0), 1.0) * record.duration_s


def _epochs(intervals: Sequence[IntervalRecord]) -> Iterator[Moment]:
    for before, after in zip(intervals, intervals[1:]):
        if after.epoch > before.epoch:
            yield Moment(before.elapsed_s, 'epoch', f'epoch {after.epoch}')
