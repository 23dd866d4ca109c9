"""What happened in a run between iterations: epochs, validations, saves."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

from mmgpu_hooks.judge.columns import filled
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.show.figures import format_seconds


@dataclass(frozen=True)
class Moment:
    """Something that happened between iterations."""

    at_s: float
    """Since training began."""
    kind: str
    """``epoch``, ``save`` or ``validation``."""
    words: str


def find_moments(run: Run) -> Iterator[Moment]:
    """All of them, kind by kind."""
    ends_s = run.column('elapsed_s').tolist()
    epochs = [interval.epoch for interval in run.intervals]
    for n in range(1, len(ends_s)):
        if epochs[n] > epochs[n - 1]:
            yield Moment(ends_s[n - 1], 'epoch', f'epoch {epochs[n]}')
    validations_s = filled(run.column('ledger_s', 'validation'))
    for end_s, seconds in zip(ends_s, validations_s.tolist()):
        if seconds > 0:
            words = f'validation, {format_seconds(seconds)}'
            yield Moment(end_s, 'validation', words)
    yield from _of_records(run) if run.save_records else _of_intervals(run)


def _of_intervals(run: Run) -> Iterator[Moment]:
    """By interval; of those after the last one the end record alone tells."""
    seconds = filled(run.column('ledger_s', 'checkpoint_save')).tolist()
    for interval, save_s in zip(run.intervals, seconds):
        if interval.saves:
            words = f'{interval.saves} save(s), {format_seconds(save_s)}'
            yield Moment(interval.elapsed_s, 'save', words)
    saved = sum(interval.saves for interval in run.intervals)
    late = run.end.saves - saved if run.end is not None else 0
    if late > 0:
        last_s = run.intervals[-1].elapsed_s
        yield Moment(last_s, 'save', f'{late} save(s) at the end')


def _of_records(run: Run) -> Iterator[Moment]:
    """Within the interval that was recorded after a save, by iterations."""
    lasts = [interval.iteration for interval in run.intervals]
    for save in run.save_records:
        place = min(bisect.bisect_right(lasts, save.iteration), len(lasts) - 1)
        interval = run.intervals[place]
        count = interval.iterations
        done = save.iteration - (interval.iteration - count)
        share = min(max(done / count, 0.0), 1.0) if count else 1.0
        at_s = interval.elapsed_s - (1 - share) * interval.duration_s
        words = f'{save.name or "save"}, {format_seconds(save.wall_s)}'
        yield Moment(at_s, 'save', words)
