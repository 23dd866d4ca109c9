from __future__ import annotations

import math
import random

import pytest

from mmgpu_hooks.model.stats import (
    SeriesMean,
    fold_difference,
    fold_mean,
    fold_ratio,
    fold_series,
)


def make_series(lots: random.Random, count: int, alike: float) -> list[float]:
    """Iteration times of 1 with 5 % noise, whose neighbours are so much alike."""
    values, state = [], lots.gauss(0, 1)
    for _ in range(count):
        values.append(1 + 0.05 * state)
        state = alike * state + math.sqrt(1 - alike**2) * lots.gauss(0, 1)
    return values


def test_a_mean_is_weighted_by_what_it_is_taken_over():
    mean = fold_series([1.0, 3.0] * 3, [30.0, 10.0] * 3)
    assert mean is not None
    assert (mean.value, mean.count) == (pytest.approx(1.5), 6)


def test_equal_values_are_known_for_certain():
    mean = fold_series([0.5] * 8, [1.0] * 8)
    assert mean == SeriesMean(0.5, 0.0, 8.0, 8)
    estimate = fold_mean(mean)
    assert (estimate.low, estimate.high) == (0.5, 0.5)
    assert fold_difference(mean, mean).value == 0.0
    ratio = fold_ratio(mean, mean)
    assert (ratio.low, ratio.value, ratio.high) == (1.0, 1.0, 1.0)


def test_too_few_values_tell_nothing():
    assert fold_series([1.0, 2.0, 1.0, 2.0, 1.0], [1.0] * 5) is None


def test_where_fewer_are_enough_they_count_as_two():
    mean = fold_series([1.0, 2.0, 3.0], [1.0] * 3, least=3)
    assert (mean.value, mean.independent, mean.count) == (2.0, 2.0, 3)
    assert mean.error == pytest.approx((2 / 3) ** 0.5)
    assert not mean.is_drift
    assert fold_series([1.0, 2.0, 1.0, 2.0, 1.0], [1.0] * 5, least=3).independent == 2
    assert fold_series([1.0, 2.0], [1.0] * 2, least=3) is None


def test_a_drift_counts_for_less_than_two_values():
    mean = fold_series([float(value) for value in range(12)], [1.0] * 12)
    assert mean.is_drift
    assert (mean.value, mean.degrees) == (pytest.approx(5.5), 1.0)
    assert mean.independent < 2
    assert fold_mean(mean).half_width > 12


def test_what_may_be_zero_has_no_ratio():
    noisy = fold_series([0.0, 0.1, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0], [1.0] * 8)
    steady = fold_series([0.1] * 8, [1.0] * 8)
    assert fold_ratio(noisy, steady) is None
    assert fold_ratio(steady, noisy) is None
    zero = fold_series([0.0] * 8, [1.0] * 8)
    assert fold_ratio(zero, steady) is None


@pytest.mark.parametrize('alike', [0.0, 0.5, 0.8, 0.9])
@pytest.mark.parametrize('count', [8, 20, 60])
def test_equal_runs_raise_no_alarm(count, alike):
    lots, alarms, rounds = random.Random(9), 0, 300
    for _ in range(rounds):
        before, after = (
            fold_series(make_series(lots, count, alike), [1.0] * count)
            for _ in range(2)
        )
        alarms += fold_ratio(before, after).low > 1
    assert alarms / rounds <= 0.05


@pytest.mark.parametrize('alike', [0.0, 0.5])
def test_the_interval_covers_what_was_planted(alike):
    lots, covered, alarms, rounds = random.Random(4), 0, 0, 300
    for _ in range(rounds):
        before = fold_series(make_series(lots, 60, alike), [1.0] * 60)
        slower = [1.1 * value for value in make_series(lots, 60, alike)]
        ratio = fold_ratio(before, fold_series(slower, [1.0] * 60))
        covered += ratio.low <= 1.1 <= ratio.high
        alarms += ratio.low > 1.0
    assert covered / rounds >= 0.93
    # 10 % are seen in 60 intervals of 5 % noise
    assert alarms / rounds >= 0.9
