"""What Linux tells of one process: its share of the CPU and where it may run."""

from __future__ import annotations

import os
from pathlib import Path

from mmgpu_hooks.records import SchedStat
from mmgpu_hooks.telemetry.source_error import SourceError

_PROC = Path('/proc')


def parse_schedstat(text: str) -> SchedStat:
    """Parse one ``schedstat`` file of ``/proc``.

    The file holds nanoseconds on a core, nanoseconds runnable but waiting for
    a core, and the number of time slices::

        97340213 2675070 2

    Args:
        text: The whole file.

    Returns:
        The first two figures in seconds.

    Raises:
        SourceError: If the text is not of this form.
    """
    try:
        on_core_ns, waiting_ns = (int(word) for word in text.split()[:2])
    except ValueError:
        raise SourceError(
            f'expected "<cpu ns> <run delay ns> <slices>" in schedstat, found {text!r}'
        ) from None
    return SchedStat(cpu_s=on_core_ns / 1e9, run_delay_s=waiting_ns / 1e9)


def read_schedstat(
    pid: int, proc: Path = _PROC, *, all_threads: bool = True
) -> SchedStat | None:
    """Read how long a process ran and how long it waited for a core.

    ``/proc/<pid>/schedstat`` counts the main thread only, although it carries
    the process's id; OpenCV and OpenMP threads of a loader worker are not in
    it. So by default the files of all threads are added up. Threads that have
    ended are no longer counted: the sum can fall between two reads.

    A read costs about 22 us plus 15 us per further thread, measured on a
    2-core VM, so once per interval and worker; 15 us with one thread only.

    Args:
        pid: Process to read.
        proc: Root of the proc file system.
        all_threads: Add up all living threads, or read the main thread alone.

    Returns:
        Seconds since the process started, or ``None`` when the process is
        gone, is hidden from us, or the host has no scheduler statistics.

    Raises:
        SourceError: If the kernel's text is not understood.
    """
    folder = os.path.join(proc, str(pid))
    if not all_threads:
        text = _read_text(os.path.join(folder, 'schedstat'))
        return None if text is None else parse_schedstat(text)
    tasks = os.path.join(folder, 'task')
    try:
        names = os.listdir(tasks)
    except OSError:
        return None
    cpu_s = run_delay_s = 0.0
    threads = 0
    for name in names:
        text = _read_text(os.path.join(tasks, name, 'schedstat'))
        if text is None:  # the thread ended after the listing
            continue
        one = parse_schedstat(text)
        cpu_s += one.cpu_s
        run_delay_s += one.run_delay_s
        threads += 1
    return SchedStat(cpu_s, run_delay_s) if threads else None


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
