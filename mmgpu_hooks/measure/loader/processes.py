"""Reads CPU seconds, run delay and memory of the loader's worker processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.clock import Clock, grown, monotonic_s
from mmgpu_hooks.measure.proc import (
    read_affinity,
    read_process_cpu_s,
    read_pss_bytes,
    read_schedstat_s,
)
from mmgpu_hooks.schema.text import phrase

_PROC = Path('/proc')
_MOST_PSS_READS = 4
_COSTLY_S = 0.02
"""Seconds of reading a worker's memory above which it is never read again."""


class WorkerTimes(NamedTuple):
    """CPU seconds and run delay (s) of one DataLoader worker since it was started."""

    cpu_s: float | None
    """CPU seconds of all threads of the worker; ``None`` if the kernel hides them."""
    run_delay_s: float | None = None
    """Seconds that the worker's main thread waited for a core; ``None`` if hidden."""
    wanting_s: float | None = None
    """Seconds the worker's main thread ran or waited for a core; ``None`` if hidden."""


WorkersMark = Mapping[int, WorkerTimes]
"""Type of a reading of each live worker's CPU and waiting seconds, by process id."""


@dataclass(frozen=True)
class WorkersActivity:
    """Number of workers, mean number of busy ones, and CPU seconds, in a period."""

    count: int | None
    """Number of workers that were alive at both readings."""
    busy: float | None
    """Mean number of workers that ran on a core or waited for one."""
    cpu_s: float | None


def sum_workers_activity(
    before: WorkersMark | None, after: WorkersMark | None, wall_s: float
) -> WorkersActivity:
    """Sums up the CPU seconds that workers used between two readings of their times.

    Those that started or ended in between are left out. A worker that waits for a
    core at a mark is credited with that wait only when it is over.

    Args:
        before: The first mark; ``None`` where they are not watched.
        after: The second.
        wall_s: Seconds between them; above 0.
    """
    if before is None or after is None:
        return WorkersActivity(None, None, None)
    both = [(before[pid], after[pid]) for pid in before if pid in after]
    wanting_s, used_s = _list_grown(both, 'wanting_s'), _list_grown(both, 'cpu_s')
    is_cpu_known = len(used_s) == len(both) and before.keys() == after.keys()
    busy_s = sum(min(seconds, wall_s) for seconds in wanting_s)
    return WorkersActivity(
        count=len(both),
        busy=busy_s / wall_s if len(wanting_s) == len(both) else None,
        cpu_s=sum(used_s) if is_cpu_known else None,
    )


def _list_grown(
    both: Sequence[tuple[WorkerTimes, WorkerTimes]], name: str
) -> list[float]:
    """Lists by how many seconds each worker's counter grew between two readings."""
    grew = (grown(getattr(old, name), getattr(new, name)) for old, new in both)
    return [seconds for seconds in grew if seconds is not None]


def write_nice(pids: Iterable[int], nice: int, proc: Path = _PROC) -> None:
    """Sets the nice value of processes with all their threads; 3 us per thread.

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
            threads = [str(pid)]
            with contextlib.suppress(OSError):  # hidden: then its main thread alone
                threads = os.listdir(proc / str(pid) / 'task')
            for thread in map(int, threads):
                # on Linux a priority belongs to a thread, whatever the call is named
                with contextlib.suppress(ProcessLookupError):
                    if os.getpriority(os.PRIO_PROCESS, thread) < nice:
                        os.setpriority(os.PRIO_PROCESS, thread, nice)
    except (AttributeError, OSError) as error:
        raise SourceError(
            phrase(
                "the host refuses nice {nice} for the loader's workers: {error}",
                nice=nice,
                error=error,
            )
        ) from None


@dataclass(frozen=True)
class WorkersUse:
    """CPU seconds and run delay of all workers together since the last reading."""

    count: int = 0
    """Number of workers that were read at both start and end of the period."""
    cpu_s: float = 0.0
    run_delay_s: float = 0.0
    thread_cpu_s: float = 0.0
    """CPU seconds of the workers' threads other than their main threads."""
    affinity_cpus: int | None = None
    """Smallest number of CPUs that any one of the workers may run on."""


class WorkersMemory(NamedTuple):
    """Bytes of memory of the workers, and if reading them took too long."""

    pss_bytes: int | None
    """Bytes of memory (PSS) of all workers together; ``None`` if unreadable."""
    is_costly: bool
    """True if reading a worker's memory took so long that it is not read again."""


class WorkerProcesses:
    """Reads CPU seconds, run delay, affinity and memory of worker processes.

    A read costs 12 us per worker, measured on a 2-core VM.

    Args:
        pids: Process ids, by worker id.
        proc: Root of the proc file system.
    """

    def __init__(self, pids: Sequence[int], proc: Path = _PROC) -> None:
        self.pids = tuple(pids)
        self._proc = str(proc)
        self._last = self.mark()

    @property
    def is_hidden(self) -> bool:
        """True if the kernel showed no worker's run delay at the last reading."""
        return all(times.run_delay_s is None for times in self._last.values())

    def mark(self) -> WorkersMark:
        """Reads each live worker's CPU seconds and run delay since it began."""
        mark = {}
        for pid in self.pids:
            cpu_s = read_process_cpu_s(pid)
            times = read_schedstat_s(f'{self._proc}/{pid}/schedstat')
            if times is not None:
                mark[pid] = WorkerTimes(
                    cpu_s=times.on_core_s if cpu_s is None else cpu_s,
                    run_delay_s=times.run_delay_s,
                    wanting_s=times.on_core_s + times.run_delay_s,
                )
            elif cpu_s is not None:
                mark[pid] = WorkerTimes(cpu_s)
        return mark

    def read(self) -> WorkersUse:
        """Returns the workers' CPU seconds and run delay since the last call."""
        before, self._last = self._last, self.mark()
        both = [
            (before[pid], times)
            for pid, times in self._last.items()
            if times.run_delay_s is not None and pid in before
        ]
        masks = [read_affinity(pid) for pid in self._last]
        cpu_s, delay_s, wanting_s = (
            sum(_list_grown(both, name))
            for name in ('cpu_s', 'run_delay_s', 'wanting_s')
        )
        return WorkersUse(
            count=len(both),
            cpu_s=cpu_s,
            run_delay_s=delay_s,
            thread_cpu_s=max(cpu_s - (wanting_s - delay_s), 0.0),
            affinity_cpus=min((len(mask) for mask in masks if mask), default=None),
        )

    def read_pss_bytes(self, clock: Clock = monotonic_s) -> WorkersMemory:
        """Estimates the memory bytes of all workers by reading up to 4, 1 ms each.

        It may be called on any thread.

        The kernel walks all pages of a worker for it. Workers that were not read are
        taken to be like the others.
        """
        sizes, is_costly = [], False
        for pid in self.pids[:_MOST_PSS_READS]:
            began_s = clock()
            sizes.append(read_pss_bytes(pid))
            if is_costly := clock() - began_s >= _COSTLY_S:
                break
        known = [size for size in sizes if size is not None]
        whole = sum(known) * len(self.pids) // len(known) if known else None
        return WorkersMemory(whole, is_costly)
