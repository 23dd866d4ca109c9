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
    return {part: s for part, s in ledger.read().wall_s.items() if s}


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
    total = sum(ledger.read().wall_s.values())
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
    clock.turn(4)
    ledger.switch('step')
    cpu.turn(32)
    assert ledger.read().data_wait_cpu_s == 1


def test_waits_that_nobody_looked_into_used_cpu_as_the_last_ones_did(clock):
    cpu = HandClock(0.0)
    ledger = TimeLedger(clock, cpu)
    for wait_s in (4, 2, 2, 2, 2, 2, 2, 2):
        ledger.switch('data_wait')
        clock.turn(wait_s)
        cpu.turn(wait_s / 4)
        ledger.switch('step')
        cpu.turn(32)
        clock.turn(1)
    # the first and the eighth are looked at, and all use a quarter of their time
    assert ledger.read().data_wait_cpu_s == pytest.approx(18 / 4)


def test_a_wait_that_turns_out_to_be_none_leaves_no_cpu(clock):
    cpu = HandClock(0.0)
    ledger = TimeLedger(clock, cpu)
    ledger.switch('data_wait')
    clock.turn(2)
    cpu.turn(2)
    ledger.rename('worker_startup')
    assert ledger.begin_hooks()
    ledger.end_hooks('data_wait')
    assert nonzero(ledger) == {'worker_startup': 2}
    assert ledger.read().data_wait_cpu_s == 0


def test_a_nested_part_keeps_hooks_from_beginning(ledger, clock):
    assert ledger.begin_hooks()
    assert not ledger.begin_hooks()
    clock.turn(1)
    ledger.end_hooks('step')
    clock.turn(2)
    assert (ledger.depth, ledger.current) == (1, 'step')
    assert nonzero(ledger) == {'hooks': 1, 'step': 2}


def failed(error: Exception) -> None:
    raise AssertionError(error)


def test_each_hook_has_its_share_without_what_is_nested_in_it(ledger, clock):
    def save() -> str:
        clock.turn(1)
        ledger.push('checkpoint_save')
        clock.turn(8)
        ledger.pop('checkpoint_save')
        clock.turn(2)
        return 'saved'

    log = ledger.book_calls(lambda: clock.turn(4), 'Logger', failed)
    checkpoint = ledger.book_calls(save, 'Checkpoint', failed)
    losses = ledger.book_calls(lambda: clock.turn(16), 'step', failed)
    ledger.begin_hooks()
    log()
    assert checkpoint() == 'saved'
    losses()
    clock.turn(32)
    ledger.end_hooks('data_wait')
    reading = ledger.read()
    assert reading.hooks_s == {'Logger': 4, 'Checkpoint': 3}
    assert nonzero(ledger) == {'hooks': 39, 'checkpoint_save': 8, 'step': 16}


def test_a_hook_inside_a_validation_is_part_of_it(ledger, clock):
    log = ledger.book_calls(lambda: clock.turn(4), 'Logger', failed)
    ledger.push('validation')
    log()
    assert nonzero(ledger) == {'validation': 4}
    assert ledger.read().hooks_s == {'Logger': 0}


def test_an_error_of_a_hook_passes_and_the_loop_goes_on(ledger, clock):
    def fail() -> None:
        clock.turn(1)
        raise KeyError('planted')

    ledger.begin_hooks()
    with pytest.raises(KeyError, match='planted'):
        ledger.book_calls(fail, 'Failing', failed)()
    ledger.unwind()
    ledger.switch('step')
    clock.turn(2)
    assert nonzero(ledger) == {'hooks': 1, 'step': 2}


def test_a_lap_is_what_passed_since_the_last_one(ledger, clock):
    ledger.switch('data_wait')
    clock.turn(1)
    ledger.switch('step')
    clock.turn(2)
    ledger.begin_hooks()
    clock.turn(4)
    assert ledger.lap() == (1, 2, 7)
    ledger.push('checkpoint_save')
    clock.turn(64)
    ledger.pop('checkpoint_save')
    clock.turn(8)
    ledger.end_hooks('data_wait')
    clock.turn(16)
    assert ledger.lap() == (16, 0, 24)


def test_what_starting_took_is_moved_out_of_the_waits(ledger, clock):
    ledger.switch('data_wait')
    clock.turn(5)
    ledger.book_startup(3)
    assert nonzero(ledger) == {'data_wait': 2, 'worker_startup': 3}
