"""Tests that a function's first calls alternate between plain and optimised code."""

from __future__ import annotations

import pytest

from mmgpu_hooks.optimize import turns
from mmgpu_hooks.optimize.turns import Turns


@pytest.fixture
def clock(monkeypatch):
    """Fake CPU clock of a thread, which advances by a set step per reading."""
    now = {'s': 0.0, 'step_s': 0.0}

    def read() -> float:
        now['s'] += now['step_s']
        return now['s']

    monkeypatch.setattr(turns, 'thread_cpu_s', read)
    return now


def go(timed: Turns, clock: dict[str, float], calls: int) -> str:
    """Makes calls; returns a letter for each: ``p`` plain (4 s), ``o`` fast (1 s)."""
    ways = ''
    for _ in range(calls):
        clock['step_s'] = 1.0
        began_s = timed.begin()
        if timed.is_plain_due:
            clock['step_s'] = 4.0
            timed.call_plain(lambda: None)
            ways += 'p'
        else:
            timed.end(began_s)
            ways += 'o'
    return ways


def test_both_ways_take_turns_until_they_are_known(clock):
    timed = Turns()
    assert go(timed, clock, 4) == 'opop'
    assert not timed.spared
    rest = go(timed, clock, 40)
    assert rest.count('p') == Turns.calls - 1
    assert rest.endswith('o' * 20)
    spared = timed.spared
    assert spared is not None
    assert (spared.plain_s, spared.ours_s, spared.calls) == (4.0, 1.0, Turns.calls)
    # nothing is timed any more
    before_s = clock['s']
    assert timed.begin() is None
    timed.end(None)
    assert clock['s'] == before_s


def test_no_turns_are_taken_where_whole_iterations_are_compared(clock, monkeypatch):
    monkeypatch.setattr(Turns, 'calls', 0)
    timed = Turns()
    assert go(timed, clock, 5) == 'ooooo'
    assert timed.spared is None
