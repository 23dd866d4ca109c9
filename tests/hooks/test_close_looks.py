"""Which iterations are looked at, and what is known of the others."""

from __future__ import annotations

import pytest

from fakes.looked_loop import MS, US, LookedLoop, Other, run_in_steps
from mmgpu_hooks.evidence.ledger_parts import UNTOLD
from mmgpu_hooks.hooks.close_looks import BEFORE, FIRST_LOOKS


def test_the_first_iterations_are_looked_at_and_then_none():
    loop = LookedLoop(300 * US, 100 * US)
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


def test_hooks_stay_timed_from_one_look_to_the_next():
    loop = LookedLoop(300 * US, 100 * US)
    loop.train(1)
    first = [vars(hook)['after_train_iter'] for hook in loop.hooks]
    loop.train(2)
    assert [vars(hook)['after_train_iter'] for hook in loop.hooks] == first
    # one that joins is timed from the next look on
    loop.hooks.append(Other(loop.clock, 200 * US))
    loop.looks.watch_hooks(loop.hooks)
    loop.train(1)
    assert loop.timed() == [True, True, True]
    loop.train(FIRST_LOOKS - 4)
    assert loop.timed() == [False, False, False]


def test_a_request_made_inside_an_iteration_is_for_the_next():
    loop = LookedLoop(300 * US, 100 * US)
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
    loop = LookedLoop(300 * US, 100 * US)
    loop.train(FIRST_LOOKS - 1)
    loop.during = loop.looks.request
    loop.train(1)
    loop.during = lambda: None
    loop.train(5)
    assert loop.asked == loop.ledger.shares.looks == FIRST_LOOKS + 1


def test_of_a_special_iteration_the_hooks_are_timed_and_the_queue_is_left_alone():
    loop = LookedLoop(300 * US, 100 * US)
    loop.train(FIRST_LOOKS)
    loop.during = lambda: loop.looks.request(is_special=True)
    loop.train(1)
    loop.during = lambda: None
    loop.hooks[0].seconds = 900 * US
    before_s = loop.ledger.read().hooks_s['Slow']
    loop.train(1)
    assert loop.ledger.read().hooks_s['Slow'] == pytest.approx(before_s + 900 * US)
    assert loop.asked == loop.ledger.shares.looks == FIRST_LOOKS
    # nor is anything to be done after the wait that follows it
    assert (BEFORE in loop.looks.plain, loop.got) == (True, FIRST_LOOKS)
    loop.train(2)
    assert (loop.asked, loop.got) == (FIRST_LOOKS, FIRST_LOOKS)


def test_a_hook_that_takes_long_is_timed_in_every_iteration():
    loop = LookedLoop(5 * MS, 100 * US)
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
    loop = LookedLoop(100 * US, 100 * US)
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
    loop = LookedLoop(100 * US, 100 * US)
    for index in range(200):
        loop.hooks[0].seconds = 5 * MS if index % 10 == 0 else 100 * US
        loop.during = loop.looks.request
        loop.train(1)
    loop.during = lambda: None
    loop.train(2)
    assert loop.timed() == [False, False]


def test_a_hook_that_begins_to_take_long_late_is_split_out():
    loop = LookedLoop(100 * US, 100 * US)
    slept_s = run_in_steps(loop, 1500, lambda index: index >= 1000)
    hooks_s = loop.ledger.read().hooks_s
    assert hooks_s['Other'] == pytest.approx(slept_s, rel=0.02)
    assert hooks_s['Slow'] == pytest.approx(1500 * 100 * US, rel=0.02)
    # and costs no look more
    assert loop.ledger.shares.looks < 1500 / 8


def test_a_hook_that_takes_long_every_so_often_is_split_out():
    loop = LookedLoop(100 * US, 100 * US)
    slept_s = run_in_steps(loop, 5000, lambda index: index % 100 == 57)
    hooks_s = loop.ledger.read().hooks_s
    # the first time nobody knows who it was
    assert hooks_s['Other'] - 0.495 == pytest.approx(slept_s - 50 * MS, abs=1 * MS)
    assert hooks_s[UNTOLD] == pytest.approx(50 * MS, rel=0.01)
    # but at the end it is known
    settled = loop.ledger.shares.settle(hooks_s)
    assert settled['Other'] - 0.495 == pytest.approx(slept_s, abs=1 * MS)
    assert UNTOLD not in settled
    assert hooks_s['Slow'] == pytest.approx(5000 * 100 * US, rel=0.02)
    assert loop.timed() == [False, True]


def test_who_takes_long_late_is_found_on_a_machine_that_holds_hooks_up():
    loop = LookedLoop(100 * US, 100 * US)

    def sleeps(index: int) -> bool:
        # hiccups: now the one is held up for a while, now the other
        loop.hooks[0].seconds = 6 * MS if index % 37 == 5 else 100 * US
        return index >= 6000 and index % 50 == 21

    slept_s = run_in_steps(loop, 20_000, sleeps)
    hooks_s = loop.ledger.read().hooks_s
    assert hooks_s['Other'] == pytest.approx(slept_s + 2.0, rel=0.1)


def test_a_search_for_nobody_ends_and_searches_stay_rare():
    loop = LookedLoop(100 * US, 100 * US)

    def surprise(index: int) -> bool:
        if index % 16 == 0:
            # not of any hook: a surprise whenever nobody looks
            loop.gap_s = 0.0 if loop.timed()[0] else 20 * MS
        return False

    run_in_steps(loop, 20_000, surprise)
    assert loop.timed() == [False, False] or loop.looks._left
    assert loop.ledger.shares.looks < 0.35 * 20_000


def test_closing_leaves_the_hooks_as_they_were():
    loop = LookedLoop(5 * MS, 100 * US)
    loop.train(3)
    assert loop.timed() == [True, True]
    loop.looks.close()
    assert loop.timed() == [False, False]
    assert loop.looks.points == loop.looks.plain == {}
    loop.looks.request()
    assert loop.looks.points == loop.looks.plain == {}
