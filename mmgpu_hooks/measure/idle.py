"""Tells a process that waits from one that computes, by CPU time and bytes of I/O.

All threads of the process but our own count, and its child processes: a metric may
evaluate in a pool. It is read about once a second, from any thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import NamedTuple

import psutil

from mmgpu_hooks.measure.clock import Clock, monotonic_s, process_cpu_s
from mmgpu_hooks.measure.proc import (
    read_major_faults,
    read_process_cpu_s,
    read_schedstat_s,
    read_thread_cpu_s,
    read_thread_use,
)

_BUSY_SHARE, _BUSY_S = 0.05, 0.05
"""Most CPU time of an idle process: this share (0 to 1) of a core, plus these seconds.

Loggers and what asks again and again take it."""
_BUSY_NOW = 0.5
"""Core use (0 to 1) since the last reading above which a process is not idle.

Long idleness must not make up for what computes now."""
_BUSY_BYTES = 2**16
"""Most bytes a second that the watched thread may read and write when idle."""
_STALE_S = 10.0
"""Longest time in seconds between two readings of CPU use that are compared."""
_OWN_THREADS = 'mmgpu-'
"""Prefix of the names of all threads that this package starts."""


class _Reading(NamedTuple):
    """CPU seconds, I/O bytes and page faults of a process and its watched thread."""

    clock_s: float
    own_s: float
    """CPU seconds of process and ended children, without this package's own threads.

    And the seconds in which the watched thread waited for a core."""
    io_bytes: int
    faults: int


class WorkMeter:
    """Measures for how long a thread and its process have computed nothing.

    Made in the thread that it watches.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Clock = monotonic_s) -> None:
        self._clock, self._thread = clock, threading.get_native_id()
        self._start: _Reading | None = None
        """CPU and I/O reading taken when the process's present idle stretch began."""
        self._read_at_s = self._used_s = 0.0
        self._children_s: dict[int, float] = {}
        """CPU seconds of each child, by pid, when first read in the idle period."""

    def read_idle_s(self) -> float:
        """Returns seconds for which this process and its children have used no core.

        Returns:
            0 where they have, the first time, and where the platform does not show it.
        """
        start, now = self._start, self._read()
        last_s, self._read_at_s = self._read_at_s, self._clock()
        if (
            start is not None
            and now is not None
            and self._read_at_s - last_s < _STALE_S
        ):
            idle_s = now.clock_s - start.clock_s
            newest_s, self._used_s = -self._used_s, self._sum_used_s(start, now, idle_s)
            newest_s += self._used_s
            is_busy_now = newest_s > _BUSY_NOW * (self._read_at_s - last_s) + _BUSY_S
            if not is_busy_now and self._used_s <= _BUSY_SHARE * idle_s + _BUSY_S:
                return idle_s
        self._start, self._children_s, self._used_s = now, {}, 0.0
        return 0.0

    def _sum_used_s(self, start: _Reading, now: _Reading, passed_s: float) -> float:
        """Sums up the CPU seconds of process and children in the present idle stretch.

        All of it where the thread loads or swaps: that is work, too.
        """
        used_s = now.own_s - start.own_s
        is_loading = now.faults > start.faults
        is_loading |= now.io_bytes - start.io_bytes > _BUSY_BYTES * (passed_s + 1.0)
        if is_loading:
            return max(used_s, passed_s)
        # to list them takes ms: only while this process waits
        if used_s <= _BUSY_SHARE * passed_s + _BUSY_S:
            for pid, seconds in _read_children_s():
                used_s += seconds - self._children_s.setdefault(pid, seconds)
        return used_s

    def _read(self) -> _Reading | None:
        path = f'/proc/self/task/{self._thread}/schedstat'
        times, use = read_schedstat_s(path), read_thread_use(self._thread)
        if times is None or use is None:
            return None
        ours_s = sum(
            read_thread_cpu_s(thread) or 0.0
            for thread in threading.enumerate()
            if thread.name.startswith(_OWN_THREADS)
        )
        ended = os.times()
        return _Reading(
            clock_s=self._clock(),
            own_s=process_cpu_s()
            - ours_s
            + times.run_delay_s
            + ended.children_user
            + ended.children_system,
            io_bytes=use.io_bytes,
            faults=read_major_faults() or 0,
        )


def _read_children_s() -> Iterator[tuple[int, float]]:
    """Yields the process id and CPU seconds of each descendant of this process."""
    try:
        family = psutil.Process().children(recursive=True)
    except (psutil.Error, OSError):
        return
    for child in family:
        seconds = read_process_cpu_s(child.pid)
        if seconds is not None:
            yield child.pid, seconds
