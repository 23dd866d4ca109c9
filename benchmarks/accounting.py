"""What a hook costs the thread that trains, taken at its own borders.

All that a hook does, it does while ``Runner.call_hook`` runs: in methods of its own, in
what it put around ``call_hook`` and in what it put around the methods of other hooks.
So the time in ``call_hook``, less the time in the other hooks' own methods, is the
hook's, and some of MMEngine's and of the wrappers' here. What that part is, the same
account of a hook that wraps nothing tells.

The methods are wrapped beneath anything that the hook sets, before it starts. So what
it sets for some iterations only is accounted like what it sets for all.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable

from mmengine.hooks import Hook

from mmgpu_hooks.measure.clock import Clock

CALLS = 'Runner.call_hook and wrappers'

POINTS = {'before_train_iter': '_before_iter', 'after_train_iter': '_after_iter'}
"""Hook points of each iteration, with the method of ``Hook`` that each calls."""


class Borders:
    """Seconds between the upper and the lower border of functions, by name.

    Names may nest in each other: what is beneath the outer one is none of its own.

    Args:
        clock: Monotonic, in seconds.
    """

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self.names: list[str] = []
        self._spent_s: list[float] = []

    def _cell(self, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
            self._spent_s.append(0.0)
        return self.names.index(name)

    def above(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, whose time counts."""
        return self._count(name, function, 1)

    def beneath(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, whose time is taken off again."""
        return self._count(name, function, -1)

    def _count(
        self, name: str, function: Callable[..., Any], sign: int
    ) -> Callable[..., Any]:
        spent_s, cell, clock = self._spent_s, self._cell(name), self._clock

        def counted(*args: Any, **kwargs: Any) -> Any:
            begin = clock()
            result = function(*args, **kwargs)
            spent_s[cell] += sign * (clock() - begin)
            return result

        return counted

    def read_s(self) -> list[float]:
        """Seconds so far, in the order of :attr:`names`."""
        return list(self._spent_s)


class CostAccount:
    """Accounts what a hook costs in each iteration of a runner.

    One iteration is from the begin of a step to the begin of the next.

    Args:
        runner: About to train.
        of: The hook to account, one of the runner's.
        clock: Monotonic, in seconds.
    """

    def __init__(self, runner: Any, of: Hook, clock: Clock = time.perf_counter) -> None:
        self.borders = Borders(clock)
        self._runner, self._of = runner, of
        for hook in runner.hooks:
            for point in POINTS:
                if hook is not of and has_own(hook, point):
                    method = self.borders.beneath(CALLS, getattr(hook, point))
                    setattr(hook, point, method)
        self._has_begun = False
        self.rows: list[list[float]] = []
        """Seconds so far by function, at the begin of each step but the first."""

    def begin_step(self) -> None:
        """Say that a step begins; the first call lays the upper borders."""
        if self._has_begun:
            self.rows.append(self.borders.read_s())
            return
        self._has_begun = True
        call_hook = self.borders.above(CALLS, self._runner.call_hook)
        self._runner.call_hook = call_hook
        for point in POINTS:
            if has_own(self._of, point):
                method = getattr(self._of, point)
                own = self.borders.above(f'its own {point}', method)
                setattr(self._of, point, self.borders.beneath(CALLS, own))

    def costs_s(self) -> list[dict[str, float]]:
        """Seconds by function, of each iteration after the first."""
        return [
            {name: b - a for name, a, b in zip(self.borders.names, before, after)}
            for before, after in zip(self.rows, self.rows[1:])
        ]


def has_own(hook: Any, point: str) -> bool:
    """Whether a hook does something of its own at a hook point."""
    kind, inner = type(hook), POINTS[point]
    calls_own = getattr(kind, inner, None) is not getattr(Hook, inner)
    return getattr(kind, point, None) is not getattr(Hook, point) or calls_own


class EmptyHook(Hook):
    """Wraps nothing and does nothing: its account is that of the borders alone."""

    priority = 55

    def after_train_iter(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""


class ShamHook(EmptyHook):
    """Wraps what the real hook wraps, and only passes the calls on."""

    def before_train(self, runner: Any) -> None:
        runner.call_hook = _pass_on(runner.call_hook)
        for hook in runner.hooks:
            for point in POINTS:
                if has_own(hook, point):
                    setattr(hook, point, _pass_on(getattr(hook, point)))


def _pass_on(function: Callable[..., Any]) -> Callable[..., Any]:
    def passed(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return passed


class ThreadCosts:
    """CPU seconds of threads that were started while it watched.

    Args:
        prefixes: What the names of the threads begin with; all by default.
    """

    def __init__(self, prefixes: Sequence[str] = ('',)) -> None:
        self._prefixes = tuple(prefixes)
        self._ended: dict[threading.Thread, float] = {}
        self._before = set(threading.enumerate())

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watch inside the block; threads that end in it are counted too."""
        original, ended = threading.Thread.run, self._ended

        def run(self: threading.Thread) -> None:
            try:
                original(self)
            finally:
                ended[self] = time.thread_time()

        threading.Thread.run = run  # type: ignore[method-assign]
        try:
            yield
        finally:
            threading.Thread.run = original  # type: ignore[method-assign]

    def read_s(self) -> dict[str, float]:
        """CPU seconds by name of the thread, those of the same name together."""
        spent_s: dict[str, float] = defaultdict(float)
        alive = set(threading.enumerate()) - self._before - set(self._ended)
        for thread in alive:
            spent_s[thread.name] += _read_cpu_s(thread)
        for thread, seconds in list(self._ended.items()):
            spent_s[thread.name] += seconds
        return {
            name: seconds
            for name, seconds in spent_s.items()
            if name.startswith(self._prefixes)
        }


def _read_cpu_s(thread: threading.Thread) -> float:
    try:
        text = Path(f'/proc/self/task/{thread.native_id}/schedstat').read_text()
    except OSError:  # it has just ended
        return 0.0
    return int(text.split()[0]) / 1e9
