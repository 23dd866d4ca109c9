"""The time ledger: at any moment exactly one part of training is running.

The ledger knows no trainer. Whoever drives it says which part begins; the time
in between belongs to the part before. So the parts add up to the wall clock by
construction, and nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from mmgpu_hooks.evidence.ledger_parts import PARTS, Lap, LedgerReading, Point
from mmgpu_hooks.evidence.wait_cpu import WaitCpu

_HOOK = 'hooks/'
"""What the label of one hook's share of ``hooks`` begins with."""


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
        self._stack: list[str] = ['other']
        # in a list, because the functions of every iteration share it
        self._since: list[float] = [0.0]
        self._wait_cpu = WaitCpu(cpu_clock)
        self._wait_cpu_s = self._folded_waits_s = 0.0
        self._startup_in_waits_s = 0.0
        self.start()

    def start(self) -> None:
        """Begin to count now; what passed since it was made is nobody's."""
        self._wall.update(dict.fromkeys(self._wall, 0.0))
        self.started = self._since[0] = self._clock()

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
        self._wall[self._stack[-1]] += now - self._since[0]
        self._since[0] = now

    def _leave_part(self) -> None:
        """Settle, and end the look at the wait, if that is what runs."""
        before = self._since[0]
        self._settle()
        if self._wait_cpu.since is not None:
            self._wait_cpu.end(self._since[0] - before)

    def _enter_part(self) -> None:
        # seldom: at the begin of an epoch, after a validation
        if self._stack[-1] == 'data_wait':
            self._wait_cpu.begin()

    def switch(self, part: str) -> None:
        """End the innermost part and begin ``part`` at the same level."""
        self._leave_part()
        self._stack[-1] = part
        self._enter_part()

    def rename(self, part: str) -> None:
        """Book what the innermost part took since it last began as ``part``."""
        self._stack[-1] = part
        self._wait_cpu.drop()

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
        if len(self._stack) > 1:
            return False
        self.push('hooks')
        return True

    def end_hooks(self, part: str | None) -> None:
        """End ``hooks`` and everything in it; the plain loop goes on with ``part``.

        Args:
            part: What the loop does from now on; ``None`` is what it did before.
        """
        self._settle()
        del self._stack[1:]
        if part is not None:
            self._stack[0] = part
        self._enter_part()

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

        What passes between two hooks stays in plain ``hooks``. A call inside a
        validation, a save or another hook is part of that.

        Args:
            function: A method of a hook.
            name: A part, or what its share is called in
                :attr:`LedgerReading.hooks_s`.
            on_error: Gets a failure of the ledger, after which it stands still.
        """
        label = name if name in PARTS else _HOOK + name
        wall, stack, since, clock = self._wall, self._stack, self._since, self._clock
        wall.setdefault(label, 0.0)

        # called for each hook in each iteration: all in one frame
        def booked(*args: Any, **kwargs: Any) -> Any:
            if stack[-1] != 'hooks':
                return function(*args, **kwargs)
            try:
                now = clock()
                wall['hooks'] += now - since[0]
                since[0] = now
                stack[-1] = label
            except Exception as error:  # noqa: BLE001  # training must not see it
                on_error(error)
            result = function(*args, **kwargs)
            if stack[-1] is label:
                try:
                    now = clock()
                    wall[label] += now - since[0]
                    since[0] = now
                    stack[-1] = 'hooks'
                except Exception as error:  # noqa: BLE001  # training must not see it
                    on_error(error)
            return result

        return booked

    def book_points(
        self,
        function: Callable[..., Any],
        points: Mapping[Any, Point],
        otherwise: Callable[..., Any],
        on_error: Callable[[str, Exception], None],
    ) -> Callable[..., Any]:
        """``function``, which calls the hooks of a point, booked as ``hooks``.

        For the points of every iteration: between two steps caches are cold, and each
        Python function costs a microsecond and more. So this is one, long as it is.

        Args:
            function: Takes the name of a point first, as ``Runner.call_hook`` does.
            points: What is known of those points, by name.
            otherwise: Called instead at any other point, and where something is
                nested in the plain loop.
            on_error: Gets the source that failed and its error; it must see to it that
                ``points`` no longer holds what failed.
        """
        wall, stack, since, clock = self._wall, self._stack, self._since, self._clock
        wait_cpu = self._wait_cpu
        until_look = 1

        def call_point(*args: Any, **kwargs: Any) -> Any:
            nonlocal until_look
            point = points.get(args[0] if args else kwargs.get('fn_name'))
            if point is None or len(stack) > 1:
                return otherwise(*args, **kwargs)
            try:
                now = clock()
                passed = now - since[0]
                wall[stack[0]] += passed
                since[0] = now
                if wait_cpu.since is not None:
                    wait_cpu.end(passed)
                stack.append('hooks')
            except Exception as error:  # noqa: BLE001  # training must not see it
                on_error('ledger', error)
                return function(*args, **kwargs)
            for source, call in point.before:
                try:
                    call()
                except Exception as error:  # noqa: BLE001
                    on_error(source, error)
            result = function(*args, **kwargs)
            for source, call in point.after:
                try:
                    call()
                except Exception as error:  # noqa: BLE001
                    on_error(source, error)
            try:
                now = clock()
                wall[stack[-1]] += now - since[0]
                since[0] = now
                del stack[1:]
                stack[0] = point.following
                if point.following == 'data_wait':
                    until_look -= 1
                    if not until_look:
                        # no usual number of workers: their bursts would beat with it
                        until_look = 7
                        wait_cpu.begin()
            except Exception as error:  # noqa: BLE001
                on_error('ledger', error)
            return result

        return call_point

    def lap(self) -> Lap:
        """End one iteration, which is what passed since the last lap."""
        wall = self._wall
        now = self._clock()
        wall[self._stack[-1]] += now - self._since[0]
        self._since[0] = now
        # written out: this is in every iteration
        outside_s = (
            wall['checkpoint_save']
            + wall['validation']
            + wall['worker_startup']
            + wall['other']
        )
        return wall['data_wait'], wall['step'], now - outside_s

    def book_startup(self, seconds: float) -> None:
        """Move so much of what is booked as ``data_wait`` to ``worker_startup``."""
        self._startup_in_waits_s += seconds

    def read(self) -> LedgerReading:
        """The totals up to now."""
        self._settle()
        wall = self._wall
        waits_s = wall['data_wait']
        self._wait_cpu_s += self._wait_cpu.fold(waits_s - self._folded_waits_s)
        self._folded_waits_s = waits_s
        parts = {part: wall[part] for part in PARTS}
        by_hook = {
            label[len(_HOOK) :]: seconds
            for label, seconds in wall.items()
            if label.startswith(_HOOK)
        }
        parts['hooks'] += sum(by_hook.values())
        parts['data_wait'] -= self._startup_in_waits_s
        parts['worker_startup'] += self._startup_in_waits_s
        return LedgerReading(parts, self._wait_cpu_s, by_hook)

    def elapsed_s(self) -> float:
        """Seconds since the ledger was opened; the sum of the parts of :meth:`read`."""
        return self._since[0] - self.started
