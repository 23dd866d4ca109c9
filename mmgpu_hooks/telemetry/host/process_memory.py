"""Memory of this process."""

from __future__ import annotations

import functools
import os
from typing import Any


def read_process_rss_bytes() -> int | None:
    """Resident memory of this process, in bytes; a read costs 10 us.

    Returns:
        The bytes, or ``None`` without psutil and where the platform hides them.
    """
    try:
        import psutil
    except ImportError:
        return None
    try:
        return int(_process(os.getpid()).memory_info().rss)
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


@functools.lru_cache(maxsize=1)
def _process(pid: int) -> Any:
    # making one reads files of its own; a forked child needs another
    import psutil

    return psutil.Process(pid)
