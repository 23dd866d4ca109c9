"""The time ledger: at any moment exactly one part of training is running.

The ledger knows no trainer. Whoever drives it says which part begins; the time
in between belongs to the part before. So the parts add up to the wall clock by
construction, and nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

from mmgpu_hooks.evidence.wait_cpu import WaitCpu

PARTS: tuple[str, ...] = (
    'data_wait',
    'step',
    'hooks',
    'checkpoint_save',
    'validation',
    'worker_startup',
    'other',
)
"""Every second of training is in exactly one of these."""

_HOOK = 'hooks/'
"""What the label of one hook's share of ``hooks`` begins with."""


@dataclass(frozen=True)
class LedgerReading:
    """The ledger's totals at one moment."""

    wall_s: Mapping[str, float]
    """Seconds by part."""
    data_wait_cpu_s: float
    """CPU seconds inside the waits that are over."""
    hooks_s: Mapping[str, float]
    """What of ``hooks`` went to which hook."""


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
        self._wall: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._wait_cpu = WaitCpu(cpu_clock)
        self._is_looked_into = False
        self._unseen_waits_s = 0.0
        self._stack: list[str] = ['other']
        self._startup_in_waits_s = 0.0
        self.start()

    def start(self) -> None:
        """Begin to count now; what passed since it was made is nobody's."""
        self._wall.update(dict.fromkeys(self._wall, 0.0))
        self.started = self._since = self._clock()
        self._lap = (0.0, 0.0, self._since)

    @property
    def depth(self) -> int:
        """How many parts are nested; 1 is the plain loop."""
        return len(self._stack)

    @property
    def current(self) -> str:
        """The part that is running."""
        part = self._stack[-1]
        return 'hooks' if part.startswith(_HOOK) else part

    def _settle(self) -> None:
        now = self._clock()
        self._wall[self._stack[-1]] += now - self._since
        self._since = now

    def _leave_part(self) -> None:
        """Settle, and end the wait if that is what runs."""
        part, before = self._stack[-1], self._since
        self._settle()
        if part == 'data_wait':
            self._end_wait(self._since - before)

    def _enter_part(self) -> None:
        if self._stack[-1] == 'data_wait':
            self._is_looked_into = self._wait_cpu.begin()

    def _end_wait(self, wall_s: float) -> None:
        if self._is_looked_into:
            self._wait_cpu.end(wall_s, self._unseen_waits_s)
            self._unseen_waits_s = 0.0
            self._is_looked_into = False
        else:
            self._unseen_waits_s += wall_s

    def switch(self, part: str) -> None:
        """End the innermost part and begin ``part`` at the same level."""
        self._leave_part()
        self._stack[-1] = part
        self._enter_part()

    def rename(self, part: str) -> None:
        """Book what the innermost part took since it last began as ``part``."""
        self._stack[-1] = part
        self._wait_cpu.drop()
        self._is_looked_into = False

    def push(self, part: str) -> None:
        """Begin ``part`` inside the one that runs."""
        self._leave_part()
        self._stack.append(part)
        self._enter_part()

    def pop(self, part: str | None = None) -> None:
        """End the innermost part; the one around it goes on.

        Args:
            part: When given, everything above the innermost ``part`` is closed
                too. A name that is not open changes nothing, so that an error
                between two anchors cannot unbalance the ledger for good.
        """
        if part is not None and part not in self._stack[1:]:
            return
        self._leave_part()
        if part is not None:
            while self._stack[-1] != part:
                self._stack.pop()
        if len(self._stack) > 1:
            self._stack.pop()
        self._enter_part()

    def begin_hooks(self) -> bool:
        """Begin ``hooks``, if nothing is nested in the plain loop.

        Returns:
            Whether it began; what calls hooks inside a part goes on being that part.
        """
        stack = self._stack
        if len(stack) > 1:
            return False
        part, before = stack[0], self._since
        now = self._since = self._clock()
        self._wall[part] += now - before
        if part == 'data_wait':
            if self._is_looked_into:
                self._end_wait(now - before)
            else:
                self._unseen_waits_s += now - before
        stack.append('hooks')
        return True

    def end_hooks(self, part: str | None) -> None:
        """End ``hooks`` and everything in it; the plain loop goes on with ``part``.

        Args:
            part: What the loop does from now on; ``None`` is what it did before.
        """
        stack = self._stack
        now = self._clock()
        self._wall[stack[-1]] += now - self._since
        self._since = now
        del stack[1:]
        if part is not None:
            stack[0] = part
        if stack[0] == 'data_wait':
            self._is_looked_into = self._wait_cpu.begin()

    def unwind(self) -> None:
        """End everything that is nested; the plain loop goes on."""
        self._leave_part()
        del self._stack[1:]
        self._enter_part()

    def book_calls(
        self,
        function: Callable[..., Any],
        name: str,
        on_error: Callable[[Exception], None],
    ) -> Callable[..., Any]:
        """``function``, with its calls out of plain ``hooks`` booked to one hook.

        The way from the hook before is booked with it: that saves a look at the clock.
        A call inside a validation, a save or another hook is part of that.

        Args:
            function: A method of a hook.
            name: A part, or what its share is called in
                :attr:`LedgerReading.hooks_s`.
            on_error: Gets a failure of the ledger, after which it stands still.
        """
        label = name if name in PARTS else _HOOK + name
        wall, stack, clock = self._wall, self._stack, self._clock
        wall.setdefault(label, 0.0)

        # called for each hook in each iteration: all in one frame
        def booked(*args: Any, **kwargs: Any) -> Any:
            if stack[-1] != 'hooks':
                return function(*args, **kwargs)
            stack[-1] = label
            result = function(*args, **kwargs)
            if stack[-1] is label:
                try:
                    now = clock()
                    wall[label] += now - self._since
                    self._since = now
                    stack[-1] = 'hooks'
                except Exception as error:  # noqa: BLE001  # training must not see it
                    on_error(error)
            return result

        return booked

    def lap(self) -> tuple[float, float, float]:
        """End one iteration.

        Returns:
            Its ``data_wait``, its ``step``, and all of it (wait, step and hooks), in
            seconds since the last lap.
        """
        wall = self._wall
        now = self._clock()
        wall[self._stack[-1]] += now - self._since
        self._since = now
        wait_s, step_s = wall['data_wait'], wall['step']
        # written out: this is in every iteration
        inside_s = now - (
            wall['checkpoint_save']
            + wall['validation']
            + wall['worker_startup']
            + wall['other']
        )
        wait_before_s, step_before_s, inside_before_s = self._lap
        self._lap = (wait_s, step_s, inside_s)
        return (
            wait_s - wait_before_s,
            step_s - step_before_s,
            inside_s - inside_before_s,
        )

    def book_startup(self, seconds: float) -> None:
        """Move so much of what is booked as ``data_wait`` to ``worker_startup``."""
        self._startup_in_waits_s += seconds

    def read(self) -> LedgerReading:
        """The totals up to now."""
        self._settle()
        self._wait_cpu.add_unseen(self._unseen_waits_s)
        self._unseen_waits_s = 0.0
        wall = self._wall
        parts = {part: wall[part] for part in PARTS}
        by_hook = {
            label[len(_HOOK) :]: seconds
            for label, seconds in wall.items()
            if label.startswith(_HOOK)
        }
        parts['hooks'] += sum(by_hook.values())
        parts['data_wait'] -= self._startup_in_waits_s
        parts['worker_startup'] += self._startup_in_waits_s
        return LedgerReading(parts, self._wait_cpu.total_s, by_hook)

    def elapsed_s(self) -> float:
        """Seconds since the ledger was opened; the sum of the parts of :meth:`read`."""
        return self._since - self.started
