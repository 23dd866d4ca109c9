"""Times the parts of a running validation, such as forward and metric, as nested calls.

It knows no trainer. What runs is the innermost call; the seconds until the next call
begins or ends belong to it, so the parts add up to the wall clock by construction.

The stack is readable from any thread, which is what the watchdog asks and what notes
for a kill are made of.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

from mmgpu_hooks.measure.clock import Clock, monotonic_s


class PartCall(NamedTuple):
    """Key of a timed call in a validation: its part, and the metric that it calls."""

    part: str
    """Part of a validation, one of ``VALIDATION_PARTS`` of `schema.recorded`."""
    metric: str | None = None
    """Name of the metric that the timed call belongs to; ``None`` for other calls."""


DATA_WAIT, FORWARD = PartCall('data_wait'), PartCall('forward')
RANK_WAIT, SAVE_CALL, REST = PartCall('rank_wait'), PartCall('save'), PartCall('rest')


class ValidationState(NamedTuple):
    """Progress of a running validation: innermost call, and seconds by part so far."""

    call: PartCall
    """Timed call that now runs in the validation, the innermost one."""
    since_s: float
    """Clock time (s) at which the validation last began or ended a timed call."""
    elapsed_s: float
    """Seconds from the validation's start to this reading."""
    calls_s: Mapping[PartCall, float]
    """Seconds of a validation so far by timed call, the running call included."""

    @property
    def parts_s(self) -> dict[str, float]:
        """Seconds of a validation so far by part, the running call included."""
        return _sum_parts(self.calls_s)

    def sum_metrics(self, part: str) -> dict[str, float]:
        """Returns the seconds of one validation part so far, by name of the metric."""
        return _sum_metrics(self.calls_s, part)


class _Spent:
    """Seconds of a timed call in a validation so far, and its longest stretch."""

    __slots__ = ('call', 'longest_s', 'seconds')

    def __init__(self, call: PartCall, longest_s: float) -> None:
        self.call, self.longest_s, self.seconds = call, longest_s, 0.0


def _pass_over(_: PartCall) -> None:
    pass


class ValidationParts:
    """Splits one validation's seconds by part; each goes to the innermost running call.

    Only the thread that makes it is timed. A call costs half a microsecond.

    Args:
        longest_s: Longest stretch of each call so far; it is kept up to date, and tells
            a watchdog what is usual.
        clock: Monotonic seconds.
        on_first: Called when the first call of each metric's method begins.
    """

    def __init__(
        self,
        longest_s: dict[PartCall, float],
        clock: Clock = monotonic_s,
        on_first: Callable[[PartCall], Any] = _pass_over,
    ) -> None:
        self.longest_s, self.on_first = longest_s, on_first
        self._clock, self._thread = clock, threading.get_ident()
        self._spent: dict[PartCall, _Spent] = {}
        self._running = [self._add(REST)]
        self._began_s = self._since_s = clock()

    def begin(self, call: PartCall) -> int | None:
        """Begins a timed call in the validation, inside the one that is running.

        Returns:
            What :meth:`end` is to be given; ``None`` of another thread's call.
        """
        if threading.get_ident() != self._thread:
            return None
        self._stamp()
        self._running.append(self._spent.get(call) or self._add(call))
        return len(self._running) - 1

    def end(self, depth: int | None) -> None:
        """Ends a timed call, known by its depth, and all calls nested in it."""
        if depth is not None:
            self._stamp()
            # an error may have left something open inside of it
            del self._running[max(depth, 1) :]

    def _add(self, call: PartCall) -> _Spent:
        spent = self._spent[call] = _Spent(call, self.longest_s.get(call, 0.0))
        return spent

    def _stamp(self) -> None:
        now_s, running = self._clock(), self._running[-1]
        spent_s = now_s - self._since_s
        if spent_s > 0.0:
            running.seconds += spent_s
        if spent_s > running.longest_s:
            running.longest_s = self.longest_s[running.call] = spent_s
        self._since_s = now_s

    def _list_seconds(self) -> dict[PartCall, float]:
        """Returns the seconds of each timed call that has begun; thread-safe."""
        return {spent.call: spent.seconds for spent in [*self._spent.values()]}

    def read(self) -> ValidationState:
        """Returns the running call, and seconds by part so far; thread-safe."""
        now_s, since_s, call = self._clock(), self._since_s, self._running[-1].call
        seconds = self._list_seconds()
        seconds[call] = seconds.get(call, 0.0) + max(now_s - since_s, 0.0)
        return ValidationState(call, since_s, now_s - self._began_s, seconds)

    def sum_up(self, wall_s: float) -> dict[str, float]:
        """Returns an ended validation's seconds by part; the sum is its duration.

        Args:
            wall_s: Of all of it: what is in no call is ``rest``.
        """
        parts_s = _sum_parts(self._list_seconds())
        parts_s.pop(REST.part, None)
        parts_s[REST.part] = max(wall_s - sum(parts_s.values()), 0.0)
        return parts_s

    def sum_metrics(self, part: str) -> dict[str, float]:
        """Returns the seconds of one part of a validation, by name of the metric.

        Calls that are of no metric are left out.
        """
        return _sum_metrics(self._list_seconds(), part)


def _sum_metrics(seconds: Mapping[PartCall, float], part: str) -> dict[str, float]:
    return {
        call.metric: spent_s
        for call, spent_s in seconds.items()
        if call.part == part and call.metric is not None
    }


def _sum_parts(seconds: Mapping[PartCall, float]) -> dict[str, float]:
    parts_s: dict[str, float] = {}
    for call, spent_s in seconds.items():
        parts_s[call.part] = parts_s.get(call.part, 0.0) + spent_s
    return parts_s


def _keep(function: Any) -> Any:
    return function


class TimedCall:
    """Replacement for a method or function in a validation that times its calls.

    A copy or a pickle has what it stands for in its place: a metric may send itself to
    processes of its own.

    Args:
        parts: Gets the time.
        call: What it is.
        function: What it stands for.
    """

    def __init__(
        self, parts: ValidationParts, call: PartCall, function: Callable[..., Any]
    ) -> None:
        self._parts, self._call, self._function = parts, call, function
        self._is_new = call.metric is not None
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        depth = self._parts.begin(self._call)
        if self._is_new and depth is not None:
            self._is_new = False
            self._parts.on_first(self._call)
        try:
            return self._function(*args, **kwargs)
        finally:
            self._parts.end(depth)

    def __reduce__(self) -> tuple[Any, ...]:
        return _keep, (self._function,)
