"""How many descriptors a process holds open, without listing them each time."""

from __future__ import annotations

import os
from pathlib import Path

from mmgpu_hooks.measure.clock import Clock, monotonic_s

_LIST_PERIOD_S = 30.0
"""A list costs 0.2 us per descriptor: 13 ms in a process that holds 65,000."""


class OpenFiles:
    """Counts the open descriptors of this process.

    Since Linux 6.2 the size of ``/proc/self/fd`` is their number and a count
    costs 1.5 us. Where it is not, they are listed, at most every 30 seconds.

    Args:
        proc: Root of the proc file system.
        clock: Monotonic, in seconds.

    Raises:
        OSError: If this process's descriptors are hidden.
    """

    def __init__(self, proc: Path = Path('/proc'), clock: Clock = monotonic_s) -> None:
        self._folder = os.path.join(proc, 'self', 'fd')
        self._clock = clock
        self._listed: int | None = self._list()
        self._listed_s = clock()
        self._size_counts = os.stat(self._folder).st_size == self._listed

    def count(self) -> int | None:
        """Return how many are open; ``None`` where it is not yet time to list.

        Raises:
            OSError: If they are hidden by now.
        """
        if self._size_counts:
            return os.stat(self._folder).st_size
        listed, self._listed = self._listed, None
        if self._clock() - self._listed_s >= _LIST_PERIOD_S:
            listed = self._list()
            self._listed_s = self._clock()
        return listed

    def _list(self) -> int:
        # the listing holds a descriptor of its own
        return len(os.listdir(self._folder)) - 1
