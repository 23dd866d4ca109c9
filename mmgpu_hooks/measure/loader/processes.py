"""The loader's worker processes, as the operating system sees them."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, NamedTuple

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.measure.proc import (
    OpenSchedStat,
    TaskTimes,
    read_affinity,
    read_process_cpu_s,
    read_pss_bytes,
)


class WorkerTimes(NamedTuple):
    """Where a worker's times stood at one moment."""

    cpu_s: float | None
    """All its threads; ``None`` where the platform does not tell."""
    wanting_s: float | None
    """How long its main thread was on a core or waited for one; ``None`` where the
    kernel does not tell."""


WorkersMark = Mapping[int, WorkerTimes]
"""The workers that are alive, by process id."""


@dataclass(frozen=True)
class WorkersMeanwhile:
    """The workers between two marks; what one of them hides is ``None``."""

    count: int
    """Alive at both."""
    busy: float | None
    """How many of them were on a core or waited for one, mean."""
    cpu_s: float | None


def fold_workers_meanwhile(
    before: WorkersMark, after: WorkersMark, wall_s: float
) -> WorkersMeanwhile:
    """What the workers did between two marks.

    Those that started or ended in between are left out. A worker that waits for a
    core when it is looked at is credited with that wait only when it is over.

    Args:
        before: The first mark.
        after: The second.
        wall_s: Seconds between them; above 0.
    """
    both = [(before[pid], after[pid]) for pid in before if pid in after]
    busy_s = cpu_s = 0.0
    is_busy_known, is_cpu_known = True, before.keys() == after.keys()
    for begin, end in both:
        if begin.wanting_s is None or end.wanting_s is None:
            is_busy_known = False
        else:
            busy_s += min(max(end.wanting_s - begin.wanting_s, 0.0), wall_s)
        if begin.cpu_s is None or end.cpu_s is None:
            is_cpu_known = False
        else:
            cpu_s += max(end.cpu_s - begin.cpu_s, 0.0)
    return WorkersMeanwhile(
        count=len(both),
        busy=busy_s / wall_s if is_busy_known else None,
        cpu_s=cpu_s if is_cpu_known else None,
    )


def write_nice(pids: Iterable[int], nice: int, proc: Path = Path('/proc')) -> None:
    """Set the nice value of processes with all their threads; 3 us per thread.

    One that is nicer already stays as it is: going back needs a privilege. One that
    ended is left out. Threads that start later have the value of their starter.

    Args:
        pids: The processes, children of this one.
        nice: 0, as most processes, to 19, only what nobody else wants.
        proc: Root of the proc file system.

    Raises:
        SourceError: If the host refuses it.
    """
    try:
        for pid in pids:
            for thread in _list_threads(pid, proc):
                # on Linux a priority belongs to a thread, whatever the call is named
                with contextlib.suppress(ProcessLookupError):
                    if os.getpriority(os.PRIO_PROCESS, thread) < nice:
                        os.setpriority(os.PRIO_PROCESS, thread, nice)
    except (AttributeError, OSError) as error:
        raise SourceError(
            f"the host refuses nice {nice} for the loader's workers: {error}"
        ) from None


def _list_threads(pid: int, proc: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(proc / str(pid) / 'task')]
    except OSError:  # hidden: then its main thread alone
        return [pid]


_RELIST_PERIOD_S = 30.0
_MOST_RELISTS = 4
"""Workers whose threads are listed at one read, and their CPUs asked; up to 100 us
each. The first read asks the CPUs of all."""
_THREADS_PER_WORKER = 4
MOST_TOLD = 64
"""Workers of which run delay and CPUs are told one by one: each line of
the evidence holds them."""
_MOST_PSS_READS = 16
_FILES_SHARE = 16
"""A loader needs the descriptors itself: we keep one sixteenth of them at most."""
_MOST_FILES = 1024


@dataclass
class ProcessFigures:
    """What the workers did in one window."""

    count: int
    """Workers that were read at both ends."""
    window_s: float
    cpu_s: float
    run_delay_s: float
    blocked_s: float | None
    worker_cpu_s: tuple[float, ...]
    """By worker id; empty when one could not be read."""
    affinity_cpus: int | None
    worker_run_delay_s: tuple[float, ...] = ()
    """Likewise, as is the one below; empty of more than `MOST_TOLD` workers too."""
    worker_affinity_cpus: tuple[int, ...] = ()


@dataclass
class _Worker:
    pid: int
    stat: OpenSchedStat
    cpu_s: float = 0.0
    times: TaskTimes | None = None
    """When it was last read; ``None`` when it could not be."""
    affinity: int | None = None
    """CPUs it may run on; ``None`` when that could not be read."""

    def read_affinity(self) -> None:
        cpus = None if self.times is None else read_affinity(self.pid)
        self.affinity = None if cpus is None else len(cpus)


class WorkerProcesses:
    """CPU, run delay, blocked time, affinity and memory of worker processes.

    A read costs 5 us per worker with files kept open, and 12 us beyond the
    descriptors that we may keep, measured on a 2-core VM.

    Args:
        pids: Process ids, by worker id.
        is_running: The workers were there before we came: their threads' past is
            not ours.
        clock: Monotonic seconds.
        proc: Root of the proc file system.
        read_cpu_s: CPU seconds of a process, all threads; where it gives ``None``
            the threads' schedstat is added up instead.
        most_files: Descriptors to keep; ``None`` takes a share of the soft limit.
    """

    def __init__(
        self,
        pids: Sequence[int],
        *,
        is_running: bool = False,
        clock: Clock = monotonic_s,
        proc: Path = Path('/proc'),
        read_cpu_s: Callable[[int], float | None] = read_process_cpu_s,
        most_files: int | None = None,
    ) -> None:
        self._clock = clock
        self._proc = proc
        self._read_cpu_s = read_cpu_s
        files = _file_budget() if most_files is None else most_files
        self._workers: list[_Worker] = []
        for position, pid in enumerate(pids):
            # main threads come first: what is left is shared by the others
            share = files // len(pids) if files >= len(pids) else int(position < files)
            stat = OpenSchedStat(pid, proc, min(share, _THREADS_PER_WORKER))
            if is_running:
                stat.relist()
            self._workers.append(_Worker(pid, stat))
        self.is_memory_costly = False
        """Whether reading the memory of one took long."""
        self._is_first = True
        self._relisted_s = clock()
        self._unlisted: list[_Worker] = []
        self._since_s = clock()
        for worker in self._workers:
            self._sample(worker)

    @property
    def is_hidden(self) -> bool:
        """Whether no worker could be read the last time."""
        return all(worker.times is None for worker in self._workers)

    def _sample(self, worker: _Worker) -> None:
        worker.times = times = worker.stat.read()
        if times is not None:
            cpu_s = self._read_cpu_s(worker.pid)
            worker.cpu_s = times.cpu_s if cpu_s is None else cpu_s

    def read(self) -> ProcessFigures:
        """What the workers did since the last call, or since they were first read.

        Raises:
            SourceError: If the kernel's text is not understood.
        """
        self._relist()
        now_s = self._clock()
        window_s, self._since_s = now_s - self._since_s, now_s
        cpu: list[float] = []
        delays: list[float] = []
        blocked: list[float] = []
        for worker in self._workers:
            before, before_cpu_s = worker.times, worker.cpu_s
            self._sample(worker)
            after = worker.times
            if before is None or after is None:
                continue
            cpu.append(max(worker.cpu_s - before_cpu_s, 0.0))
            delays.append(max(after.run_delay_s - before.run_delay_s, 0.0))
            busy_s = after.main_cpu_s - before.main_cpu_s
            busy_s += after.main_run_delay_s - before.main_run_delay_s
            blocked.append(max(window_s - busy_s, 0.0))
        is_whole = len(cpu) == len(self._workers)
        is_told = is_whole and len(cpu) <= MOST_TOLD
        affinities = self._known_affinities()
        is_confinement_told = is_told and len(affinities) == len(cpu)
        return ProcessFigures(
            count=len(cpu),
            window_s=window_s,
            cpu_s=sum(cpu),
            run_delay_s=sum(delays),
            blocked_s=sum(blocked) if cpu else None,
            worker_cpu_s=tuple(cpu) if is_whole else (),
            affinity_cpus=min(affinities, default=None),
            worker_run_delay_s=tuple(delays) if is_told else (),
            worker_affinity_cpus=tuple(affinities) if is_confinement_told else (),
        )

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids, by worker id."""
        return tuple(worker.pid for worker in self._workers)

    def mark(self) -> WorkersMark:
        """Where the times of those that live stand; no window ends by it."""
        mark = {}
        for worker in self._workers:
            times = worker.stat.read()
            # one that was seen before and is not now has ended
            if times is None and worker.times is not None:
                continue
            wanting_s = None
            if times is not None:
                wanting_s = times.main_cpu_s + times.main_run_delay_s
            mark[worker.pid] = WorkerTimes(self._read_cpu_s(worker.pid), wanting_s)
        return mark

    def _known_affinities(self) -> list[int]:
        """CPUs that workers may run on, as they were last looked at."""
        return [
            worker.affinity
            for worker in self._workers
            if worker.times is not None and worker.affinity is not None
        ]

    def _relist(self) -> None:
        """Look at what seldom changes: a worker's CPUs, and threads that came later.

        With the first read the one that hands batches over is there.
        """
        now_s = self._clock()
        is_first, self._is_first = self._is_first, False
        if is_first or now_s - self._relisted_s >= _RELIST_PERIOD_S:
            self._relisted_s = now_s
            self._unlisted = list(self._workers)
        if self._unlisted:
            few = self._unlisted[:_MOST_RELISTS]
            del self._unlisted[:_MOST_RELISTS]
            for worker in few:
                worker.stat.relist()
            for worker in self._workers if is_first else few:
                worker.read_affinity()

    def read_pss_bytes(self, most_s: float = math.inf) -> tuple[int | None, ...]:
        """Memory of each worker, by worker id; about 1 ms for each of 16 at most.

        Of more workers 16 are looked at. It may be called from another thread than
        :meth:`read`.

        Args:
            most_s: After a worker that takes so long no other is read.

        Returns:
            Bytes, shared pages counted in part; ``None`` for a worker that was not
            looked at or does not show them.
        """
        step = max(-(-len(self._workers) // _MOST_PSS_READS), 1)
        sizes: list[int | None] = [None] * len(self._workers)
        for number in range(0, len(sizes), step):
            began_s = self._clock()
            sizes[number] = read_pss_bytes(self._workers[number].pid, self._proc)
            if self._clock() - began_s >= most_s:
                self.is_memory_costly = True
                break
        return tuple(sizes)

    def close(self) -> None:
        """Close all files; a second call does nothing."""
        for worker in self._workers:
            worker.stat.close()


def _file_budget() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return 0
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_FILES
    return min(int(soft) // _FILES_SHARE, _MOST_FILES)


_PERIOD_S = 300.0
_COSTLY_S = 0.02


class MemoryLook:
    """Reads the workers' memory at most every 5 minutes.

    The kernel walks all pages of a worker for it. After one that took 20 ms, as those
    of some GiB do, none is read again.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen_s: float | None = None
        self._is_costly = False
        self._sizes: tuple[int | None, ...] = ()

    def is_due(self, workers: WorkerProcesses | None) -> bool:
        """Whether :meth:`look` would look.

        Args:
            workers: Those that live; ``None`` when none do.
        """
        if workers is None or self._is_costly:
            return False
        return self._seen_s is None or self._clock() - self._seen_s >= _PERIOD_S

    def look(self, workers: WorkerProcesses) -> None:
        """Read their memory, on any thread."""
        self._seen_s = self._clock()
        self._sizes = workers.read_pss_bytes(_COSTLY_S)
        self._is_costly = workers.is_memory_costly

    def drain(self) -> int | None:
        """What was found since the last call.

        Returns:
            Bytes of all workers, where only some were looked at the others taken to be
            like them; ``None`` when none shows them.
        """
        sizes, self._sizes = self._sizes, ()
        known = tuple(size for size in sizes if size is not None)
        if not known:
            return None
        return sum(known) * len(sizes) // len(known)
