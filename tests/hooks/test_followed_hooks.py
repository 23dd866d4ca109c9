"""How long a method stays timed in every iteration."""

from __future__ import annotations

import pytest

from fakes.looked_loop import MS, US, LookedLoop, run_in_steps
from mmgpu_hooks.hooks.followed_hooks import FOLLOWED


def test_who_was_found_by_chance_is_timed_always_no_more():
    loop = LookedLoop(100 * US, 100 * US)
    # once while nobody looks, and once while it is searched for
    slept_s = run_in_steps(loop, 300, lambda index: index in (100, 150))
    assert loop.timed() == [False, True]
    slept_s += run_in_steps(loop, FOLLOWED - 192, lambda index: False)
    assert loop.timed() == [False, True]
    run_in_steps(loop, 300, lambda index: False)
    assert loop.timed() == [False, False]
    before_s = loop.ledger.read().hooks_s
    assert before_s['Other'] == pytest.approx(slept_s - 50 * MS + 0.34, abs=0.02)
    # its part of what nobody looks at is what it was
    loop.train(1000)
    after_s = loop.ledger.read().hooks_s
    for name in ('Slow', 'Other'):
        grown_s = after_s[name] - before_s[name]
        assert grown_s == pytest.approx(1000 * 100 * US, rel=0.02)
    # and when it takes long again, it is found again
    run_in_steps(loop, 500, lambda index: index in (100, 150))
    assert loop.timed() == [False, True]


def test_who_takes_long_as_seldom_as_a_search_can_find_stays_timed():
    loop = LookedLoop(100 * US, 100 * US)
    slept_s = run_in_steps(loop, 12_008, lambda index: index % 1990 == 1989)
    assert loop.timed() == [False, True]
    hooks_s = loop.ledger.read().hooks_s
    # the first time nobody knows who it was
    assert hooks_s['Other'] == pytest.approx(slept_s - 50 * MS + 1.2, abs=0.02)
    settled = loop.ledger.shares.settle(hooks_s)
    assert settled['Other'] == pytest.approx(slept_s + 1.2, abs=0.02)


def test_a_hook_that_has_become_fast_is_timed_always_no_more():
    loop = LookedLoop(100 * US, 100 * US)
    run_in_steps(loop, 200, lambda index: True)
    assert loop.timed() == [False, True]
    run_in_steps(loop, FOLLOWED + 208, lambda index: False)
    assert loop.timed() == [False, False]


def test_closing_leaves_those_that_are_followed_as_they_were():
    loop = LookedLoop(5 * MS, 100 * US)
    run_in_steps(loop, 200, lambda index: False)
    assert loop.timed() == [True, False]
    loop.looks.close()
    assert loop.timed() == [False, False]
