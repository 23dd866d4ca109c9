"""Clocks, in seconds. Code takes a :data:`Clock`; tests turn one by hand."""

from __future__ import annotations

import time
from typing import Callable

Clock = Callable[[], float]
"""Returns seconds; only differences of two readings mean anything."""

monotonic_s: Clock = time.perf_counter
"""For durations: never set back, runs on while the process sleeps."""

thread_cpu_s: Clock = time.thread_time
"""CPU time of the calling thread."""

process_cpu_s: Clock = time.process_time
"""CPU time of this process, all threads, children excluded."""

wall_unix_s: Clock = time.time
"""Seconds since 1970; a label, never used for durations."""


def grown(before: float | None, now: float | None) -> float | None:
    """What a counter grew by, never below 0; ``None`` where either is unknown."""
    return None if before is None or now is None else max(now - before, 0.0)
