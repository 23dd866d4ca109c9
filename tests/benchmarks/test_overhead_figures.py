from __future__ import annotations

import pytest

from benchmarks.overhead_figures import (
    Ratio,
    compare_means,
    join,
    quantile,
    split_ends,
    student_t,
)


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


def test_equal_means_and_grown_ones():
    before = [10.0, 10.2, 9.8, 10.1, 9.9] * 4
    same = compare_means(before, before)
    assert same.value == 1.0
    assert same.low < 1.0 < same.high
    grown = compare_means(before, [2 * value for value in before])
    assert grown.value == pytest.approx(2.0)
    assert 1.9 < grown.low < 2.0 < grown.high < 2.1
