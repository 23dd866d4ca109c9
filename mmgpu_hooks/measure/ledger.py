"""The time ledger: at any moment exactly one part of training runs.

It knows no trainer. Its driver stamps what just ended; the seconds since the stamp
before belong to it. So the parts add up to the wall clock by construction, and
nothing is counted twice, however calls nest.

Between two steps caches are cold, and a sum costs ten times what it costs in a row. So
stamps go on a tape, which is summed up once an interval.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import sub
from typing import Any, Callable

from mmgpu_hooks.schema import DurationStats
from mmgpu_hooks.schema.parts import PARTS

FIRST_WAIT = 'first_wait'
"""The first wait of an epoch: beyond the median wait it is `startup`."""

LAP = 'lap'
"""An iteration ended; a stamp of what was running stands before it."""

_OF_ITERATION = ('data_wait', FIRST_WAIT, 'step', 'hooks', 'loop')


@dataclass
class LedgerWindow:
    """What the ledger saw from one :meth:`TimeLedger.take` to the next, in seconds."""

    parts_s: dict[str, float] = field(default_factory=dict)
    """By part; they add up to the wall clock."""
    hooks_s: dict[str, float] = field(default_factory=dict)
    """What of ``hooks`` each class of hook took."""
    waits_s: list[float] = field(default_factory=list)
    """Wait for data of each iteration, first waits of epochs included."""
    steps_s: list[float] = field(default_factory=list)
    iters_s: list[float] = field(default_factory=list)
    """Each iteration: wait, step, hooks and loop."""
    firsts: list[int] = field(default_factory=list)
    """Which iterations began with the first wait of an epoch."""
    wait_cpu_s: float = 0.0
    """CPU inside the waits, first ones left out."""


@dataclass
class _Booked:
    """A hook at one point, and what of a window its calls there took."""

    hook: Any
    name: str
    part: str
    seconds: float = 0.0


class TimeLedger:
    """Seconds of wall clock by part, by hook and by iteration.

    Args:
        clock: Monotonic seconds.
        part: The part that is running.
        name_hook: The name under which the calls of a hook are booked: its class by
            default, or one of :data:`PARTS`. It gets the hook, and the part that ran
            before its hook point.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        part: str = 'startup',
        name_hook: Callable[[Any, str], str] = lambda hook, _: type(hook).__name__,
    ) -> None:
        self.clock = clock
        self.tape: list[Any] = []
        """Times, each followed by what ended then: a part, or a hook itself."""
        self.running: list[Any] = [part]
        """What runs, the innermost last: parts, and hooks."""
        self.wait_cpu_s = 0.0
        """CPU inside waits so far; what times the waits adds to it."""
        self.totals = LedgerWindow()
        """Sums over all windows taken."""
        self._name_hook = name_hook
        self._until = clock()
        self.elapsed_s = 0.0
        """Seconds from the start to the last :meth:`fold` or :meth:`take`."""
        self._point = part
        self._hooks: dict[str, dict[int, _Booked]] = defaultdict(dict)
        """By the part that ran before their hook point, and by their ids."""
        self._parts: dict[str, float] = dict.fromkeys((*PARTS, FIRST_WAIT), 0.0)
        self._taken = dict(self._parts)
        self._cpu_taken_s = 0.0
        self._at_lap = (0.0, 0.0, 0.0, 0.0)
        self._window = LedgerWindow()
        self._usual_wait_s: float | None = None
        self._has_begun = False

    @property
    def part(self) -> str:
        """The part that runs."""
        innermost = self.running[-1]
        return innermost if isinstance(innermost, str) else 'hooks'

    @property
    def stamped_s(self) -> float:
        """When the last stamp was taken, by the ledger's clock; from any thread."""
        newest = self.tape[-2:]
        return float(newest[0]) if newest else self._until

    def push(self, part: Any) -> None:
        """Begin a part, or a call of a hook, inside what runs."""
        self.tape.extend((self.clock(), self.running[-1]))
        self.running.append(part)

    def pop(self, part: Any) -> None:
        """End it and what is nested in it; what does not run is ignored.

        So an error between two stamps cannot unbalance the ledger for good.
        """
        if any(one is part for one in self.running[1:]):
            self.tape.extend((self.clock(), self.running[-1]))
            while self.running.pop() is not part:
                pass

    @property
    def iterations(self) -> int:
        """Iterations that ended since the last :meth:`take`, as of :meth:`fold`."""
        return len(self._window.iters_s)

    def fold(self) -> None:
        """Sum up the tape, which grows by some 30 stamps an iteration."""
        tape, parts, until = self.tape[:], self._parts, self._until
        del self.tape[: len(tape)]
        hooks, point = self._hooks, self._point
        known = hooks[point]
        back_s = 0.0
        stamps = iter(tape)
        for now, ended in zip(stamps, stamps):
            seconds = now - until
            until = now
            if seconds < 0.0:  # the clock was set back
                back_s -= seconds
                seconds = 0.0
            if type(ended) is not str:
                # by identity: a hook need not be hashable, and two may be of one class
                booked = known.get(id(ended))
                if booked is None or booked.hook is not ended:
                    booked = known[id(ended)] = self._book(ended, point, booked)
                parts[booked.part] += seconds
                booked.seconds += seconds
            elif ended is LAP:
                self._end_lap()
            else:
                parts[ended] += seconds
                if ended != 'hooks' and ended != point:
                    point, known = ended, hooks[ended]
        self._point = point
        self.elapsed_s += until - self._until + back_s
        self._until = until

    def _book(self, hook: Any, point: str, before: _Booked | None) -> _Booked:
        if before is not None:  # one that is gone had the same address
            self._collect(before)
        name = self._name_hook(hook, point)
        return _Booked(hook, name, name if name in self._parts else 'hooks')

    def _collect(self, booked: _Booked) -> None:
        if booked.part == 'hooks':
            hooks_s = self._window.hooks_s
            hooks_s[booked.name] = hooks_s.get(booked.name, 0.0) + booked.seconds
        booked.seconds = 0.0

    def _end_lap(self) -> None:
        parts, window = self._parts, self._window
        inside_s = math.fsum(parts[part] for part in _OF_ITERATION)
        lap = parts['data_wait'], parts[FIRST_WAIT], parts['step'], inside_s
        wait_s, first_s, step_s, iter_s = map(sub, lap, self._at_lap)
        self._at_lap = lap
        if first_s > 0.0:
            window.firsts.append(len(window.waits_s))
        window.waits_s.append(wait_s + first_s)
        window.steps_s.append(step_s)
        window.iters_s.append(iter_s)

    def take(self) -> LedgerWindow:
        """What happened since the last call."""
        self.tape.extend((self.clock(), self.running[-1]))
        self.fold()
        for known in self._hooks.values():
            for booked in known.values():
                if booked.seconds:
                    self._collect(booked)
        window, self._window = self._window, LedgerWindow()
        parts = {name: s - self._taken[name] for name, s in self._parts.items()}
        self._taken = dict(self._parts)
        window.wait_cpu_s = self.wait_cpu_s - self._cpu_taken_s
        self._cpu_taken_s = self.wait_cpu_s
        first_s = parts.pop(FIRST_WAIT)
        startup_s = min(self._startup_in(window), first_s)
        parts['data_wait'] += first_s - startup_s
        parts['startup'] += startup_s
        window.parts_s = parts
        totals = self.totals
        for sums, more in (
            (totals.parts_s, parts),
            (totals.hooks_s, window.hooks_s),
        ):
            for name, seconds in more.items():
                sums[name] = sums.get(name, 0.0) + seconds
        return window

    def _startup_in(self, window: LedgerWindow) -> float:
        """What the first waits of epochs took beyond the median wait.

        All of a run's very first wait is start-up.
        """
        others = [w for i, w in enumerate(window.waits_s) if i not in window.firsts]
        if others:
            self._usual_wait_s = statistics.median(others)
        startup_s = 0.0
        for index in window.firsts:
            is_very_first = index == 0 and not self._has_begun
            usual_s = 0.0 if is_very_first else self._usual_wait_s or 0.0
            startup_s += max(window.waits_s[index] - usual_s, 0.0)
        self._has_begun |= bool(window.waits_s)
        return startup_s


def summarize_durations(seconds: Sequence[float]) -> DurationStats:
    """Summarise durations.

    Args:
        seconds: At least one duration, in any order.

    Returns:
        Count, sum, mean, median and 95th percentile. Percentiles are
        linearly interpolated between order statistics (the default of NumPy).

    Raises:
        ValueError: If ``seconds`` is empty.
    """
    return summarize_some(seconds, len(seconds), math.fsum(seconds))


def summarize_some(
    seconds: Sequence[float], count: int, total_s: float
) -> DurationStats:
    """Summarise durations of which some are known one by one.

    Args:
        seconds: Those that are known, at least one, in any order.
        count: How many there were.
        total_s: Sum of all of them.

    Raises:
        ValueError: If ``seconds`` is empty.
    """
    if not seconds:
        raise ValueError('expected at least one duration to summarize, found none')
    ordered = sorted(seconds)
    return DurationStats(
        count=count,
        total_s=total_s,
        mean_s=total_s / count,
        p50_s=_percentile(ordered, 0.5),
        p95_s=_percentile(ordered, 0.95),
    )


def _percentile(ordered: Sequence[float], q: float) -> float:
    position = q * (len(ordered) - 1)
    low = int(position)
    between = position - low
    if not between:
        return ordered[low]
    return ordered[low] + (ordered[low + 1] - ordered[low]) * between
