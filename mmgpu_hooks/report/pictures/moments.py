"""What happened in a run between iterations: epochs, validations, saves."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmgpu_hooks.evidence.interval_table import IntervalTable
from mmgpu_hooks.report.figures import format_seconds
from mmgpu_hooks.schema import RunEvidence, SaveRecord


@dataclass(frozen=True)
class Moment:
    """Something that happened between iterations."""

    at_s: float
    """Since training began."""
    kind: str
    """``epoch``, ``save`` or ``validation``."""
    words: str


def find_moments(
    evidence: RunEvidence, table: IntervalTable, saves: Sequence[SaveRecord]
) -> Iterator[Moment]:
    """All of them, kind by kind.

    Args:
        evidence: One rank's.
        table: Of its intervals.
        saves: Of the rank that makes them for all; without them, intervals tell.
    """
    ends_s = table.floats('elapsed_s').filled()
    epochs = table.ints('epoch').filled()
    for n in range(1, len(ends_s)):
        if epochs[n] > epochs[n - 1]:
            yield Moment(ends_s[n - 1], 'epoch', f'epoch {epochs[n]}')
    validations_s = table.floats('ledger_s', 'validation').filled()
    for end_s, seconds in zip(ends_s, validations_s):
        if seconds > 0:
            words = f'validation, {format_seconds(seconds)}'
            yield Moment(end_s, 'validation', words)
    if saves:
        yield from _of_records(table, saves)
    else:
        yield from _of_intervals(evidence, table)


def _of_intervals(evidence: RunEvidence, table: IntervalTable) -> Iterator[Moment]:
    """By interval; of those after the last one the end record alone tells."""
    ends_s = table.floats('elapsed_s').filled()
    counts = table.ints('saves').filled()
    seconds = table.floats('ledger_s', 'checkpoint_save').filled()
    for end_s, count, save_s in zip(ends_s, counts, seconds):
        if count:
            yield Moment(end_s, 'save', f'{count} save(s), {format_seconds(save_s)}')
    late = evidence.end.saves - sum(counts) if evidence.end is not None else 0
    if late > 0:
        yield Moment(ends_s[-1], 'save', f'{late} save(s) at the end')


def _of_records(table: IntervalTable, saves: Sequence[SaveRecord]) -> Iterator[Moment]:
    """Within the interval that was recorded after a save, by iterations."""
    lasts = table.ints('iteration').filled()
    counts = table.ints('iterations').filled()
    ends_s = table.floats('elapsed_s').filled()
    durations_s = table.floats('duration_s').filled()
    for save in saves:
        n = min(bisect.bisect_right(lasts, save.iteration), len(lasts) - 1)
        done = save.iteration - (lasts[n] - counts[n])
        share = min(max(done / counts[n], 0.0), 1.0) if counts[n] else 1.0
        words = f'{save.name or "save"}, {format_seconds(save.wall_s)}'
        yield Moment(ends_s[n] - (1 - share) * durations_s[n], 'save', words)
