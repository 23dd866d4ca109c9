"""The time ledger: at any moment exactly one part of training is running.

The ledger knows no trainer. Whoever drives it says which part begins; the time
in between belongs to the part before. So the parts add up to the wall clock by
construction, and nothing is counted twice.
"""

from __future__ import annotations

from typing import Callable

PARTS: tuple[str, ...] = (
    'data_wait',
    'step',
    'hooks',
    'checkpoint_save',
    'validation',
    'other',
)
"""Every second of training is in exactly one of these."""


class TimeLedger:
    """Seconds of wall clock by part, and the CPU used inside ``data_wait``.

    Parts nest: a save inside a hook inside an iteration is :meth:`push`-ed on
    top of ``hooks`` and :meth:`pop`-ped again, and only the innermost runs.

    Args:
        clock: Monotonic seconds.
        cpu_clock: CPU seconds of whoever loads inside the wait: the thread that trains,
            or the whole process when it loads without workers.
    """

    def __init__(
        self, clock: Callable[[], float], cpu_clock: Callable[[], float]
    ) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._wall: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._cpu_s = 0.0
        self._stack: list[str] = ['other']
        self._since = clock()
        self._cpu_since: float | None = None
        self.started = self._since

    @property
    def depth(self) -> int:
        """How many parts are nested; 1 is the plain loop."""
        return len(self._stack)

    @property
    def current(self) -> str:
        """The part that is running."""
        return self._stack[-1]

    def _settle(self) -> None:
        now = self._clock()
        self._wall[self._stack[-1]] += now - self._since
        self._since = now

    def _follow_cpu(self) -> None:
        # a CPU clock is a system call: read it at the ends of the waits alone
        if self._cpu_since is not None:
            self._cpu_s += self._cpu_clock() - self._cpu_since
            self._cpu_since = None
        if self._stack[-1] == 'data_wait':
            self._cpu_since = self._cpu_clock()

    def switch(self, part: str) -> None:
        """End the innermost part and begin ``part`` at the same level."""
        self._settle()
        self._stack[-1] = part
        self._follow_cpu()

    def push(self, part: str) -> None:
        """Begin ``part`` inside the one that runs."""
        self._settle()
        self._stack.append(part)
        self._follow_cpu()

    def pop(self, part: str | None = None) -> None:
        """End the innermost part; the one around it goes on.

        Args:
            part: When given, everything above the innermost ``part`` is closed
                too. A name that is not open changes nothing, so that an error
                between two anchors cannot unbalance the ledger for good.
        """
        self._settle()
        if part is not None:
            if part not in self._stack[1:]:
                return
            while self._stack[-1] != part:
                self._stack.pop()
        if len(self._stack) > 1:
            self._stack.pop()
        self._follow_cpu()

    def unwind(self) -> None:
        """End everything that is nested; the plain loop goes on."""
        self._settle()
        del self._stack[1:]
        self._follow_cpu()

    def totals(self) -> dict[str, float]:
        """Wall-clock seconds by part, up to now."""
        self._settle()
        return dict(self._wall)

    @property
    def data_wait_cpu_s(self) -> float:
        """CPU seconds used inside the waits that are over."""
        return self._cpu_s

    def elapsed_s(self) -> float:
        """Seconds since the ledger was opened; the sum of :meth:`totals`."""
        return self._since - self.started
