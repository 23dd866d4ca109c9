"""Long moments of hooks in which nobody looked, and whose they turn out to be."""

from __future__ import annotations

import pytest

from mmgpu_hooks.evidence.surprises import Surprises

MS = 1e-3
A, B = 'A 1 step', 'B 2 step'


def told(
    surprises_ms: list[float],
    calls_ms: dict[str, list[float]],
    timed: int = 500,
    iterations: int = 1000,
    during: str = 'step',
) -> dict[str, float]:
    """What the surprises are of whom at the end, in milliseconds."""
    surprises = Surprises(lambda method: timed)
    for seconds_ms in surprises_ms:
        surprises.add(seconds_ms * MS, seconds_ms * MS, during)
    assert surprises.share(iterations) == {}
    for method, taken_ms in calls_ms.items():
        for seconds_ms in taken_ms:
            surprises.note_long(method, seconds_ms * MS)
    assert surprises.untold_s == pytest.approx(sum(surprises_ms) * MS)
    return {
        method: pytest.approx(seconds / MS)
        for method, seconds in surprises.settle(iterations).items()
    }


def test_one_is_of_the_hook_whose_calls_are_like_it():
    assert told([50], {A: [50, 50], B: [5] * 9}) == {A: 50}
    assert told([45, 5], {A: [50, 50], B: [5] * 9}) == {A: 45, B: 5}


@pytest.mark.parametrize('calls_ms', [[50], [50, 90], [35, 36], [70, 80]])
def test_one_call_like_it_is_not_enough(calls_ms: list[float]):
    assert told([50], {A: calls_ms}) == {}


@pytest.mark.parametrize(
    ('during', 'is_told'),
    [('step', True), ('data_wait', False), ('checkpoint_save', True)],
)
def test_it_must_be_at_the_same_point_where_that_is_known(during: str, is_told: bool):
    assert bool(told([50], {A: [50, 50]}, during=during)) is is_told


def test_a_hook_that_was_held_up_twice_does_not_get_all_that_is_held_up():
    # timed in half of the iterations it took so long twice
    assert told([6] * 5, {A: [6, 6]}) == {A: 30}
    assert told([6] * 6, {A: [6, 6]}) == {}
    assert told([6] * 15, {A: [6] * 8}) == {}
    # and where it was timed nearly always, but for the very first one, nothing is
    assert told([6] * 2, {A: [6, 6]}, timed=990) == {}
    assert told([6], {A: [6, 6]}, timed=990) == {A: 6}


def test_two_who_take_as_long_share_them_as_they_do_so_often():
    assert told([50, 50], {A: [50] * 3, B: [50] * 9}) == {A: 25, B: 75}


def test_within_an_interval_as_many_are_given_as_are_to_be_expected():
    surprises = Surprises(lambda method: 500)
    for _ in range(4):
        surprises.note_long(A, 50 * MS)
    # 4 and 2 standard deviations of that
    for _ in range(8):
        surprises.add(50 * MS, 50 * MS, 'step')
    assert surprises.share(1000) == {A: pytest.approx(400 * MS)}
    assert surprises.untold_s == pytest.approx(0)
    surprises.add(50 * MS, 50 * MS, 'step')
    assert surprises.share(1000) == {}
    assert surprises.untold_s == pytest.approx(50 * MS)
    # one more than that may have been the first of all
    assert surprises.settle(1000) == {A: pytest.approx(50 * MS)}


def test_of_very_many_the_newest_are_kept():
    surprises = Surprises(lambda method: 5000)
    for _ in range(1000):
        surprises.add(50 * MS, 50 * MS, 'step')
    assert surprises.share(10_000) == {}
    for _ in range(1000):
        surprises.note_long(A, 50 * MS)
    (given_s,) = surprises.settle(10_000).values()
    assert given_s == pytest.approx(128 * 50 * MS)
    assert surprises.untold_s == pytest.approx(50)


@pytest.mark.parametrize(
    ('surprises', 'is_called_for'),
    [
        pytest.param([], False, id='none'),
        pytest.param([(5, 'step')], False, id='a hiccup'),
        pytest.param([(11, 'step')], True, id='too long for one'),
        pytest.param([(5, 'step'), (5.5, 'step')], True, id='two alike'),
        pytest.param([(5, 'step'), (5, 'data_wait')], False, id='at two points'),
        pytest.param([(5, 'step'), (7, 'step')], False, id='two hiccups'),
        pytest.param([(5, 'step'), (7, 'step'), (3, 'data_wait')], True, id='several'),
    ],
)
def test_a_search_is_not_called_for_by_a_hiccup(
    surprises: list[tuple[float, str]], is_called_for: bool
):
    kept = Surprises(lambda method: 1)
    for seconds_ms, during in surprises:
        kept.add(seconds_ms * MS, seconds_ms * MS, during)
    assert kept.take_search() is is_called_for
    # those that called for one do not call for another
    assert kept.take_search() is False


def test_those_that_nobody_asks_for_take_no_more_memory():
    surprises = Surprises(lambda method: 1)
    for _ in range(1000):
        surprises.add(5 * MS, 4 * MS, 'step')
    assert len(surprises._new) == 128
    assert surprises.share(1000) == {}
    assert surprises.untold_s == pytest.approx(4.0)
