"""Clocks that return seconds, and their type :data:`Clock`, which tests can fake."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Callable

Clock = Callable[[], float]
"""Type of functions that return a time in seconds; only differences matter."""

monotonic_s: Clock = time.perf_counter
"""Function that returns seconds of a monotonic clock, which is never set back."""

thread_cpu_s: Clock = time.thread_time
"""Function that returns the CPU seconds that the calling thread has used so far."""

process_cpu_s: Clock = time.process_time
"""Function that returns CPU seconds of this process's threads, children excluded."""

wall_unix_s: Clock = time.time
"""Function that returns seconds since 1970; used as a label, never for durations."""


def local_time(ahead_s: float = 0.0) -> datetime:
    """Returns this host's local date and time, ``ahead_s`` seconds from now."""
    return datetime.fromtimestamp(wall_unix_s() + ahead_s)


def seconds_until(unix_s: float) -> float:
    """Returns the seconds from now to a Unix time in seconds; below 0 once past."""
    return unix_s - wall_unix_s()


def read_age_s(unix_ns: int) -> float:
    """Returns the seconds from a file's timestamp to now (wall clock); may be negative.

    Args:
        unix_ns: Time of the file, as ``os.stat`` gives it.
    """
    return (time.time_ns() - unix_ns) / 1e9


def grown(before: float | None, now: float | None) -> float | None:
    """Returns a counter's growth between two readings (>= 0); ``None`` if unknown."""
    return None if before is None or now is None else max(now - before, 0.0)
