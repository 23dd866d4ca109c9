"""CPU inside the waits for data, at the price of a few looks."""

from __future__ import annotations

from typing import Callable

_SHORTEST_S = 1e-4
"""A shorter wait is our own way through Python, and all of it is CPU."""


class WaitCpu:
    """CPU seconds inside the waits, from some of them.

    A CPU clock is a system call, so only some waits are looked at, and for the others
    what those used of their time is taken.

    Args:
        clock: CPU seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: tuple[float, float] | None = None
        self._cpu_s = self._wall_s = 0.0
        self._run_cpu_s = self._run_wall_s = 0.0

    def begin(self, now_s: float) -> None:
        """A wait begins that is looked at; ``now_s`` is what the wall clock says."""
        self._since = now_s, self._clock()

    def drop(self) -> None:
        """It was none, or something else came in between."""
        self._since = None

    def end(self, now_s: float) -> None:
        """It ends."""
        if self._since is None:
            return
        begin_s, begin_cpu_s = self._since
        self._since = None
        if now_s - begin_s >= _SHORTEST_S:
            self._cpu_s += self._clock() - begin_cpu_s
            self._wall_s += now_s - begin_s

    def fold(self, waits_s: float) -> float:
        """CPU seconds inside all waits since the last call.

        Args:
            waits_s: What they took, those looked at included.
        """
        self._run_cpu_s += self._cpu_s
        self._run_wall_s += self._wall_s
        looked_cpu_s, looked_s = self._cpu_s, self._wall_s
        self._cpu_s = self._wall_s = 0.0
        if not self._run_wall_s:
            return 0.0
        # of few looks the run knows more than the last waits
        share = self._run_cpu_s / self._run_wall_s
        return looked_cpu_s + max(waits_s - looked_s, 0.0) * share
