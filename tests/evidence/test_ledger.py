from __future__ import annotations

import pytest

from fakes.clock import HandClock
from fakes.driven_ledger import failed, go_on, nonzero
from mmgpu_hooks.evidence.hook_shares import labels_of
from mmgpu_hooks.evidence.ledger import TimeLedger
from mmgpu_hooks.evidence.ledger_parts import LOOKED, PARTS, UNSPLIT, UNTOLD, Point


def test_each_second_belongs_to_the_part_that_ran(ledger, clock):
    go_on(ledger, 'data_wait')
    clock.turn(3)
    go_on(ledger, 'step')
    clock.turn(2)
    go_on(ledger, 'data_wait')
    clock.turn(1)
    assert nonzero(ledger) == {'data_wait': 4, 'step': 2}


def test_brief_stretches_belong_to_the_hooks_that_were_looked_at(ledger, clock):
    seen, brief_s = labels_of('A', False)[LOOKED], 2.0**-11
    for part in (seen, *[UNSPLIT] * 8):
        ledger.push(part)
        clock.turn(brief_s)
        ledger.pop(part)
    ledger.shares.looks = 1
    reading = ledger.read()
    assert reading.wall_s['hooks'] == 9 * brief_s
    assert reading.hooks_s == {'A': 9 * brief_s}


def test_a_nested_part_takes_its_time_from_the_one_around_it(ledger, clock):
    ledger.push('hooks')
    clock.turn(1)
    ledger.push('checkpoint_save')
    clock.turn(5)
    ledger.pop('checkpoint_save')
    clock.turn(2)
    ledger.pop('hooks')
    clock.turn(4)
    assert nonzero(ledger) == {'hooks': 3, 'checkpoint_save': 5, 'other': 4}


def test_parts_add_up_to_the_elapsed_time(ledger, clock):
    for step, part in enumerate([*PARTS, *PARTS]):
        go_on(ledger, part)
        clock.turn(0.1 * step)
    total = sum(ledger.read().wall_s.values())
    assert total == pytest.approx(ledger.elapsed_s(), abs=1e-12)
    assert total == pytest.approx(clock.now - ledger.started, abs=1e-12)


def test_closing_an_outer_part_closes_what_an_error_left_open(ledger, clock):
    ledger.push('validation')
    ledger.push('hooks')
    ledger.pop('validation')
    clock.turn(1)
    assert ledger.current == 'other'
    assert nonzero(ledger) == {'other': 1}


def test_closing_what_is_not_open_changes_nothing(ledger):
    ledger.pop('validation')
    assert ledger.current == 'other'


def test_unwinding_goes_back_to_the_loop(ledger):
    go_on(ledger, 'data_wait')
    ledger.push('hooks')
    ledger.push('validation')
    ledger.unwind()
    assert ledger.current == 'data_wait'


def wait(ledger, clock, cpu, wait_s, used_s, is_looked=True):
    """A wait, as the loop drives it, and a step."""
    look = (('ledger', ledger.begin_wait),), (('ledger', ledger.end_wait),)
    ask, got = look if is_looked else ((), ())
    points = {
        'after': Point('data_wait', after=ask),
        'before': Point('step', before=got),
    }
    call = ledger.book_points(lambda name: None, points, failed, failed)
    call('after')
    clock.turn(wait_s)
    cpu.turn(used_s)
    call('before')
    clock.turn(1.0)
    cpu.turn(1.0)


@pytest.fixture
def cpu() -> HandClock:
    return HandClock(0.0)


def test_cpu_is_counted_inside_the_waits_alone(clock, cpu):
    ledger = TimeLedger(clock, cpu)
    wait(ledger, clock, cpu, wait_s=4, used_s=1)
    assert ledger.read().data_wait_cpu_s == 1


def test_waits_that_nobody_looked_into_used_cpu_as_the_others_did(clock, cpu):
    ledger = TimeLedger(clock, cpu)
    for index in range(20):
        wait(ledger, clock, cpu, wait_s=4, used_s=1, is_looked=index % 7 == 0)
    assert ledger.read().data_wait_cpu_s == pytest.approx(20)
    # the next interval's one wait is not looked at
    wait(ledger, clock, cpu, wait_s=8, used_s=0, is_looked=False)
    assert ledger.read().data_wait_cpu_s - 20 == pytest.approx(2)


def test_a_wait_too_short_to_tell_anything_is_left_out(clock, cpu):
    ledger = TimeLedger(clock, cpu)
    wait(ledger, clock, cpu, wait_s=1e-5, used_s=1e-5)
    wait(ledger, clock, cpu, wait_s=8, used_s=0)
    assert ledger.read().data_wait_cpu_s == 0


def test_a_wait_in_which_something_else_ran_is_not_looked_at(clock, cpu):
    ledger = TimeLedger(clock, cpu)
    go_on(ledger, 'data_wait')
    ledger.begin_wait()
    cpu.turn(5)
    clock.turn(5)
    ledger.push('worker_startup')
    clock.turn(5)
    ledger.pop('worker_startup')
    ledger.end_wait()
    assert ledger.read().data_wait_cpu_s == 0


def test_a_wait_that_turns_out_to_be_none_leaves_no_cpu(clock, cpu):
    ledger = TimeLedger(clock, cpu)
    go_on(ledger, 'data_wait')
    ledger.begin_wait()
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
    assert ledger.current == 'step'
    assert nonzero(ledger) == {'hooks': 1, 'step': 2}


def test_each_hook_has_its_share_without_what_is_nested_in_it(ledger, clock):
    def save() -> str:
        clock.turn(1)
        ledger.push('checkpoint_save')
        clock.turn(8)
        ledger.pop('checkpoint_save')
        clock.turn(2)
        return 'saved'

    log = ledger.book_calls(lambda: clock.turn(4), labels_of('Logger', True), failed)
    checkpoint = ledger.book_calls(save, labels_of('Checkpoint', True), failed)
    losses = ledger.book_calls(lambda: clock.turn(16), labels_of('step', True), failed)
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
    log = ledger.book_calls(lambda: clock.turn(4), labels_of('Logger', True), failed)
    ledger.push('validation')
    log()
    assert nonzero(ledger) == {'validation': 4}
    assert ledger.read().hooks_s == {}


def test_an_error_of_a_hook_passes_and_the_loop_goes_on(ledger, clock):
    def fail() -> None:
        clock.turn(1)
        raise KeyError('planted')

    ledger.begin_hooks()
    with pytest.raises(KeyError, match='planted'):
        ledger.book_calls(fail, labels_of('Failing', True), failed)()
    ledger.unwind()
    go_on(ledger, 'step')
    clock.turn(2)
    assert nonzero(ledger) == {'hooks': 1, 'step': 2}


def test_laps_tell_waits_steps_and_iterations(ledger, clock):
    due: list[int] = []
    lap = ledger.book_laps([0, 2], lambda index, batch: due.append(index), failed)
    lap(None, batch_idx=0)
    go_on(ledger, 'data_wait')
    clock.turn(1)
    go_on(ledger, 'step')
    clock.turn(2)
    ledger.begin_hooks()
    clock.turn(4)
    lap(None, batch_idx=1)
    ledger.push('checkpoint_save')
    clock.turn(64)
    ledger.pop('checkpoint_save')
    clock.turn(8)
    ledger.end_hooks('data_wait')
    clock.turn(16)
    lap(None, batch_idx=2, data_batch=None, outputs=None)
    start, first, second = ledger.drain_laps()
    assert [end - begin for begin, end in zip(start, first)] == [1, 2, 7]
    assert [end - begin for begin, end in zip(first, second)] == [16, 0, 24]
    assert due == [0, 2]
    assert ledger.drain_laps() == []


def test_what_our_own_end_of_a_look_takes_is_in_no_hook(ledger, clock):
    log = ledger.book_calls(lambda: clock.turn(1e-4), labels_of('A', False), failed)

    def end_look() -> None:
        ledger.end_look()
        clock.turn(64)

    point = Point('step', LOOKED, after=(('ledger', end_look),))
    call = ledger.book_points(lambda name: log(), {'here': point}, failed, failed)
    call('here')
    reading = ledger.read()
    assert reading.wall_s['hooks'] == pytest.approx(64.0001)
    assert reading.hooks_s == {'A': pytest.approx(1e-4)}
    assert ledger.shares.looks == 1


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
    go_on(ledger, 'data_wait')
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
    go_on(ledger, 'data_wait')
    clock.turn(5)
    ledger.book_startup(3)
    assert nonzero(ledger) == {'data_wait': 2, 'worker_startup': 3}


PLAIN = {'after': ('step', 'data_wait'), 'before': ('data_wait', 'step')}


def test_plain_points_book_what_closely_looked_at_ones_do(ledger, clock):
    saved = ledger.book_calls(lambda: clock.turn(8), labels_of('A', True), failed)

    def hooks(name: str, **rest: int) -> str:
        clock.turn(4)
        if name == 'after':
            saved()
            ledger.push('checkpoint_save')
            clock.turn(16)
            # somebody calls hooks in a hook
            assert call('inner') == 'INNER'
            ledger.pop('checkpoint_save')
        return f'{name} {rest}'

    call = ledger.book_plain_points(hooks, PLAIN, str.upper, failed)
    go_on(ledger, 'data_wait')
    clock.turn(1)
    assert call('before', batch_idx=3) == "before {'batch_idx': 3}"
    clock.turn(2)
    assert call('after') == 'after {}'
    clock.turn(32)
    assert nonzero(ledger) == {
        'data_wait': 33,
        'hooks': 16,
        'step': 2,
        'checkpoint_save': 16,
    }
    # whose the rest was nobody saw
    assert ledger.read().hooks_s == {'A': 8, UNTOLD: 8}


@pytest.mark.parametrize('part', ['other', 'step', 'worker_startup', 'hooks'])
def test_a_point_in_another_part_is_no_plain_one(ledger, part):
    go_on(ledger, part)
    call = ledger.book_plain_points(failed, PLAIN, str.upper, failed)
    assert call('before') == 'BEFORE'
    assert ledger.current == part


def test_hooks_that_raise_at_a_plain_point_leave_the_ledger_whole(ledger, clock):
    def fail(name: str) -> None:
        clock.turn(4)
        raise KeyError('planted')

    call = ledger.book_plain_points(fail, PLAIN, failed, failed)
    go_on(ledger, 'step')
    clock.turn(1)
    with pytest.raises(KeyError, match='planted'):
        call('after')
    # a loop that swallows it goes on
    assert ledger.is_nested
    assert not ledger.begin_hooks()
    ledger.unwind()
    clock.turn(2)
    assert ledger.begin_hooks()
    ledger.end_hooks('step')
    clock.turn(8)
    assert nonzero(ledger) == {'step': 9, 'hooks': 4, 'other': 2}


def test_a_plain_point_that_cannot_be_stamped_is_told_and_its_hooks_called():
    broken: list[str] = []

    def clock() -> float:
        if broken:
            raise OSError('no clock')
        return 0.0

    ledger = TimeLedger(clock, clock)
    told: list[str] = []
    call = ledger.book_plain_points(
        str.upper, PLAIN, failed, lambda source, error: told.append(source)
    )
    go_on(ledger, 'data_wait')
    broken.append('yes')
    assert call('before') == 'BEFORE'
    assert told == ['ledger']


def test_an_iteration_may_end_after_the_last_stamp(ledger, clock):
    lap = ledger.book_laps([-1, 9], failed, failed)
    go_on(ledger, 'step')
    clock.turn(2)
    lap(None, batch_idx=0)
    clock.turn(4)
    assert ledger.drain_laps() == [(0, 2, 2)]
    clock.turn(8)
    lap(None, batch_idx=1)
    go_on(ledger, 'data_wait')
    assert [step for _, step, _ in ledger.drain_laps()] == [14]
    assert nonzero(ledger) == {'step': 14}


def test_an_interrupt_between_a_time_and_its_part_costs_neither(ledger, clock):
    go_on(ledger, 'data_wait')
    clock.turn(3)
    ledger._tape.append(clock())  # and Ctrl-C comes
    clock.turn(2)
    go_on(ledger, 'step')
    clock.turn(1)
    assert nonzero(ledger) == {'data_wait': 5.0, 'step': 1.0}
