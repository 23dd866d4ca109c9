"""Folds the iterations of one interval into one record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmgpu_hooks.records import DurationStats, IntervalRecord


def fold_durations(seconds: Sequence[float]) -> DurationStats:
    """Summarise durations.

    Args:
        seconds: At least one duration, in any order.

    Returns:
        Count, sum, mean, median, 95th percentile and maximum. Percentiles are
        linearly interpolated between order statistics (the default of NumPy).

    Raises:
        ValueError: If ``seconds`` is empty.
    """
    if not seconds:
        raise ValueError('fold_durations expected at least one duration, found none')
    ordered = sorted(seconds)
    total = math.fsum(ordered)
    return DurationStats(
        count=len(ordered),
        total_s=total,
        mean_s=total / len(ordered),
        p50_s=_percentile(ordered, 0.5),
        p95_s=_percentile(ordered, 0.95),
        max_s=ordered[-1],
    )


def _percentile(ordered: Sequence[float], q: float) -> float:
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


@dataclass(frozen=True)
class LedgerReading:
    """The ledger's totals at one moment."""

    wall_s: Mapping[str, float]
    data_wait_cpu_s: float


class IntervalFolder:
    """Collects iterations until :meth:`fold` makes a record of them.

    An iteration is what the ledger counted since the last one, so hooks that run
    after the boundary belong to the next iteration and no second is lost.

    Args:
        start: The ledger's totals when training began.
    """

    def __init__(self, start: LedgerReading) -> None:
        self._last = start
        self._interval_start = start
        self._reset()

    def _reset(self) -> None:
        self._data_wait: list[float] = []
        self._step: list[float] = []
        self._iter: list[float] = []
        self._first_waits: list[float] = []
        self._images: int | None = 0
        self._saves = 0

    @property
    def iterations(self) -> int:
        """Iterations since the last :meth:`fold`."""
        return len(self._iter)

    def add_iteration(
        self, now: LedgerReading, *, first_of_epoch: bool, images: int | None
    ) -> None:
        """Count one iteration, from the previous call to now.

        Args:
            now: The ledger's totals at the iteration's end.
            first_of_epoch: Whether its wait began an epoch.
            images: Images in its batch; ``None`` when they cannot be counted.
        """
        before = self._last.wall_s
        wait = now.wall_s['data_wait'] - before['data_wait']
        step = now.wall_s['step'] - before['step']
        hooks = now.wall_s['hooks'] - before['hooks']
        self._data_wait.append(wait)
        self._step.append(step)
        self._iter.append(wait + step + hooks)
        if first_of_epoch:
            self._first_waits.append(wait)
        if images is None or self._images is None:
            self._images = None
        else:
            self._images += images
        self._last = now

    def add_save(self) -> None:
        """Count one checkpoint save; its time is in the ledger."""
        self._saves += 1

    def fold(
        self, *, iteration: int, epoch: int, elapsed_s: float
    ) -> IntervalRecord | None:
        """Make one record of the iterations so far and begin the next interval.

        Args:
            iteration: 1-based number of the last iteration.
            epoch: 1-based.
            elapsed_s: Seconds since training began.

        Returns:
            The record without the figures of other sources, or ``None`` when no
            iteration was counted.
        """
        if not self._iter:
            return None
        before, now = self._interval_start, self._last
        parts = {part: now.wall_s[part] - before.wall_s[part] for part in now.wall_s}
        record = IntervalRecord(
            iteration=iteration,
            epoch=epoch,
            iterations=len(self._iter),
            elapsed_s=elapsed_s,
            duration_s=math.fsum(parts.values()),
            data_wait=fold_durations(self._data_wait),
            step=fold_durations(self._step),
            iter=fold_durations(self._iter),
            ledger_s=parts,
            data_wait_cpu_s=now.data_wait_cpu_s - before.data_wait_cpu_s,
            first_waits=len(self._first_waits),
            first_wait_s=math.fsum(self._first_waits),
            images=self._images,
            saves=self._saves,
        )
        self._interval_start = now
        self._reset()
        return record
