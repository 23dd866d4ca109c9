"""Folds what the workers wrote about their batches into one interval's figures."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter, mul
from typing import NamedTuple, Optional

from mmgpu_hooks.measure.durations import fold_some_durations
from mmgpu_hooks.measure.loader import board
from mmgpu_hooks.measure.loader.board import Slot
from mmgpu_hooks.schema import DurationStats, SlowSample, TransformCost

_MOST_VALUES = 1024
"""Durations per interval that percentiles are taken over, newest of each worker."""
_MOST_ROWS_READ = 32
"""Workers whose transforms are read in one interval; the others' turn comes."""

_Slow = tuple[float, int, Optional[str]]
"""A slow sample: the fields of a :class:`SlowSample`."""
_Found = tuple[float, int, int, 'SlotReader']
"""Seconds and index of a sample that may be one, its place and who found it."""
_SECONDS = itemgetter(0)


@dataclass
class _Durations:
    count: int = 0
    total_s: float = 0.0
    values: list[float] = field(default_factory=list)

    def add(self, count: int, total_s: float, values: list[float]) -> None:
        self.count += count
        self.total_s += total_s
        self.values += values

    def stats(self) -> DurationStats | None:
        if not self.count or not self.values:
            return None
        return fold_some_durations(self.values, self.count, self.total_s)


def _spread(values: Sequence[float]) -> float | None:
    """Standard deviation; ``None`` for fewer than two values."""
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    gaps = [value - mean for value in values]
    return math.sqrt(math.fsum(map(mul, gaps, gaps)) / count)


class InsideFigures(NamedTuple):
    """What one interval's batches cost, as the workers saw it."""

    occupancy: DurationStats | None
    occupancy_std_s: float | None
    batch_cpu: DurationStats | None
    worker_batches: tuple[int, ...]
    transforms: dict[str, TransformCost]
    timed_samples: int
    slowest: tuple[SlowSample, ...]


class InsideTally:
    """Collects from slots until :meth:`drain`; iterators may change meanwhile."""

    def __init__(self) -> None:
        self.off_reason: str | None = None
        """Why nothing more should be measured inside; it outlasts :meth:`drain`."""
        self._reset()

    def _reset(self) -> None:
        self.wall = _Durations()
        self.cpu = _Durations()
        self.worker_batches: list[int] = []
        # calls and seconds by name
        self.transforms: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.timed_samples = 0
        self.slowest: list[_Slow] = []
        self.bar_s = 0.0
        """What a sample must take to be among them: its name costs most of a read."""

    def add_batches(self, worker_id: int, count: int) -> None:
        """Count batches that a worker made."""
        batches = self.worker_batches
        if worker_id >= len(batches):
            batches.extend([0] * (worker_id + 1 - len(batches)))
        batches[worker_id] += count

    def add_slow(self, samples: list[_Slow]) -> None:
        """Keep the slowest of these and of those before."""
        slowest = self.slowest
        slowest += samples
        slowest.sort(key=_SECONDS, reverse=True)
        del slowest[board.TOP :]
        if len(slowest) == board.TOP:
            self.bar_s = slowest[-1][0]

    def drain(self) -> InsideFigures | None:
        """Figures since the last call; ``None`` when no batch was made."""
        if not self.wall.count:
            return None
        figures = InsideFigures(
            occupancy=self.wall.stats(),
            occupancy_std_s=_spread(self.wall.values),
            batch_cpu=self.cpu.stats(),
            worker_batches=tuple(self.worker_batches),
            transforms={
                name: TransformCost(calls=int(calls), total_s=seconds)
                for name, (calls, seconds) in self.transforms.items()
            },
            timed_samples=self.timed_samples,
            slowest=tuple(
                [
                    SlowSample(seconds=seconds, index=index, image=image)
                    for seconds, index, image in self.slowest
                ]
            ),
        )
        self._reset()
        return figures


class SlotReader:
    """Reads one worker's slot, each figure once.

    Args:
        worker_id: Whose slot it is.
        slot: The slot.
    """

    def __init__(self, worker_id: int, slot: Slot) -> None:
        self._worker_id = worker_id
        self._slot = slot
        self._figures = slot.figures
        self._batches = 0
        self._wall_s = self._cpu_s = 0.0
        self._timed = 0
        self._rows: list[float] = []
        self._names: list[str] = []
        self._generation = 0.0

    def collect(
        self, tally: InsideTally, most_values: int, *, with_rows: bool
    ) -> list[_Found]:
        """Add what is new to a tally; 4 us, 7 us with new transforms.

        Args:
            tally: What to add to.
            most_values: Durations to take at most.
            with_rows: Read the transforms too.

        Returns:
            Samples that may be among the slowest, for :meth:`read_slow`.
        """
        figures = self._figures
        if figures[board.STATE] == board.OFF and tally.off_reason is None:
            reason = self._slot.read_reason() or 'it failed'
            tally.off_reason = f'measuring in a worker ended: {reason}'
        head = self._slot.read_figures(0, board.WALL_RING)
        is_current = head[board.GENERATION] == self._generation
        self._collect_batches(tally, head, most_values)
        if with_rows and head[board.TIMED_SAMPLES] != self._timed:
            self._collect_rows(tally, head)
        found: list[_Found] = []
        for place in range(board.TOP) if is_current else ():
            seconds = head[board.TOP_SECONDS + place]
            if seconds > tally.bar_s:
                index = int(head[board.TOP_INDEX + place])
                found.append((seconds, index, place, self))
        return found

    def read_slow(self, seconds: float, index: int, place: int) -> _Slow:
        """One of the samples that :meth:`collect` told of, with its name."""
        image = self._slot.read_sample_name(place) or None
        # else a slower one came to its place meanwhile, and the name is that one's
        is_same = self._figures[board.TOP_SECONDS + place] == seconds
        return seconds, index, image if is_same else None

    def begin_anew(self) -> None:
        """Have the worker keep slowest samples from here on."""
        self._generation += 1.0
        self._figures[board.ASKED_GENERATION] = self._generation

    def _collect_batches(
        self,
        tally: InsideTally,
        head: list[float],
        most_values: int,
    ) -> None:
        batches = int(head[board.BATCHES])
        new = batches - self._batches
        tally.add_batches(self._worker_id, new)
        if new <= 0:
            return
        wall_s, cpu_s = head[board.WALL_SUM], head[board.CPU_SUM]
        end = (batches - 1) % board.RING + 1
        begin = end - min(new, most_values, board.RING)
        tally.wall.add(
            new,
            wall_s - self._wall_s,
            self._read_ring(board.WALL_RING, begin, end),
        )
        tally.cpu.add(
            new,
            cpu_s - self._cpu_s,
            self._read_ring(board.CPU_RING, begin, end),
        )
        self._batches, self._wall_s, self._cpu_s = batches, wall_s, cpu_s

    def _read_ring(self, ring: int, begin: int, end: int) -> list[float]:
        """From ``begin``, which is below 0 if it lies before the ring's end."""
        read = self._slot.read_figures
        if begin >= 0:
            return read(ring + begin, ring + end)
        top = ring + board.RING
        return read(ring, ring + end) + read(top + begin, top)

    def _collect_rows(self, tally: InsideTally, head: list[float]) -> None:
        tally.timed_samples += int(head[board.TIMED_SAMPLES]) - self._timed
        self._timed = int(head[board.TIMED_SAMPLES])
        used = int(head[board.ROWS_USED])
        while len(self._names) < used:
            self._names.append(self._slot.read_row_name(len(self._names)))
            self._rows += [0.0, 0.0]
        start = board.ROW_FIGURES
        rows = self._slot.read_figures(start, start + 2 * used)
        before, self._rows = self._rows, rows
        for name, calls, seconds, calls_before, seconds_before in zip(
            self._names, rows[::2], rows[1::2], before[::2], before[1::2]
        ):
            if calls != calls_before:
                cost = tally.transforms[name]
                cost[0] += calls - calls_before
                cost[1] += seconds - seconds_before


class InsideReader:
    """Reads the slots of one iterator's workers.

    Args:
        slots: By worker id.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._readers = [SlotReader(number, slot) for number, slot in enumerate(slots)]
        self._turn = 0

    def collect(self, tally: InsideTally, *, is_last: bool = False) -> None:
        """Add what is new to a tally.

        Args:
            tally: What to add to.
            is_last: Nothing will be read later: read every worker's transforms.
        """
        readers = self._readers
        most_values = max(_MOST_VALUES // len(readers), 1)
        turns = -(-len(readers) // _MOST_ROWS_READ)
        found: list[_Found] = []
        for number, reader in enumerate(readers):
            with_rows = is_last or number % turns == self._turn
            found += reader.collect(tally, most_values, with_rows=with_rows)
        self._turn = (self._turn + 1) % turns
        if found:
            # a name costs as much as a worker's figures: of the slowest of all alone
            found.sort(key=_SECONDS, reverse=True)
            del found[board.TOP :]
            tally.add_slow(
                [
                    reader.read_slow(seconds, index, place)
                    for seconds, index, place, reader in found
                ]
            )
        for reader in readers:
            reader.begin_anew()
