"""The time ledger against a clock that is turned by hand."""

from __future__ import annotations

import pytest

from fakes.clock import HandClock
from mmgpu_hooks.measure.ledger import FIRST_WAIT, LAP, TimeLedger


class EMAHook:
    """Stands for any hook; like some, it is not hashable."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


class LossHook:
    """Another one."""


class Driver:
    """Drives a ledger: ``spend(part, s)`` lets time pass that belongs to a part."""

    def __init__(self, **arguments: object) -> None:
        self.clock = HandClock()
        self.ledger = TimeLedger(self.clock, **arguments)  # type: ignore[arg-type]

    def spend(self, what: object, seconds: float = 0.0) -> None:
        self.clock.turn(seconds)
        self.ledger.note(what)

    def iterate(self, wait: object, wait_s: float, step_s: float) -> None:
        self.spend(wait, wait_s)
        self.spend('step', step_s)
        self.spend(LAP)


def test_parts_add_up_to_the_wall_clock_and_nothing_counts_twice() -> None:
    driver = Driver()
    ledger, ema = driver.ledger, EMAHook()
    driver.spend('startup', 2.0)
    driver.spend(ema, 0.5)
    ledger.push(ema)
    driver.clock.turn(0.25)
    ledger.push('checkpoint_save')
    driver.clock.turn(3.0)
    ledger.pop('checkpoint_save')
    driver.clock.turn(0.25)
    ledger.pop(ema)
    window = ledger.take()
    parts = {part: seconds for part, seconds in window.parts_s.items() if seconds}
    assert parts == {'startup': 2.0, 'hooks': 1.0, 'checkpoint_save': 3.0}
    assert window.hooks_s == {'EMAHook': 1.0}
    assert ledger.elapsed_s == 6.0


def test_two_hooks_of_one_class_are_one_name_and_losses_may_be_step() -> None:
    driver = Driver(step_hooks=(LossHook,))
    losses = LossHook()
    driver.spend('step', 1.0)
    driver.spend(losses, 0.5)
    driver.spend(EMAHook(), 0.125)
    driver.spend(EMAHook(), 0.125)
    driver.spend('loop', 1.0)
    driver.spend(losses, 0.25)
    window = driver.ledger.take()
    assert window.parts_s['step'] == 1.5
    assert window.hooks_s == {'EMAHook': 0.25, 'LossHook': 0.25}


def test_each_iteration_has_its_wait_and_step() -> None:
    driver = Driver()
    driver.iterate(FIRST_WAIT, 5.0, 1.0)
    driver.iterate('data_wait', 1.0, 2.0)
    driver.spend('checkpoint_save', 7.0)
    driver.iterate('data_wait', 3.0, 2.0)
    window = driver.ledger.take()
    assert window.waits_s.tolist() == [5.0, 1.0, 3.0]
    assert window.steps_s.tolist() == [1.0, 2.0, 2.0]
    assert window.iters_s.tolist() == [6.0, 3.0, 5.0]
    assert window.firsts == [0]


def test_what_ends_after_the_last_iteration_belongs_to_the_next_window() -> None:
    driver = Driver()
    driver.iterate(FIRST_WAIT, 1.0, 1.0)
    driver.ledger.take()
    driver.iterate('data_wait', 2.0, 1.0)
    window = driver.ledger.take()
    assert (*window.waits_s, *window.iters_s) == (2.0, 3.0)


@pytest.mark.parametrize(
    ('first_wait_s', 'startup_s'),
    [(9.0, 7.0), (2.0, 0.0), (1.0, 0.0)],
)
def test_a_later_epoch_starts_up_for_what_exceeds_the_median_wait(
    first_wait_s: float, startup_s: float
) -> None:
    driver = Driver()
    driver.iterate(FIRST_WAIT, 4.0, 1.0)
    assert driver.ledger.take().parts_s['startup'] == 4.0
    driver.iterate(FIRST_WAIT, first_wait_s, 1.0)
    for wait_s in (1.0, 2.0, 30.0):
        driver.iterate('data_wait', wait_s, 1.0)
    parts = driver.ledger.take().parts_s
    assert parts['startup'] == startup_s
    assert parts['data_wait'] == 33.0 + first_wait_s - startup_s


def test_what_is_not_open_cannot_be_ended_and_an_error_unbalances_nothing() -> None:
    driver = Driver(part='loop')
    ledger = driver.ledger
    ledger.pop('validation')
    ledger.push('validation')
    ledger.push('data_wait')
    driver.clock.turn(1.0)
    ledger.pop('validation')
    assert ledger.running == ['loop']
    assert ledger.part == 'loop'
    assert ledger.take().parts_s['data_wait'] == 1.0


def test_totals_are_the_sums_of_the_windows() -> None:
    driver = Driver()
    for _ in range(3):
        driver.iterate('data_wait', 1.0, 2.0)
        driver.ledger.add_wait_cpu(0.25)
        assert driver.ledger.take().wait_cpu_s == 0.25
    assert driver.ledger.totals.parts_s['step'] == 6.0
    assert driver.ledger.iterations == 0
