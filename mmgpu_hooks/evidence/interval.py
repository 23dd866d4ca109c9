"""Folds the iterations of one interval into the fields of its record."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import chain
from operator import sub
from typing import Any

from mmgpu_hooks.evidence.ledger_parts import Lap, LedgerReading
from mmgpu_hooks.telemetry.durations import fold_durations


class IntervalFolder:
    """Collects iterations until :meth:`fold` makes a record of them.

    Hooks that run after the boundary belong to the next iteration, so no second is
    lost.

    Args:
        start: The ledger's totals when training began.
        lap: Where the ledger's laps began.
        has_workers: Whether the loader has workers, which take time to start.
    """

    def __init__(self, start: LedgerReading, lap: Lap, has_workers: bool) -> None:
        self._start = start
        self._lap = lap
        self._has_workers = has_workers
        self._normal_wait_s: float | None = None
        self.folded_s: tuple[Sequence[float], Sequence[float]] = ((), ())
        """The wait of each iteration in the last :meth:`fold`, and what each took."""
        self._reset()

    def _reset(self) -> None:
        self._ends = (array('d'), array('d'), array('d'))
        """By figure of a lap, where each of them ended."""
        self._taken_s: list[list[float]] = []
        """What each of them took of the figures of a lap, once that was asked."""
        self._firsts: list[int] = []
        self._saves = 0

    @property
    def firsts(self) -> tuple[int, ...]:
        """Positions of the first waits of epochs in :meth:`fold_waits`."""
        return tuple(self._firsts)

    @property
    def iterations(self) -> int:
        """Iterations since the last :meth:`fold`."""
        return len(self._ends[0])

    def add_laps(self, laps: Sequence[Lap]) -> None:
        """Count iterations, as the ledger gives them."""
        if laps:
            for ends, figures in zip(self._ends, zip(*laps)):
                ends.extend(figures)
            self._taken_s = []

    def note_first(self) -> None:
        """The wait of the next iteration to be added begins an epoch."""
        index = self.iterations
        if index not in self._firsts:
            self._firsts.append(index)

    def add_save(self) -> None:
        """Count one checkpoint save; its time is in the ledger."""
        self._saves += 1

    def fold_startup(self) -> float:
        """What the first waits of epochs took beyond a normal wait, in seconds.

        A normal wait is the mean of the interval's other waits; where it has none,
        that of the last interval that had some. Before there was any, all of a first
        wait is the workers' start, and without workers it is a wait like any other.
        """
        if not self._firsts:
            if self.iterations:
                waited_s = self._ends[0][-1] - self._lap[0]
                self._normal_wait_s = max(waited_s, 0.0) / self.iterations
            return 0.0
        waits = self.fold_waits()
        firsts = self._fold_firsts(waits)
        others = len(waits) - len(firsts)
        if others:
            rest_s = max(math.fsum(waits) - math.fsum(firsts), 0.0)
            self._normal_wait_s = rest_s / others
        normal_s = self._normal_wait_s
        if normal_s is None:
            return math.fsum(firsts) if self._has_workers else 0.0
        return math.fsum(max(wait - normal_s, 0.0) for wait in firsts)

    def _fold_firsts(self, waits: Sequence[float]) -> list[float]:
        # training may end before the first iteration of an epoch does
        return [waits[index] for index in self._firsts if index < len(waits)]

    def fold_waits(self) -> list[float]:
        """The wait for data of each iteration since the last :meth:`fold`, seconds."""
        return self._fold_laps()[0]

    def _fold_laps(self) -> list[list[float]]:
        """What each iteration since the last :meth:`fold` took of a lap's figures."""
        if not self._taken_s:
            self._taken_s = [
                list(map(sub, ends, chain((begin,), ends)))
                for begin, ends in zip(self._lap, self._ends)
            ]
        return self._taken_s

    def fold(
        self, now: LedgerReading, *, iteration: int, epoch: int, elapsed_s: float
    ) -> dict[str, Any] | None:
        """Fold the iterations so far and begin the next interval.

        Args:
            now: The ledger's totals when the last of them ended.
            iteration: 1-based number of the last iteration.
            epoch: 1-based.
            elapsed_s: Seconds since training began.

        Returns:
            The fields of an :class:`IntervalRecord` that the ledger tells, or ``None``
            when no iteration was counted.
        """
        if not self.iterations:
            return None
        waits, steps, iters = self._fold_laps()
        firsts = self._fold_firsts(waits)
        before = self._start
        parts = {part: now.wall_s[part] - before.wall_s[part] for part in now.wall_s}
        hooks_before_s = before.hooks_s
        by_hook = {
            name: spent_s
            for name, seconds in now.hooks_s.items()
            if (spent_s := seconds - hooks_before_s.get(name, 0.0)) > 0.0
        }
        fields = dict(
            iteration=iteration,
            epoch=epoch,
            iterations=self.iterations,
            elapsed_s=elapsed_s,
            duration_s=math.fsum(parts.values()),
            data_wait=fold_durations(waits),
            step=fold_durations(steps),
            iter=fold_durations(iters),
            ledger_s=parts,
            hooks_s=by_hook,
            data_wait_cpu_s=now.data_wait_cpu_s - before.data_wait_cpu_s,
            first_waits=len(firsts),
            first_wait_s=math.fsum(firsts),
            saves=self._saves,
        )
        self.folded_s = waits, iters
        waited, stepped, ended = self._ends
        self._start, self._lap = now, (waited[-1], stepped[-1], ended[-1])
        self._reset()
        return fields
