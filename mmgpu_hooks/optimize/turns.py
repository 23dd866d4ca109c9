"""Measures the CPU seconds of calls with and without an optimisation, for the log.

What an optimisation gives is measured twice. Both ways leave the same bits, so a
training may take them in turns: the first calls of a step and of an average do. ``mmgpu
profile`` compares whole iterations with and without them in a trial, part by part. A
run finds that profile in its ``work_dir`` and takes it for its own where both have
counted the same (``judge/host_costs.py``); what is spared goes into the workload, and
the model that predicts all settings predicts it (``recommend/host_overhead.py``).
"""

from __future__ import annotations

import statistics
from typing import Any, Callable, ClassVar

from mmgpu_hooks.measure.clock import thread_cpu_s
from mmgpu_hooks.schema.recorded import SparedTime


class Turns:
    """Times the first calls of a function, alternately with and without optimisation.

    Both ways compute the same bits, so it does not matter which goes first. After
    that every call is ours, and none is timed.
    """

    calls: ClassVar[int] = 8
    """Number of calls of a function to time with, and again without, its optimisation.

    0 takes no turns, for who compares whole iterations in a process of its own.
    """

    def __init__(self) -> None:
        self._ours_s: list[float] = []
        self._plain_s: list[float] = []

    @property
    def is_plain_due(self) -> bool:
        """True if the next call is to be run without the optimisation, and timed."""
        wanted = self.calls and min(len(self._ours_s), self.calls + 1)
        return len(self._plain_s) < wanted

    def call_plain(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function without its optimisation, and notes its CPU seconds."""
        began_s = thread_cpu_s()
        result = function(*args)
        self._plain_s.append(thread_cpu_s() - began_s)
        return result

    def begin(self) -> float | None:
        """Reads the CPU clock before an optimised call; ``None`` if it is not timed."""
        is_timed = self.calls and len(self._ours_s) <= self.calls
        return thread_cpu_s() if is_timed else None

    def end(self, began_s: float | None) -> None:
        """Stops timing the optimised call that :meth:`begin` started."""
        if began_s is not None:
            self._ours_s.append(thread_cpu_s() - began_s)

    @property
    def spared(self) -> SparedTime | None:
        """Median CPU seconds of a call with and without the optimisation."""
        count = min(len(self._plain_s), len(self._ours_s)) - 1
        if count < 2:
            return None
        return SparedTime(
            plain_s=statistics.median(self._plain_s[1 : count + 1]),
            ours_s=statistics.median(self._ours_s[1 : count + 1]),
            calls=count,
        )
