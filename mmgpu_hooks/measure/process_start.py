"""State and start of a process, which tell it from a later one of the same number."""

from __future__ import annotations

from typing import NamedTuple


class ProcessStart(NamedTuple):
    """State of a process, and when it started."""

    state: str
    """As in ``ps``."""
    ticks: int
    """Clock ticks after boot."""


def parse_process_start(text: str) -> ProcessStart:
    """Parse state and start of a process out of ``/proc/PID/stat``.

    The name of the program may hold blanks and brackets::

        4123 (pt_data) worker) S 1 4123 4123 0 -1 4194560 ...
    """
    fields = text.rpartition(')')[2].split()
    return ProcessStart(state=fields[0], ticks=int(fields[19]))
