"""Files of ``/proc``: read, kept open and parsed, of this host and of one process."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.clock import Clock, monotonic_s

_CHUNK_BYTES = 16384
_SHORT_BYTES = 2048
"""The kernel hands out whole lines, a page or less per read: this little is the end."""
_MOST_BYTES = 1 << 20
"""No file that we keep comes near it; it ends a read that would not end."""


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


class KeptFile:
    """One open file, each read from its start; the kernel makes the text anew.

    A read costs 1 to 10 us, a third of what opening it each time would cost.

    Args:
        path: The file.

    Raises:
        OSError: If it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, _FLAGS)

    def read(self) -> bytes:
        """Read the whole file.

        Raises:
            OSError: If it vanished, or if it has been closed.
        """
        # pread leaves the offset alone, which forked workers would share
        text = chunk = os.pread(self._descriptor, _CHUNK_BYTES, 0)
        while len(chunk) >= _SHORT_BYTES and len(text) < _MOST_BYTES:
            chunk = os.pread(self._descriptor, _CHUNK_BYTES, len(text))
            text += chunk
        return text

    def read_begin(self, most_bytes: int) -> bytes:
        """Read its first bytes.

        Raises:
            OSError: If it vanished, or if it has been closed.
        """
        return os.pread(self._descriptor, most_bytes, 0)

    def close(self) -> None:
        """Close it; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def parse_pressure(text: bytes) -> float:
    """Parse one file of ``/proc/pressure`` (Linux 4.20 and later).

    ``some`` counts the time in which at least one task waited, in microseconds
    since boot; ``full`` the time in which all did::

        some avg10=0.07 avg60=0.31 avg300=15.13 total=329505311
        full avg10=0.00 avg60=0.00 avg300=0.00 total=0

    The running averages lag by ten seconds and more: the difference of two totals
    is the truth of a window.

    Args:
        text: The whole file.

    Returns:
        The total of ``some``, in seconds.

    Raises:
        ValueError: If the text is not of this form.
    """
    # the kernel writes it first
    if text.startswith(b'some '):
        return int(text.partition(b'\n')[0].rpartition(b'total=')[2]) / 1e6
    raise ValueError(f'expected a line "some ... total=<us>", found {text[:80]!r}')


def fold_pressure_pct(
    before_s: float, after_s: float, duration_s: float
) -> float | None:
    """Share of a window in which some task waited.

    Args:
        before_s: Total when the window began.
        after_s: Total when it ended.
        duration_s: How long it was.

    Returns:
        Per cent, 0 to 100; ``None`` when no time passed, or when the total fell
        (the process was moved to another host).
    """
    waited_s = after_s - before_s
    if duration_s <= 0.0 or waited_s < 0.0:
        return None
    # the kernel weighs its CPUs by how busy they are: a little over 100 is possible
    return min(100.0, 100.0 * waited_s / duration_s)


def parse_memory_bytes(text: bytes) -> tuple[int, int]:
    """Parse available RAM and swap space out of ``/proc/meminfo``.

    Available is what new work can take without swapping, not free memory::

        MemAvailable:   22118804 kB
        SwapTotal:       8388604 kB

    Args:
        text: The whole file.

    Raises:
        ValueError: If a figure is missing (Linux before 3.14) or no number.
    """
    available, swap = _field(text, b'MemAvailable:'), _field(text, b'SwapTotal:')
    return available * 1024, swap * 1024


def parse_swapped_pages(text: bytes) -> tuple[int, int]:
    """Parse pages swapped in and out since boot, out of ``/proc/vmstat``::

        pswpin 0
        pswpout 0

    Args:
        text: The whole file.

    Raises:
        ValueError: If one of them is missing (a kernel without swap) or no number.
    """
    return _field(text, b'pswpin '), _field(text, b'pswpout ')


def parse_unwritten_bytes(text: bytes) -> tuple[int, int]:
    """Parse pages that wait to be written, and that are being, out of ``meminfo``::

        Dirty:               312 kB
        Writeback:             0 kB

    Args:
        text: The whole file.

    Raises:
        ValueError: If a figure is missing or no number.
    """
    return _field(text, b'Dirty:') * 1024, _field(text, b'Writeback:') * 1024


def page_size_bytes() -> int:
    """Bytes of one page of memory; 64 KiB on some ARM and POWER kernels."""
    return os.sysconf('SC_PAGE_SIZE') if hasattr(os, 'sysconf') else 4096


def _field(text: bytes, name: bytes) -> int:
    # a search costs a fifth of splitting all the lines
    start = text.find(name)
    while start > 0 and text[start - 1 : start] != b'\n':
        start = text.find(name, start + 1)
    if start < 0:
        raise ValueError(f'it has no line {name.decode().strip(": ")!r}')
    start += len(name)
    end = text.find(b'\n', start)
    words = text[start : end if end >= 0 else None].split(None, 1)
    if not words:
        raise ValueError(f'{name.decode().strip(": ")!r} has no figure')
    return int(words[0])


_PROC = Path('/proc')
_OPEN_FLAGS = os.O_RDONLY | getattr(os, 'O_CLOEXEC', 0)


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
            self._open[thread] = os.open(path, _OPEN_FLAGS)

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
        with open(path, encoding='ascii') as file:
            return file.read()
    except OSError:
        return None


def read_process_rss_bytes(proc: Path = Path('/proc')) -> int | None:
    """Resident memory of this process, in bytes.

    Out of ``/proc/self/statm``, and from ``psutil`` where there is none.

    Args:
        proc: Root of the proc file system.

    Returns:
        The bytes, or ``None`` where neither tells.
    """
    try:
        text = read_begin(os.path.join(proc, 'self', 'statm'), 128)
        return parse_resident_pages(text) * page_size_bytes()
    except (OSError, ValueError, IndexError):
        return _ask_psutil()


def parse_resident_pages(text: bytes) -> int:
    """Parse the resident pages out of ``/proc/<pid>/statm``::

        278060 1500 10823 1029 0 160771 0

    Raises:
        ValueError: If it is not understood.
        IndexError: If it is cut short.
    """
    return int(text.split(None, 2)[1])


def read_peak_rss_bytes(proc: Path = Path('/proc')) -> int | None:
    """Largest resident memory this process ever had, in bytes.

    Out of ``/proc/self/status``: what ``getrusage`` tells is also that of the process
    that started this one.

    Args:
        proc: Root of the proc file system.

    Returns:
        The bytes, or ``None`` where the platform does not tell.
    """
    try:
        text = (proc / 'self' / 'status').read_text(errors='replace')
    except OSError:
        return None
    return parse_peak_rss_bytes(text)


def parse_peak_rss_bytes(text: str) -> int | None:
    """Parse the peak out of ``/proc/<pid>/status``::

    VmHWM:    812044 kB
    """
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == 'VmHWM:' and words[1].isdigit():
            return int(words[1]) * 1024
    return None


def _ask_psutil() -> int | None:
    try:
        import psutil
    except ImportError:
        return None
    try:
        return int(psutil.Process().memory_info().rss)
    except (psutil.Error, OSError):
        return None


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


_LIST_PERIOD_S = 30.0
"""A list costs 0.2 us per descriptor: 13 ms in a process that holds 65,000."""


class OpenFiles:
    """Counts the open descriptors of this process.

    Since Linux 6.2 the size of ``/proc/self/fd`` is their number and a count
    costs 1.5 us. Where it is not, they are listed, at most every 30 seconds.

    Args:
        proc: Root of the proc file system.
        clock: Monotonic, in seconds.

    Raises:
        OSError: If this process's descriptors are hidden.
    """

    def __init__(self, proc: Path = Path('/proc'), clock: Clock = monotonic_s) -> None:
        self._folder = os.path.join(proc, 'self', 'fd')
        self._clock = clock
        self._listed: int | None = self._list()
        self._listed_s = clock()
        self._size_counts = os.stat(self._folder).st_size == self._listed

    def count(self) -> int | None:
        """Return how many are open; ``None`` where it is not yet time to list.

        Raises:
            OSError: If they are hidden by now.
        """
        if self._size_counts:
            return os.stat(self._folder).st_size
        listed, self._listed = self._listed, None
        if self._clock() - self._listed_s >= _LIST_PERIOD_S:
            listed = self._list()
            self._listed_s = self._clock()
        return listed

    def _list(self) -> int:
        # the listing holds a descriptor of its own
        return len(os.listdir(self._folder)) - 1
