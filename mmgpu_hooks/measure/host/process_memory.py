"""Memory of this process."""

from __future__ import annotations

import os
from pathlib import Path

from mmgpu_hooks.measure.host.kept_file import read_begin
from mmgpu_hooks.measure.host.system_memory import page_size_bytes


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
