from __future__ import annotations

import random
import statistics

import pytest

from benchmarks.overhead_figures import (
    Ratio,
    fit_growth,
    join,
    quantile,
    split_ends,
)
from mmgpu_hooks.model.stats import student_t


def test_iterations_that_end_an_interval_are_kept_apart():
    # number 1 is the first: numbers 3, 7 and 11 end intervals of 4
    costs_s = [float(number) for number in range(1, 13)]
    spent = split_ends(costs_s, interval=4, first=1)
    assert spent.firsts == [3.0]
    assert spent.ends == [7.0, 11.0]
    assert spent.ordinary == [1.0, 2.0, 4.0, 5.0, 6.0, 8.0, 9.0, 10.0, 12.0]


def test_runs_are_joined():
    runs = [split_ends([1.0, 2.0, 3.0, 4.0], 2, 0) for _ in range(2)]
    whole = join(runs)
    assert whole.ordinary == [1.0, 3.0] * 2
    assert (whole.firsts, whole.ends) == ([2.0, 2.0], [4.0, 4.0])


@pytest.mark.parametrize(
    ('share', 'expected'), [(0.0, 1.0), (0.5, 2.0), (0.95, 4.0), (1.0, 4.0)]
)
def test_a_quantile_is_one_of_the_values(share: float, expected: float):
    assert quantile([4.0, 1.0, 3.0, 2.0], share) == expected


@pytest.mark.parametrize(
    ('share', 'degrees', 'expected'),
    # from the tables
    [(0.95, 5, 2.015), (0.95, 15, 1.7531), (0.975, 19, 2.0930), (0.975, 100, 1.9840)],
)
def test_students_t(share: float, degrees: int, expected: float):
    assert student_t(share, degrees) == pytest.approx(expected, rel=0.003)


def test_an_interval_too_wide_to_tell_anything():
    assert Ratio(1.0, 0.99, 1.01).is_wide(0.005)
    # far from 1, but known well
    assert not Ratio(1.05, 1.047, 1.053).is_wide(0.005)


def test_growth_is_that_of_the_line_from_tenth_to_tenth():
    # 10 at 0.05 of the run, 12 at 0.95
    exact = [10.0 + 2.0 * ((part + 0.5) / 20 - 0.05) / 0.9 for part in range(20)]
    found = fit_growth(exact)
    assert (found.value, found.low, found.high) == pytest.approx((1.2, 1.2, 1.2))
    holes = [None if part % 3 == 1 else value for part, value in enumerate(exact)]
    assert fit_growth(holes).value == pytest.approx(1.2)


def test_growth_is_as_certain_as_the_parts_are_near_the_line():
    # by the formula: t(0.975, 18) = 2.101 times the error of the slope over 0.9
    noisy = [1.0 + 0.03 * (-1) ** part for part in range(20)]
    found = fit_growth(noisy)
    residual = (20 * 0.03**2 / 18) ** 0.5
    half = 2.101 * 0.9 * residual / (665 / 400) ** 0.5
    assert found.value == pytest.approx(1.0, abs=0.01)
    assert found.high / found.value - 1 == pytest.approx(half, rel=0.05)
    assert found.low < 1.0 < found.high


def test_the_interval_of_growth_holds_the_truth_as_often_as_it_says():
    lots = random.Random(3)
    held = [
        found.low <= 1.2 <= found.high
        for _ in range(400)
        for found in [
            fit_growth(
                [
                    1.0 + 0.2 * ((part + 0.5) / 20 - 0.05) / 0.9 + lots.gauss(0, 0.03)
                    for part in range(20)
                ]
            )
        ]
    ]
    assert 0.92 <= statistics.fmean(held) <= 0.98
