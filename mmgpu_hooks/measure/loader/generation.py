"""One iterator of a loader with the workers it started, and what they did."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable, TypeVar

from mmgpu_hooks.measure.clock import Clock
from mmgpu_hooks.measure.loader.board import Board, Slot
from mmgpu_hooks.measure.loader.inside import InsideReader, InsideTally
from mmgpu_hooks.measure.loader.processes import ProcessFigures, WorkerProcesses
from mmgpu_hooks.measure.loader.worker import LocalProbe

_T = TypeVar('_T')


class OutsideTally:
    """Adds up what the workers of several iterators did, until :meth:`drain`."""

    def __init__(self) -> None:
        self._parts: list[ProcessFigures] = []

    def add(self, figures: ProcessFigures) -> None:
        """Add a window in which some worker was read at both ends."""
        if figures.count:
            self._parts.append(figures)

    def drain(self) -> ProcessFigures:
        """Sums since the last call; the most workers that there were at a time."""
        parts, self._parts = self._parts, []
        if len(parts) == 1:
            return parts[0]
        blocked = [one.blocked_s for one in parts if one.blocked_s is not None]
        affinities = [one.affinity_cpus for one in parts if one.affinity_cpus]
        return ProcessFigures(
            count=max((one.count for one in parts), default=0),
            window_s=sum(one.window_s for one in parts),
            cpu_s=sum(one.cpu_s for one in parts),
            run_delay_s=sum(one.run_delay_s for one in parts),
            blocked_s=sum(blocked) if blocked else None,
            worker_cpu_s=_add_by_worker([one.worker_cpu_s for one in parts]),
            affinity_cpus=min(affinities, default=None),
            worker_run_delay_s=_add_by_worker([p.worker_run_delay_s for p in parts]),
            worker_affinity_cpus=_fold_by_worker(
                min, [p.worker_affinity_cpus for p in parts]
            ),
        )


def _add_by_worker(parts: list[tuple[float, ...]]) -> tuple[float, ...]:
    return _fold_by_worker(sum, parts)


def _fold_by_worker(
    fold: Callable[[tuple[_T, ...]], _T], parts: list[tuple[_T, ...]]
) -> tuple[_T, ...]:
    # of a part that lacks a worker nobody knows whose the others are
    if len({len(part) for part in parts}) != 1:
        return ()
    return tuple(fold(by_worker) for by_worker in zip(*parts))


class Generation:
    """What can be measured of one iterator and its workers.

    Args:
        iterator: The iterator; it is not kept alive.
        board: What its workers write to, if they do.
        is_running: They were there before we came.
        may_probe: Whether an iterator without workers may be measured from inside.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        iterator: Any,
        board: Board | None,
        *,
        is_running: bool,
        may_probe: bool,
        clock: Clock,
    ) -> None:
        self._iterator: Callable[[], Any] = lambda: None
        with contextlib.suppress(TypeError):  # an iterator of another kind
            self._iterator = weakref.ref(iterator)
        self._reader: InsideReader | None = None
        self._local: LocalProbe | None = None
        self.processes: WorkerProcesses | None = None
        """Its workers, seen from outside."""
        self.slots: list[Slot] = []
        """What the workers write to, by worker id."""
        workers = getattr(iterator, '_workers', None) or ()
        if workers:
            pids = [worker.pid for worker in workers]
            self.processes = WorkerProcesses(pids, is_running=is_running, clock=clock)
            if board is not None:
                self.slots = [board.slot(number) for number in range(len(workers))]
                self._reader = InsideReader(self.slots)
        elif may_probe and hasattr(iterator, '_dataset_fetcher'):
            self._local = LocalProbe(iterator)
            self.slots = [self._local.slot]
            self._reader = InsideReader(self.slots)

    def living(self) -> Any:
        """The iterator, or ``None`` when it is gone or has ended its workers."""
        iterator = self._iterator()
        return None if getattr(iterator, '_shutdown', False) else iterator

    def living_processes(self) -> WorkerProcesses | None:
        """Its workers, unless it has ended them."""
        return None if self.living() is None else self.processes

    @property
    def is_inside(self) -> bool:
        """Whether figures are taken where the batches are made."""
        return self._reader is not None

    def collect(self, inside: InsideTally) -> None:
        """Add what was written inside since the last call."""
        if self._reader is not None:
            self._reader.collect(inside)

    def read_processes(self, outside: OutsideTally) -> None:
        """Add what the workers did since the last call; nothing when they are gone.

        Raises:
            SourceError: If the kernel's text is not understood.
        """
        if self.processes is not None:
            outside.add(self.processes.read())

    def retire(self, inside: InsideTally) -> None:
        """Take what its workers still have to tell, and leave the iterator."""
        try:
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.collect(inside, is_last=True)
        finally:
            self.close()

    def close(self) -> None:
        """Leave the iterator as it was; a second call does nothing."""
        try:
            if self._local is not None:
                self._local.close()
        finally:
            if self.processes is not None:
                self.processes.close()
