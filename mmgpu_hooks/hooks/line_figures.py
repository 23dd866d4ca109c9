"""What one line of LoggerHook shows: the scalars of all records since the last line."""

from __future__ import annotations

import random
from collections.abc import Sequence

from mmgpu_hooks.hooks.scalars import (
    Parts,
    fold_parts,
    fold_peaks,
    fold_scalars,
    fold_shares,
)
from mmgpu_hooks.measure.durations import fold_durations
from mmgpu_hooks.schema import IntervalRecord

MOST_KEPT = 10_000
"""Durations that a percentile is taken of; of more, so many at least half."""


class LineFigures:
    """Collects records until a line shows them.

    Means and shares are over all iterations of the records, peaks are the largest, and
    percentiles are of the iterations themselves, not of the records. Nearly always
    there is one record for a line, which then costs nothing here.
    """

    def __init__(self) -> None:
        self._only: tuple[IntervalRecord, Sequence[float], Sequence[float]] | None = (
            None
        )
        self._joined: _Joined | None = None

    def add(
        self,
        record: IntervalRecord,
        waits_s: Sequence[float],
        iters_s: Sequence[float],
    ) -> None:
        """Add one interval.

        Args:
            record: Of the interval.
            waits_s: The wait of each of its iterations; it must stay as it is.
            iters_s: Likewise, what each took.
        """
        if self._only is None and self._joined is None:
            self._only = record, waits_s, iters_s
            return
        if self._joined is None:
            self._joined = _Joined()
        if self._only is not None:
            self._joined.add(*self._only)
            self._only = None
        self._joined.add(record, waits_s, iters_s)

    def take(self) -> dict[str, float]:
        """The scalars since the last call; none when no interval ended."""
        only, joined = self._only, self._joined
        self._only = self._joined = None
        if joined is not None:
            return joined.fold()
        return {} if only is None else fold_scalars(only[0])


class _Joined:
    """Several records as one, in bounded memory."""

    def __init__(self) -> None:
        self._parts: Parts = {}
        self._peaks: dict[str, float] = {}
        self._waits, self._iters = _Sample(), _Sample()

    def add(
        self,
        record: IntervalRecord,
        waits_s: Sequence[float],
        iters_s: Sequence[float],
    ) -> None:
        parts, peaks = self._parts, self._peaks
        for name, (part, whole) in fold_parts(record).items():
            part_before, whole_before = parts.get(name, (0.0, 0.0))
            parts[name] = part_before + part, whole_before + whole
        for name, peak in fold_peaks(record).items():
            peaks[name] = max(peaks.get(name, 0.0), peak)
        self._waits.extend(waits_s)
        self._iters.extend(iters_s)

    def fold(self) -> dict[str, float]:
        return {
            **fold_shares(self._parts),
            **self._peaks,
            'data_wait_p95_s': fold_durations(self._waits.kept).p95_s,
            'iter_p95_s': fold_durations(self._iters.kept).p95_s,
        }


class _Sample:
    """Durations, of which each is as likely to be kept as any other."""

    def __init__(self) -> None:
        self.kept: list[float] = []
        self._share = 1.0
        # not every second one: that would favour one worker of two. Training's own
        # draws are left as they are
        self._draw = random.Random(0).random

    def extend(self, seconds: Sequence[float]) -> None:
        self.kept += seconds if self._share == 1.0 else self._thin(seconds, self._share)
        while len(self.kept) > MOST_KEPT:
            self._share /= 2
            self.kept = self._thin(self.kept, 0.5)

    def _thin(self, seconds: Sequence[float], share: float) -> list[float]:
        return [one for one in seconds if self._draw() < share]
