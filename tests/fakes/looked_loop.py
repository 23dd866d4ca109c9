"""A loop with two hooks, driven by hand, whose hooks are looked at now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmengine.hooks import Hook

from fakes.clock import HandClock
from mmgpu_hooks.evidence.ledger import TimeLedger
from mmgpu_hooks.hooks.close_looks import AFTER, BEFORE, CloseLooks
from mmgpu_hooks.hooks.guard import Guard

US, MS = 1e-6, 1e-3


class Slow(Hook):
    """Takes planted seconds after each iteration."""

    def __init__(self, clock: HandClock, seconds: float) -> None:
        self._clock = clock
        self.seconds = seconds

    def after_train_iter(self, *args: Any, **kwargs: Any) -> None:
        self._clock.turn(self.seconds)


class Other(Slow):
    """Another one."""


class LookedLoop:
    """Drives two hooks as a train loop does."""

    def __init__(self, a_s: float, b_s: float) -> None:
        self.clock = HandClock()
        self.hooks = [Slow(self.clock, a_s), Other(self.clock, b_s)]
        self.ledger = TimeLedger(self.clock, HandClock(0.0))
        self.failures: list[str] = []
        guard = Guard(lambda source, reason: self.failures.append(source))
        self.looks = CloseLooks(
            self.ledger, guard, lambda source, error: self.failures.append(source)
        )
        self.asked = 0
        self.got = 0
        self.looks.watch_wait('queue', self._ask, self._get)
        looked = self.ledger.book_points(
            self._call_hook, self.looks.points, self._call_hook, print
        )
        self.call = self.ledger.book_plain_points(
            self._call_hook, self.looks.plain, looked, print
        )
        self.looks.watch_hooks(self.hooks)
        self.looks.begin()
        self.during: Callable[[], object] = lambda: None
        self.gap_s = 0.0
        self.done = 0

    def look(self, done: int) -> None:
        """What the recorder does every few iterations."""
        self.ledger.drain_laps()
        self.looks.search(done)
        self.looks.request()

    def _ask(self) -> None:
        self.asked += 1

    def _get(self) -> None:
        self.got += 1

    def _call_hook(self, name: str) -> None:
        for hook in self.hooks:
            if name == AFTER:
                hook.after_train_iter(self)
        if name == AFTER:
            self.clock.turn(self.gap_s)
            self.during()

    def train(self, iterations: int) -> None:
        for _ in range(iterations):
            self.call(BEFORE)
            self.clock.turn(0.01)
            self.call(AFTER)
            self.clock.turn(0.001)

    def timed(self) -> list[bool]:
        return ['after_train_iter' in vars(hook) for hook in self.hooks]


def run_in_steps(
    loop: LookedLoop, iterations: int, sleeps: Callable[[int], bool]
) -> float:
    """Train with a hook that sleeps in some iterations; the recorder looks each 16.

    May be called again to go on.

    Returns:
        Seconds that it slept.
    """
    slept_s = 0.0
    for index in range(iterations):
        is_long = sleeps(index)
        loop.hooks[1].seconds = 50 * MS if is_long else 100 * US
        slept_s += 50 * MS if is_long else 0.0
        if index % 16 == 15:
            loop.during = lambda done=loop.done + index + 1: loop.look(done)
        loop.train(1)
        loop.during = lambda: None
        if index % 48 == 47:
            loop.ledger.read()
    loop.done += iterations
    return slept_s
