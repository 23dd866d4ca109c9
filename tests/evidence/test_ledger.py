from __future__ import annotations

import pytest

from fakes.clock import HandClock
from mmgpu_hooks.evidence.ledger import TimeLedger
from mmgpu_hooks.evidence.ledger_parts import PARTS, Point


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def ledger(clock: HandClock) -> TimeLedger:
    return TimeLedger(clock, HandClock(0.0))


def failed(*problem: object) -> None:
    raise AssertionError(problem)


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


def iterate(ledger, clock, cpu, wait_s, used_s, step_s=1.0, count=1):
    """Iterations as the loop drives them, each with one wait and one step."""
    point = {'before': Point('step'), 'after': Point('data_wait')}
    call = ledger.book_points(lambda name: None, point, failed, failed)
    for _ in range(count):
        call('after')
        clock.turn(wait_s)
        cpu.turn(used_s)
        call('before')
        clock.turn(step_s)
        cpu.turn(step_s)


def test_cpu_is_counted_inside_the_waits_alone(clock):
    cpu = HandClock(0.0)
    ledger = TimeLedger(clock, cpu)
    iterate(ledger, clock, cpu, wait_s=4, used_s=1, step_s=32)
    assert ledger.read().data_wait_cpu_s == 1


def test_waits_that_nobody_looked_into_used_cpu_as_the_others_did(clock):
    cpu = HandClock(0.0)
    ledger = TimeLedger(clock, cpu)
    iterate(ledger, clock, cpu, wait_s=4, used_s=1, count=20)
    assert ledger.read().data_wait_cpu_s == pytest.approx(20)
    # of the next interval's one wait nothing is looked at
    iterate(ledger, clock, cpu, wait_s=8, used_s=0)
    assert 0 <= ledger.read().data_wait_cpu_s - 20 <= 2


def test_the_way_through_python_between_two_parts_tells_nothing_of_waits(clock):
    cpu = HandClock(0.0)
    ledger = TimeLedger(clock, cpu)
    ledger.switch('data_wait')
    clock.turn(1e-5)
    cpu.turn(1e-5)
    ledger.push('worker_startup')
    ledger.pop('worker_startup')
    clock.turn(8)
    ledger.switch('step')
    assert ledger.read().data_wait_cpu_s < 1e-4


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


def test_laps_tell_waits_steps_and_iterations(ledger, clock):
    start = ledger.lap()
    ledger.switch('data_wait')
    clock.turn(1)
    ledger.switch('step')
    clock.turn(2)
    ledger.begin_hooks()
    clock.turn(4)
    first = ledger.lap()
    assert [end - begin for begin, end in zip(start, first)] == [1, 2, 7]
    ledger.push('checkpoint_save')
    clock.turn(64)
    ledger.pop('checkpoint_save')
    clock.turn(8)
    ledger.end_hooks('data_wait')
    clock.turn(16)
    second = ledger.lap()
    assert [end - begin for begin, end in zip(first, second)] == [16, 0, 24]


def test_at_a_point_everybody_is_called_in_turn_and_hooks_are_booked(ledger, clock):
    said: list[str] = []
    point = Point(
        'step',
        before=(('queue', lambda: said.append('before')),),
        after=(('events', lambda: said.append('after')),),
    )

    def hooks(name: str, **rest: int) -> str:
        said.append(f'{name} {rest}')
        clock.turn(4)
        return 'done'

    call = ledger.book_points(hooks, {'here': point}, failed, failed)
    ledger.switch('data_wait')
    clock.turn(1)
    assert call('here', batch_idx=3) == 'done'
    clock.turn(2)
    assert said == ['before', "here {'batch_idx': 3}", 'after']
    assert nonzero(ledger) == {'data_wait': 1, 'hooks': 4, 'step': 2}


def test_another_point_or_a_nested_one_goes_the_other_way(ledger):
    call = ledger.book_points(failed, {'here': Point('step')}, str.upper, failed)
    assert call('there') == 'THERE'
    ledger.push('validation')
    assert call('here') == 'HERE'


def test_what_fails_at_a_point_is_told_and_the_hooks_are_called(ledger):
    def fail() -> None:
        raise KeyError('planted')

    told: list[str] = []
    points = {'here': Point('step', before=(('queue', fail),), after=(('gpu', fail),))}
    call = ledger.book_points(
        str.upper, points, failed, lambda source, error: told.append(source)
    )
    assert call('here') == 'HERE'
    assert told == ['queue', 'gpu']
    assert ledger.current == 'step'


def test_what_starting_took_is_moved_out_of_the_waits(ledger, clock):
    ledger.switch('data_wait')
    clock.turn(5)
    ledger.book_startup(3)
    assert nonzero(ledger) == {'data_wait': 2, 'worker_startup': 3}
