"""Hooks that call hook points themselves, and a clock that is set back."""

from __future__ import annotations

import pytest

from fakes.driven_ledger import failed, go_on, nonzero
from mmgpu_hooks.evidence.hook_shares import labels_of
from mmgpu_hooks.evidence.ledger_parts import Point

PLAIN = {'after': ('step', 'data_wait'), 'before': ('data_wait', 'step')}


@pytest.mark.parametrize('is_plain', [True, False])
def test_what_a_hook_calls_at_a_point_of_its_own_is_its_own(ledger, clock, is_plain):
    def inner(name: str) -> None:
        # what a runner's call_hook does at a point that is not in every iteration
        assert not ledger.begin_hooks()
        clock.turn(16)

    def hook() -> None:
        clock.turn(4)
        call('inner')
        clock.turn(8)

    booked = ledger.book_calls(hook, labels_of('A', True), failed)
    points = {} if is_plain else {'after': Point('data_wait')}
    looked = ledger.book_points(lambda name: booked(), points, inner, failed)
    plain = PLAIN if is_plain else {}
    call = ledger.book_plain_points(lambda name: booked(), plain, looked, failed)
    go_on(ledger, 'step')
    call('after')
    reading = ledger.read()
    assert reading.hooks_s == {'A': 28}
    assert reading.wall_s['hooks'] == 28
    assert ledger.current == 'data_wait'


def test_a_timed_hook_that_raises_at_a_plain_point_leaves_the_ledger_whole(
    ledger, clock
):
    def fail() -> None:
        clock.turn(4)
        raise KeyError('planted')

    booked = ledger.book_calls(fail, labels_of('A', True), failed)
    call = ledger.book_plain_points(lambda name: booked(), PLAIN, failed, failed)
    go_on(ledger, 'step')
    with pytest.raises(KeyError, match='planted'):
        call('after')
    assert ledger.is_nested
    ledger.unwind()
    clock.turn(2)
    assert ledger.begin_hooks()
    ledger.end_hooks('step')
    assert nonzero(ledger) == {'hooks': 4, 'other': 2}
    assert ledger.read().hooks_s == {'A': 4}


@pytest.mark.parametrize('in_wait', [True, False])
def test_a_clock_that_is_set_back_takes_nothing_from_any_part(ledger, clock, in_wait):
    lap = ledger.book_laps([-1, 99], failed, failed)
    laps = []
    for index in range(6):
        go_on(ledger, 'data_wait')
        clock.turn(1)
        # an iteration ends where a hook is, or the clock is set just before or after
        if index == 3 and in_wait:
            clock.turn(-50)
        go_on(ledger, 'step')
        clock.turn(2)
        lap(None, index)
        if index == 3 and not in_wait:
            clock.turn(-50)
        if index % 2:
            laps += ledger.drain_laps()
    total_s = 6 * 3 - in_wait
    assert nonzero(ledger) == {'data_wait': 6 - in_wait, 'step': 12}
    assert ledger.elapsed_s() == total_s
    assert len(laps) == 6
    ends = [ended for _, _, ended in laps]
    assert [end - begin for begin, end in zip([0, *ends], ends)] == [
        *[3, 3, 3],
        3 - in_wait,
        *[3, 3],
    ]


def test_iterations_that_end_while_nothing_else_is_stamped_outlive_a_set_back(
    ledger, clock
):
    lap = ledger.book_laps([-1, 99], failed, failed)
    go_on(ledger, 'step')
    for seconds in (1, 1, -7, 1, 1):
        clock.turn(seconds)
        lap(None, 0)
    assert [ended for _, _, ended in ledger.drain_laps()] == [1, 2, 2, 3, 4]
    assert nonzero(ledger) == {'step': 4}
    assert ledger.elapsed_s() == 4
