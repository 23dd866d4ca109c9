"""CPU inside the waits for data, at the price of a few looks."""

from __future__ import annotations

from typing import Callable


class WaitCpu:
    """CPU seconds inside the waits, from some of them.

    A CPU clock is a system call: every seventh wait is looked at, and for the others
    what the last ones looked at used of their time is taken.

    Args:
        clock: CPU seconds.
    """

    _STRIDE = 7  # no usual number of workers: their bursts would beat with it
    _MEMORY = 0.9

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._count = 0
        self._since: float | None = None
        self._cpu_s = 0.0
        self._wall_s = 0.0
        self.total_s = 0.0
        """Of all the waits that are over."""

    def begin(self) -> bool:
        """A wait begins; whether it is looked at, so that :meth:`end` is due."""
        self._count += 1
        if self._count % self._STRIDE != 1:
            return False
        self._since = self._clock()
        return True

    def drop(self) -> None:
        """It was none."""
        self._since = None

    def end(self, wall_s: float, unseen_s: float) -> None:
        """A wait that is looked at ends.

        Args:
            wall_s: What it took.
            unseen_s: What the waits took that nobody looked at since the last call.
        """
        self.add_unseen(unseen_s)
        if self._since is not None:
            cpu_s = self._clock() - self._since
            self._since = None
            self._cpu_s = self._MEMORY * self._cpu_s + cpu_s
            self._wall_s = self._MEMORY * self._wall_s + wall_s
            self.total_s += cpu_s

    def add_unseen(self, wall_s: float) -> None:
        """Count waits that nobody looked at."""
        if self._wall_s > 0:
            self.total_s += wall_s * self._cpu_s / self._wall_s
