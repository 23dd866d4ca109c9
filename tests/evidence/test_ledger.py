from __future__ import annotations

import pytest

from fakes.clock import HandClock
from mmgpu_hooks.evidence.ledger import PARTS, TimeLedger


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def ledger(clock: HandClock) -> TimeLedger:
    return TimeLedger(clock, HandClock(0.0))


def nonzero(ledger: TimeLedger) -> dict[str, float]:
    return {part: s for part, s in ledger.totals().items() if s}


def test_each_second_belongs_to_the_part_that_ran(ledger, clock):
    ledger.switch('data_wait')
    clock.turn(3)
    ledger.switch('step')
    clock.turn(2)
    ledger.switch('data_wait')
    clock.turn(1)
    assert nonzero(ledger) == {'data_wait': 4, 'step': 2}


def test_a_nested_part_takes_its_time_from_the_one_around_it(ledger, clock):
    ledger.push('hooks')
    clock.turn(1)
    ledger.push('checkpoint_save')
    clock.turn(5)
    ledger.pop()
    clock.turn(2)
    ledger.pop()
    clock.turn(4)
    assert nonzero(ledger) == {'hooks': 3, 'checkpoint_save': 5, 'other': 4}


def test_parts_add_up_to_the_elapsed_time(ledger, clock):
    for step, part in enumerate([*PARTS, *PARTS]):
        ledger.switch(part)
        clock.turn(0.1 * step)
    total = sum(ledger.totals().values())
    assert total == pytest.approx(ledger.elapsed_s(), abs=1e-12)
    assert total == pytest.approx(clock.now - ledger.started, abs=1e-12)


def test_closing_an_outer_part_closes_what_an_error_left_open(ledger, clock):
    ledger.push('validation')
    ledger.push('hooks')
    ledger.pop('validation')
    clock.turn(1)
    assert ledger.depth == 1
    assert nonzero(ledger) == {'other': 1}


@pytest.mark.parametrize('part', ['validation', None])
def test_closing_what_is_not_open_changes_nothing(ledger, part):
    ledger.pop(part)
    assert (ledger.depth, ledger.current) == (1, 'other')


def test_unwinding_goes_back_to_the_loop(ledger):
    ledger.switch('data_wait')
    ledger.push('hooks')
    ledger.push('validation')
    ledger.unwind()
    assert (ledger.depth, ledger.current) == (1, 'data_wait')


def test_cpu_is_counted_inside_the_waits_alone(clock):
    cpu = HandClock(0.0)
    ledger = TimeLedger(clock, cpu)
    cpu.turn(8)
    ledger.switch('data_wait')
    cpu.turn(1)
    ledger.push('validation')
    cpu.turn(16)
    ledger.pop('validation')
    cpu.turn(2)
    ledger.switch('step')
    cpu.turn(32)
    assert ledger.data_wait_cpu_s == 3
