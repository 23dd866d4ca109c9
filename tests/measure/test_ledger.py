"""Tests the time ledger with a fake clock."""

from __future__ import annotations

import numpy as np
import pytest

from fakes.clock import HandClock
from mmgpu_hooks.measure.ledger import (
    FIRST_WAIT,
    LAP,
    WORKER_START,
    TimeLedger,
    summarize_durations,
    summarize_some,
)


class EMAHook:
    """Fake hook that is not hashable."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        return True


class LossHook:
    """Fake hook of a second class."""


class Driver:
    """Driver of a time ledger by a fake clock; ``spend(part, s)`` ends a part."""

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


def test_parts_add_up_to_the_wall_clock_and_nothing_counts_twice():
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


def test_two_hooks_of_one_class_are_one_name_and_losses_may_be_step():
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


def test_each_iteration_has_its_wait_and_step_and_totals_their_sums():
    driver = Driver()
    driver.iterate(FIRST_WAIT, 5.0, 1.0)
    driver.iterate('data_wait', 1.0, 2.0)
    # what ends after the last iteration belongs to the next window
    driver.ledger.take()
    driver.spend('checkpoint_save', 7.0)
    driver.iterate('data_wait', 3.0, 2.0)
    driver.ledger.add_wait_cpu(0.25)
    window = driver.ledger.take()
    figures = *window.waits_s, *window.steps_s, *window.iters_s
    assert (figures, list(window.firsts)) == ((3.0, 2.0, 5.0), [])
    assert window.wait_cpu_s == 0.25
    assert driver.ledger.totals.parts_s['step'] == 5.0
    assert driver.ledger.iterations == 0


@pytest.mark.parametrize(
    ('first_wait_s', 'startup_s'), [(9.0, 7.0), (2.0, 0.0), (1.0, 0.0)]
)
def test_a_later_epoch_starts_up_for_what_exceeds_the_median_wait(
    first_wait_s, startup_s
):
    driver = Driver()
    driver.iterate(FIRST_WAIT, 4.0, 1.0)
    assert driver.ledger.take().parts_s['startup'] == 4.0
    driver.iterate(FIRST_WAIT, first_wait_s, 1.0)
    for wait_s in (1.0, 2.0, 30.0):
        driver.iterate('data_wait', wait_s, 1.0)
    parts = driver.ledger.take().parts_s
    assert parts['startup'] == startup_s
    assert parts['data_wait'] == 33.0 + first_wait_s - startup_s


def test_what_is_not_open_cannot_be_ended_and_an_error_unbalances_nothing():
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


def test_a_clock_that_is_set_back_adds_nothing():
    driver = Driver()
    for seconds in (1.0, -5.0, 2.0):
        driver.spend('step', seconds)
    assert driver.ledger.take().parts_s['step'] == 3.0
    assert driver.ledger.elapsed_s == 3.0


@pytest.mark.parametrize('count', [1, 2, 3, 10, 101])
def test_durations_are_summarised_as_numpy_does(count: int):
    seconds = np.random.default_rng(count).exponential(size=count).tolist()
    stats = summarize_durations(seconds)
    assert stats.count == count
    assert stats.total_s == pytest.approx(sum(seconds))
    assert stats.mean_s == pytest.approx(np.mean(seconds))
    assert stats.p50_s == pytest.approx(np.percentile(seconds, 50))
    assert stats.p95_s == pytest.approx(np.percentile(seconds, 95))


def test_quantiles_of_some_durations_stand_beside_the_total_of_all():
    stats = summarize_some([3.0, 1.0], count=10, total_s=25.0)
    figures = stats.count, stats.total_s, stats.mean_s, stats.p50_s, stats.p95_s
    assert figures == pytest.approx((10, 25.0, 2.5, 2.0, 2.9))


def test_a_start_is_read_by_its_parts_before_it_is_taken():
    driver = Driver()
    ledger = driver.ledger
    driver.spend('startup', 1.0)
    ledger.push(WORKER_START)
    driver.clock.turn(0.5)
    ledger.pop(WORKER_START)
    driver.spend(EMAHook(), 0.25)
    driver.iterate(FIRST_WAIT, 4.0, 2.0)
    ledger.sum_up()
    parts = {part: seconds for part, seconds in ledger.read_parts().items() if seconds}
    assert parts == {
        'startup': 1.0,
        WORKER_START: 0.5,
        'hooks': 0.25,
        FIRST_WAIT: 4.0,
        'step': 2.0,
    }
    # workers that start, and the first wait, are start-up
    assert ledger.take().parts_s['startup'] == 5.5
