"""Reads a process's state and start time, as ids alone may be reused."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple


class ProcessStart(NamedTuple):
    """State of a process, and the time at which it started."""

    state: str
    """State of the process as in ``ps``: R, S, D, T or Z."""
    ticks: int
    """Start of the process, in clock ticks after boot."""


def parse_process_start(text: str) -> ProcessStart:
    """Parses state and start of a process out of ``/proc/PID/stat``.

    The name of the program may hold blanks and brackets::

        4123 (pt_data) worker) S 1 4123 4123 0 -1 4194560 ...
    """
    fields = text.rpartition(')')[2].split()
    return ProcessStart(state=fields[0], ticks=int(fields[19]))


def read_process_age_s(proc: Path = Path('/proc')) -> float | None:
    """Returns the seconds since this process started; ``None`` if unknown.

    Time in which the host slept counts.
    """
    try:
        text = (proc / 'self' / 'stat').read_text(errors='replace')
        ticks = parse_process_start(text).ticks
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        return max(now_s - ticks / os.sysconf('SC_CLK_TCK'), 0.0)
    except (OSError, ValueError, IndexError, AttributeError):
        return None
