"""Files of ``/proc`` about processes: read, kept open and parsed."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from pathlib import Path
from typing import NamedTuple

from mmgpu_hooks.measure.absent import SourceError

_PROC = Path('/proc')
_FLAGS = os.O_RDONLY | getattr(os, 'O_CLOEXEC', 0)


def read_begin(path: str, most_bytes: int) -> bytes:
    """Read the first bytes of a file, which is opened for it.

    A third of what Python's own file object takes.

    Raises:
        OSError: If it cannot be read.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        return os.read(descriptor, most_bytes)
    finally:
        os.close(descriptor)


class TaskTimes(NamedTuple):
    """What the scheduler counted for one process, in seconds."""

    main_cpu_s: float
    """Its main thread alone."""
    main_run_delay_s: float
    """Its main thread alone."""
    cpu_s: float
    """All threads that are known, those that ended included."""
    run_delay_s: float
    """All threads that are known, those that ended included."""


def parse_schedstat(text: str | bytes) -> tuple[int, int]:
    """Parse one ``schedstat`` file of ``/proc``.

    The file holds nanoseconds on a core, nanoseconds runnable but waiting for
    a core, and the number of time slices::

        97340213 2675070 2

    Args:
        text: The whole file.

    Returns:
        The first two figures, in nanoseconds.

    Raises:
        SourceError: If the text is not of this form.
    """
    try:
        on_core_ns, waiting_ns = text.split()[:2]
        return int(on_core_ns), int(waiting_ns)
    except ValueError:
        raise SourceError(
            f'expected "<cpu ns> <run delay ns> <slices>" in schedstat, found {text!r}'
        ) from None


class OpenSchedStat:
    """The ``schedstat`` files of one process's threads, kept open.

    A read costs 2 us and 1 us per further thread, measured on a 2-core VM; with the
    file opened each time 9 us. A kept file never tells of another process that got the
    same id.

    Args:
        pid: Process to read.
        proc: Root of the proc file system.
        most_files: Threads kept open, the main thread first. With 0 the main
            thread's file is opened for each read and other threads are not seen.
    """

    def __init__(self, pid: int, proc: Path = _PROC, most_files: int = 4) -> None:
        self._main = pid
        self._folder = os.path.join(proc, str(pid))
        self._most_files = most_files
        self._open: dict[int, int] = {}
        self._last_ns: dict[int, tuple[int, int]] = {}
        if most_files:
            self._keep(pid)

    def _keep(self, thread: int) -> None:
        path = os.path.join(self._folder, 'task', str(thread), 'schedstat')
        with contextlib.suppress(OSError):  # it ended, or it is hidden
            self._open[thread] = os.open(path, _FLAGS)

    def relist(self) -> None:
        """Look for threads that started meanwhile; 10 us and 8 us per new one.

        Their past counts from the next read on.
        """
        if not self._most_files:
            return
        try:
            names = os.listdir(os.path.join(self._folder, 'task'))
        except OSError:
            return
        for thread in sorted(map(int, filter(str.isdigit, names))):
            if len(self._open) >= self._most_files:
                return
            if thread not in self._open:
                self._keep(thread)

    def read(self) -> TaskTimes | None:
        """Read the threads known so far.

        Returns:
            Seconds since the process started, or ``None`` when it is gone, hidden,
            or the host has no scheduler statistics.

        Raises:
            SourceError: If the kernel's text is not understood.
        """
        if not self._most_files:
            try:
                text = read_begin(os.path.join(self._folder, 'schedstat'), 128)
            except OSError:  # gone, or hidden
                return None
            on_core_ns, waiting_ns = parse_schedstat(text)
            on_core_s, waiting_s = on_core_ns / 1e9, waiting_ns / 1e9
            return TaskTimes(on_core_s, waiting_s, on_core_s, waiting_s)
        last_ns, ended, pread = self._last_ns, [], os.pread
        for thread, descriptor in self._open.items():
            try:
                text = pread(descriptor, 128, 0)
                # as parse_schedstat does, without a call for each
                on_core, waiting, _ = text.split()
                last_ns[thread] = int(on_core), int(waiting)
            except OSError:  # ESRCH: what it had counted stays in the sum
                ended.append(thread)
            except ValueError:
                last_ns[thread] = parse_schedstat(text)
        for thread in ended:
            os.close(self._open.pop(thread))
        if self._main not in self._open:
            return None
        cpu_ns = run_delay_ns = 0
        for on_core_ns, waiting_ns in last_ns.values():
            cpu_ns += on_core_ns
            run_delay_ns += waiting_ns
        main_cpu_ns, main_run_delay_ns = last_ns[self._main]
        return TaskTimes(
            main_cpu_ns / 1e9, main_run_delay_ns / 1e9, cpu_ns / 1e9, run_delay_ns / 1e9
        )

    def close(self) -> None:
        """Close all files; a second call does nothing."""
        while self._open:
            os.close(self._open.popitem()[1])


def read_process_cpu_s(pid: int) -> float | None:
    """Read the CPU time of another process, without any file.

    The clock counts all threads, those that ended included, in nanoseconds. It
    costs 0.3 us, measured on a 2-core VM.

    Args:
        pid: Process to read, which must not have been waited for: its id may be
            another's by then.

    Returns:
        Seconds on a core since the process started, or ``None`` when it is gone
        or the platform has no such clock.
    """
    if not sys.platform.startswith('linux'):
        return None
    try:
        # CPUCLOCK_SCHED of the thread group, as clock_getcpuclockid(3) makes it
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None


def read_pss_bytes(pid: int, proc: Path = _PROC) -> int | None:
    """Read how much memory a process holds, shared pages counted in part.

    It costs 0.3 to 1.2 ms of the kernel's time: now and then, off the main thread.

    Args:
        pid: Process to read.
        proc: Root of the proc file system.

    Returns:
        Bytes, or ``None`` when the process is gone or does not show them.
    """
    text = _read_text(os.path.join(proc, str(pid), 'smaps_rollup'))
    for line in (text or '').splitlines():
        words = line.split()
        if words[:1] == ['Pss:'] and len(words) > 1 and words[1].isdigit():
            return int(words[1]) * 1024
    return None


def read_affinity(pid: int = 0) -> frozenset[int] | None:
    """Read the CPUs a process may run on.

    Args:
        pid: Process to read; 0 is the calling thread.

    Returns:
        CPU numbers, or ``None`` when the process is gone or the platform
        (macOS, Windows) does not tell.
    """
    getter = getattr(os, 'sched_getaffinity', None)
    if getter is None:
        return None
    try:
        return frozenset(getter(pid))
    except OSError:
        return None


def _read_text(path: str) -> str | None:
    # ESRCH, a process that dies between open and read, is an OSError as well
    try:
        with open(path, encoding='ascii', errors='replace') as file:
            return file.read()
    except OSError:
        return None


def read_peak_rss_bytes(proc: Path = _PROC) -> int | None:
    """Largest resident memory this process ever had, in bytes.

    Out of ``/proc/self/status``: ``getrusage`` also counts the process that started
    this one.

    Args:
        proc: Root of the proc file system.

    Returns:
        The bytes, or ``None`` where the platform does not show them.
    """
    text = _read_text(os.path.join(proc, 'self', 'status')) or ''
    found = re.search(r'^VmHWM:\s*(\d+) kB$', text, re.M)
    return int(found[1]) * 1024 if found else None


def read_major_faults() -> int | None:
    """Page faults of this process that had to wait for storage or swap; 1 us.

    Returns:
        How many since it started, or ``None`` where the platform does not count them.
    """
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
