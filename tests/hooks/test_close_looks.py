"""Which iterations are looked at, and what is known of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mmengine.hooks import Hook

from fakes.clock import HandClock
from mmgpu_hooks.evidence.ledger import TimeLedger
from mmgpu_hooks.hooks.close_looks import AFTER, BEFORE, FIRST_LOOKS, CloseLooks
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


class Loop:
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
        self.looks.watch_wait('queue', self._ask, lambda: None)
        self.call = self.ledger.book_points(
            self._call_hook, self.looks.points, self._call_hook, print
        )
        self.looks.watch_hooks(self.hooks)
        self.looks.begin()
        self.during: Callable[[], object] = lambda: None

    def _ask(self) -> None:
        self.asked += 1

    def _call_hook(self, name: str) -> None:
        for hook in self.hooks:
            if name == AFTER:
                hook.after_train_iter(self)
        if name == AFTER:
            self.during()

    def train(self, iterations: int) -> None:
        for _ in range(iterations):
            self.call(BEFORE)
            self.clock.turn(0.01)
            self.call(AFTER)
            self.clock.turn(0.001)

    def timed(self) -> list[bool]:
        return ['after_train_iter' in vars(hook) for hook in self.hooks]


def test_the_first_iterations_are_looked_at_and_then_none():
    loop = Loop(300 * US, 100 * US)
    loop.train(FIRST_LOOKS)
    assert loop.asked == loop.ledger.shares.looks == FIRST_LOOKS
    assert loop.timed() == [False, False]
    loop.train(100)
    assert loop.asked == FIRST_LOOKS
    # 108 iterations, of which 8 were looked at
    hooks_s = loop.ledger.read().hooks_s
    assert hooks_s == {
        'Slow': pytest.approx(108 * 300 * US, rel=1e-3),
        'Other': pytest.approx(108 * 100 * US, rel=1e-3),
    }
    assert loop.failures == []


def test_a_request_made_inside_an_iteration_is_for_the_next():
    loop = Loop(300 * US, 100 * US)
    loop.train(FIRST_LOOKS)
    for _ in range(2):
        loop.during = loop.looks.request
        loop.train(1)
        loop.during = lambda: None
        asked = loop.asked
        loop.train(1)
        assert loop.asked == asked + 1
        loop.train(3)
        assert loop.asked == asked + 1


def test_a_request_in_an_iteration_that_is_looked_at_is_not_lost():
    loop = Loop(300 * US, 100 * US)
    loop.train(FIRST_LOOKS - 1)
    loop.during = lambda: loop.looks.request(is_special=True)
    loop.train(1)
    loop.during = lambda: None
    loop.train(5)
    assert loop.asked == FIRST_LOOKS + 1


def test_a_hook_that_takes_long_is_timed_in_every_iteration():
    loop = Loop(5 * MS, 100 * US)
    loop.train(FIRST_LOOKS)
    loop.ledger.read()
    loop.looks.request()
    loop.train(1)
    assert loop.timed() == [True, False]
    loop.hooks[0].seconds = 7 * MS
    loop.train(10)
    assert loop.ledger.read().hooks_s['Slow'] == pytest.approx(
        (FIRST_LOOKS + 1) * 5 * MS + 10 * 7 * MS
    )


def test_a_hook_that_takes_long_now_and_then_is_found_the_second_time():
    loop = Loop(100 * US, 100 * US)
    loop.train(40)
    loop.hooks[1].seconds = 50 * MS
    loop.train(1)
    loop.hooks[1].seconds = 100 * US
    before_s = loop.ledger.read().hooks_s['Other']
    assert before_s < 10 * MS  # nobody knows whose they were
    loop.looks.search(41)
    loop.train(40)
    loop.hooks[1].seconds = 50 * MS
    loop.train(1)
    loop.hooks[1].seconds = 100 * US
    loop.ledger.read()
    loop.looks.search(82)
    loop.train(1)
    assert loop.timed() == [False, True]
    assert loop.ledger.read().hooks_s['Other'] == pytest.approx(
        before_s + 50 * MS, abs=10 * MS
    )


def test_a_hook_that_was_held_up_now_and_then_is_not_timed_always():
    loop = Loop(100 * US, 100 * US)
    for index in range(200):
        loop.hooks[0].seconds = 5 * MS if index % 10 == 0 else 100 * US
        loop.during = loop.looks.request
        loop.train(1)
    loop.during = lambda: None
    loop.train(2)
    assert loop.timed() == [False, False]


def test_closing_leaves_the_hooks_as_they_were():
    loop = Loop(5 * MS, 100 * US)
    loop.train(3)
    assert loop.timed() == [True, True]
    loop.looks.close()
    assert loop.timed() == [False, False]
    assert loop.looks.points == {}
    loop.looks.request()
    assert loop.looks.points == {}
