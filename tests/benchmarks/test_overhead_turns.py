from __future__ import annotations

import threading

import pytest

from benchmarks.overhead_turns import Turns, run_in_turns


@pytest.mark.parametrize('order', ['abba', 'aab', 'bbbbaaab'])
def test_turns_are_taken_in_order(order: str):
    turns, taken = Turns(order), []

    def training(name: str) -> None:
        while True:
            taken.append(name)
            turns.pass_on()
            turns.wait(name)

    run_in_turns(turns, {n: lambda n=n: training(n) for n in 'ab'})
    assert ''.join(taken) == order


def test_one_that_fails_ends_the_others_and_is_told():
    turns, before = Turns('abab'), threading.active_count()

    def fail() -> None:
        raise ValueError('no data')

    def go_on() -> None:
        turns.pass_on()
        turns.wait('a')

    with pytest.raises(ValueError, match='no data'):
        run_in_turns(turns, {'a': go_on, 'b': fail})
    assert threading.active_count() == before


def test_one_that_returns_early_ends_the_others():
    turns, taken = Turns('abab'), []
    run_in_turns(turns, {n: lambda n=n: taken.append(n) for n in 'ab'})
    assert taken == ['a']
