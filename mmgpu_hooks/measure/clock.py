"""Clocks that return seconds, and their type :data:`Clock`, which tests can fake."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Callable

Clock = Callable[[], float]
"""Type of functions that return a time in seconds; only differences matter."""

monotonic_s: Clock = time.perf_counter
"""Time in seconds by a monotonic clock, which is never set back."""

thread_cpu_s: Clock = time.thread_time
"""CPU seconds that the calling thread has used so far."""

process_cpu_s: Clock = time.process_time
"""CPU seconds that all threads of this process have used so far, children excluded."""

wall_unix_s: Clock = time.time
"""Seconds since 1970 by the wall clock; used as a label, never for durations."""


def local_time(ahead_s: float = 0.0) -> datetime:
    """Local date and time, by this host's clock, ``ahead_s`` seconds from now."""
    return datetime.fromtimestamp(wall_unix_s() + ahead_s)


def seconds_until(unix_s: float) -> float:
    """Seconds from now to a time given in seconds since 1970; below 0 once past."""
    return unix_s - wall_unix_s()


def read_age_s(unix_ns: int) -> float:
    """Seconds from a file's timestamp until now, by the wall clock; may be negative.

    Args:
        unix_ns: Time of the file, as ``os.stat`` gives it.
    """
    return (time.time_ns() - unix_ns) / 1e9


def grown(before: float | None, now: float | None) -> float | None:
    """Difference of two counter readings, 0 at least; ``None`` if one is unknown."""
    return None if before is None or now is None else max(now - before, 0.0)
