from __future__ import annotations

import random
import statistics
from typing import Callable

import pytest

from benchmarks.overhead_effect import (
    Effect,
    Iteration,
    Round,
    compare_arms,
    fold_effect,
    robust_parts,
)

HOOKS_MS, REST_MS = 5.0, 20.0


def noise(lots: random.Random) -> float:
    """Of a host, in milliseconds: one in twenty iterations is hit hard."""
    return lots.gauss(0.0, 0.8) + (
        lots.expovariate(0.25) if lots.random() < 0.05 else 0
    )


def make_rounds(
    add: Callable[[int], tuple[float, float]], count: int = 800, seed: int = 0
) -> list[Round]:
    """Rounds of four iterations each, with drift and with a planted cost.

    Args:
        add: What the hook adds to an iteration of that number, at the hook points and
            to the rest, in milliseconds.
        count: Of the rounds.
        seed: Of the noise.
    """
    lots, rounds, number = random.Random(seed), [], 0
    for index in range(count):
        drift = 2.0 * (index // 100 % 2)
        arms: dict[str, list[Iteration]] = {'none': [], 'ours': []}
        for _ in range(4):
            number += 1
            for arm, added in (('none', (0.0, 0.0)), ('ours', add(number))):
                hooks = HOOKS_MS + abs(lots.gauss(0.0, 0.3)) + added[0]
                rest = REST_MS + drift + noise(lots) + added[1]
                arms[arm].append(Iteration(hooks / 1000, rest / 1000))
        rounds.append(arms)
    return rounds


def test_nothing_is_found_to_be_nothing():
    found = compare_arms(make_rounds(lambda n: (0.0, 0.0)), 'ours', 'none')
    assert found.total.half_width < 0.25
    assert found.total.low < 0.0 < found.total.high
    assert found.total.is_within(0.5)
    # with the tail in it, the same pairs tell less
    assert found.plain.half_width > 1.3 * found.total.half_width
    assert (found.rounds, found.threads) == (800, 0.0)


@pytest.mark.parametrize(
    ('add', 'planted_ms', 'part'),
    [
        pytest.param(lambda n: (0.25, 0.0), 0.25, 'hooks', id='each iteration'),
        pytest.param(
            lambda n: (12.5 if n % 50 == 0 else 0.0, 0.0), 0.25, 'hooks', id='each 50th'
        ),
        pytest.param(
            lambda n: (200.0 if n % 800 == 0 else 0.0, 0.0), 0.25, 'hooks', id='rarely'
        ),
        pytest.param(lambda n: (0.0, 0.25), 0.25, 'rest', id='colder caches'),
    ],
)
def test_planted_cost_is_found_wherever_it_is(
    add: Callable[[int], tuple[float, float]], planted_ms: float, part: str
):
    nothing = compare_arms(make_rounds(lambda n: (0.0, 0.0)), 'ours', 'none')
    found = compare_arms(make_rounds(add), 'ours', 'none')
    planted = 100 * planted_ms / (1000 * found.iteration_s)
    # of the same noise: what is left is what was planted
    assert found.total.value - nothing.total.value == pytest.approx(planted, abs=0.04)
    assert getattr(found, part).value > 0.7 * planted
    assert not found.total.is_within(0.5)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    held = [
        effect.low <= 0.0 <= effect.high
        for seed in range(60)
        for effect in [
            compare_arms(
                make_rounds(lambda n: (0.0, 0.0), 60, seed), 'ours', 'none'
            ).total
        ]
    ]
    assert 0.8 <= statistics.fmean(held) <= 0.98


def test_threads_are_added_in_full():
    rounds = make_rounds(lambda n: (0.0, 0.1), 20)
    alone = compare_arms(rounds, 'ours', 'none').total
    both = compare_arms(rounds, 'ours', 'none', threads=0.3).total
    assert both.value == pytest.approx(alone.value + 0.3)
    assert (both.low, both.high) == pytest.approx((alone.low + 0.3, alone.high + 0.3))


def test_rounds_without_the_arm_are_passed_over():
    rounds = make_rounds(lambda n: (0.0, 0.0), 20)
    without = [{'none': round_['none']} for round_ in rounds]
    mixed = [each for pair in zip(rounds, without) for each in pair]
    assert compare_arms(mixed, 'ours', 'none') == compare_arms(rounds, 'ours', 'none')


def test_a_mean_and_its_interval():
    effect = fold_effect([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert effect.value == 3.5
    # standard error sqrt(3.5 / 6); t(0.95, 5) = 2.015
    assert effect.half_width == pytest.approx(2.015 * (3.5 / 6) ** 0.5, rel=0.003)


def test_equivalence_asks_for_the_whole_interval():
    assert Effect(0.1, -0.3, 0.4).is_within(0.5)
    assert not Effect(0.1, -0.3, 0.51).is_within(0.5)
    assert not Effect(0.1, -0.51, 0.4).is_within(0.5)


def test_what_is_within_the_bound_counts_as_it_is():
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert robust_parts(values, clip=10.0) == pytest.approx(values)


def test_what_is_beyond_counts_no_more_than_the_bound():
    values = [-1.0, -0.5, 0.0, 0.5, 1.0]
    near, far = (
        statistics.fmean(robust_parts([*values * 20, extreme]))
        for extreme in (10.0, 1e6)
    )
    assert near == pytest.approx(far)
    assert 0.0 < far < 0.05


def test_the_fewer_are_within_the_bound_the_less_certain_it_is():
    # a median deviation of 0.5 is one of 0.741 in a normal; three in five are within
    parts = robust_parts([-1.0, -0.5, 0.0, 0.5, 1.0], clip=1.0)
    expected = [-0.741 / 0.6, -0.5 / 0.6, 0.0, 0.5 / 0.6, 0.741 / 0.6]
    assert parts == pytest.approx(expected, abs=0.001)


def test_a_shift_moves_the_estimate_by_itself():
    lots = random.Random(1)
    values = [noise(lots) for _ in range(500)]
    shifted = robust_parts([value + 7.0 for value in values])
    assert shifted == pytest.approx([part + 7.0 for part in robust_parts(values)])


def test_equal_differences_have_no_spread():
    assert robust_parts([2.0, 2.0, 2.0, 9.0]) == [2.0] * 4
