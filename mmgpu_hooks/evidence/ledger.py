"""The time ledger: at any moment exactly one part of training is running.

The ledger knows no trainer. Whoever drives it says which part begins; the time
in between belongs to the part before. So the parts add up to the wall clock by
construction, and nothing is counted twice.

What drives it only leaves stamps on a tape: between two steps caches are cold, and
sums would cost ten times what they cost later, all at once.
"""

from __future__ import annotations

import math
from typing import Any, Callable

from mmgpu_hooks.evidence.hook_shares import LONG_S, HookShares
from mmgpu_hooks.evidence.ledger_parts import (
    EXACT,
    LOOKED,
    OF_LOOP,
    PARTS,
    UNSPLIT,
    Lap,
    LedgerReading,
)
from mmgpu_hooks.evidence.stamps import Stamps
from mmgpu_hooks.evidence.wait_cpu import WaitCpu


class TimeLedger(Stamps):
    """Seconds of wall clock by part, and the CPU used inside ``data_wait``.

    Parts nest: a save inside a hook inside an iteration is :meth:`push`-ed on
    top of ``hooks`` and :meth:`pop`-ped again, and only the innermost runs.

    The tape is bounded by whoever calls :meth:`read` or :meth:`drain_laps` often
    enough; an iteration leaves some 6 stamps.

    Args:
        clock: Monotonic seconds.
        cpu_clock: CPU seconds of whoever loads inside the wait: the thread that trains,
            or the whole process when it loads without workers.
    """

    def __init__(
        self, clock: Callable[[], float], cpu_clock: Callable[[], float]
    ) -> None:
        super().__init__(clock)
        self._wall: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self.shares = HookShares()
        """Who took how much of ``hooks``."""
        self._laps: list[Lap] = []
        self._wait_cpu = WaitCpu(cpu_clock)
        self._wait_cpu_s = self._folded_waits_s = 0.0
        self._startup_in_waits_s = 0.0
        self._last = 'other'
        """What was last booked on the tape that no hook is."""
        self.start()

    def start(self) -> None:
        """Begin to count now; what passed since it was made is nobody's."""
        self._tape.clear()
        self._lap_ends.clear()
        self._wall.update(dict.fromkeys(self._wall, 0.0))
        self.started = self._folded_until = self._clock()

    @property
    def current(self) -> str:
        """The part that is running."""
        part = self._stack[-1]
        return part if part in self._wall else 'hooks'

    def _stamp(self, part: str) -> None:
        """``part`` ends now."""
        self._tape += (self._clock(), part)

    def _leave_part(self) -> None:
        """Stamp, and look no more at the wait, if that is what runs."""
        self._stamp(self._stack[-1])
        self._wait_cpu.drop()

    def begin_wait(self) -> None:
        """Look at what CPU is used from here to :meth:`end_wait`."""
        self._wait_cpu.begin(self._clock())

    def end_wait(self) -> None:
        """The wait is over; nothing was nested in it, or it does not count."""
        self._wait_cpu.end(self._clock())

    def end_look(self) -> None:
        """Hooks that were looked at one by one have run; what follows is our own."""
        between = self._stack[-1]
        self._stamp(between)
        self._stack[-1] = EXACT
        self.shares.looks += between == LOOKED

    def rename(self, part: str) -> None:
        """Book what the innermost part took since it last began as ``part``."""
        self._stack[-1] = part
        self._wait_cpu.drop()

    def push(self, part: str) -> None:
        """Begin ``part`` inside the one that runs."""
        self._leave_part()
        self._stack.append(part)

    def pop(self, part: str) -> None:
        """End ``part`` and everything above it; the one around it goes on.

        A name that is not open changes nothing, so that an error between two anchors
        cannot unbalance the ledger for good.
        """
        if part not in self._stack[1:]:
            return
        self._leave_part()
        while self._stack.pop() != part:
            pass

    def begin_hooks(self) -> bool:
        """Begin ``hooks``, if nothing is nested in the plain loop.

        Returns:
            Whether it began; what calls hooks inside a part goes on being that part.
        """
        if self.is_nested:
            return False
        self.push(EXACT)
        return True

    def end_hooks(self, part: str | None) -> None:
        """End ``hooks`` and everything in it; the plain loop goes on with ``part``.

        Args:
            part: What the loop does from now on; ``None`` is what it did before.
        """
        self._stamp(self._stack[-1])
        del self._stack[1:]
        if part is not None:
            self._stack[0] = part
        if self._stack[0] != 'data_wait':
            self._wait_cpu.drop()

    def unwind(self) -> None:
        """End everything that is nested; the plain loop goes on."""
        self._leave_part()
        del self._stack[1:]
        if self._stack[0] not in OF_LOOP:
            self._stack[0] = 'other'

    def drain_laps(self) -> list[Lap]:
        """Where the iterations ended that did so since the last call."""
        if self._lap_ends or self._tape:
            self._fold()
        laps, self._laps = self._laps, []
        return laps

    def _fold(self) -> None:
        """Sum up what is on the tape."""
        ends = iter([*self._lap_ends, math.inf])
        self._lap_ends.clear()
        end = next(ends)
        wall, book = self._wall, self._book
        until, brief_s, last = self._folded_until, 0.0, self._last
        if len(self._tape) % 2:
            self._drop_lone_times()
        stamps: Any = iter(self._tape)
        for now, part in zip(stamps, stamps):
            if now < until:
                # the iterations that ended before the clock was set back
                while until <= end < math.inf:
                    book(part, end - until, last)
                    self._end_lap(end)
                    until, end = end, next(ends)
                until = self._set_back(until, min(now, end))
            while end <= now and end >= until:
                # an iteration ended in the midst of it
                book(part, end - until, last)
                self._end_lap(end)
                until, end = end, next(ends)
            seconds = now - until
            until = now
            # half of all stamps, and as _book does without two calls for each
            if part == UNSPLIT and seconds <= LONG_S:
                brief_s += seconds
            elif part in wall and part != UNSPLIT:
                wall[part] += seconds
                last = part
            else:
                book(part, seconds, last)
        self._tape.clear()
        if brief_s:
            self.shares.add_brief(brief_s)
        while end < math.inf:
            # nothing else began since the last stamp
            if end < until:
                until = self._set_back(until, end)
            book(self._stack[-1], end - until, last)
            self._end_lap(end)
            until, end = end, next(ends)
        self._folded_until, self._last = until, last

    def _drop_lone_times(self) -> None:
        """Ctrl-C fell between a time and its part: what passed is the next part's."""
        tape = self._tape
        pairs = zip(tape, tape[1:])
        whole = [pair for pair in pairs if isinstance(pair[1], str)]
        tape[:] = [one for pair in whole for one in pair]

    def _set_back(self, until: float, now: float) -> float:
        """The clock was set back, as no such clock should be: time goes on from there.

        What passed meanwhile nobody knows, and no part has less than nothing of it.
        """
        self.started -= until - now
        return now

    def _book(self, part: str, seconds: float, last: str) -> None:
        """Add what passed to ``part``, which followed ``last``."""
        if part in self._wall and part != UNSPLIT:
            self._wall[part] += seconds
        else:
            self.shares.add(part, seconds, last)

    def _end_lap(self, now: float) -> None:
        """All until ``now`` is booked, and an iteration ended."""
        wall = self._wall
        outside_s = (
            wall['checkpoint_save']
            + wall['validation']
            + wall['worker_startup']
            + wall['other']
        )
        inside_s = now - self.started - outside_s
        self._laps.append((wall['data_wait'], wall['step'], inside_s))

    def book_startup(self, seconds: float) -> None:
        """Move so much of what is booked as ``data_wait`` to ``worker_startup``."""
        self._startup_in_waits_s += seconds

    def read(self) -> LedgerReading:
        """The totals up to now."""
        self._stamp(self._stack[-1])
        self._fold()
        wall = self._wall
        waits_s = wall['data_wait']
        self._wait_cpu_s += self._wait_cpu.fold(waits_s - self._folded_waits_s)
        self._folded_waits_s = waits_s
        parts = {part: wall[part] for part in PARTS}
        parts['hooks'] = self.shares.total_s
        parts['data_wait'] -= self._startup_in_waits_s
        parts['worker_startup'] += self._startup_in_waits_s
        return LedgerReading(parts, self._wait_cpu_s, self.shares.split())

    def elapsed_s(self) -> float:
        """Seconds since it was started; the sum of the parts of the last reading."""
        return self._folded_until - self.started
