from __future__ import annotations

import math

import pytest

from mmgpu_hooks.recommend.save_cures import (
    crowding,
    rescale_delay_s,
    times_less_often,
)

MEASURED = {0: 0.258, 2: 0.371, 4: 0.656, 8: 1.475}
"""A save of 250 MB beside so many busy workers on two cores, in seconds."""


@pytest.mark.parametrize(('busy', 'tolerance'), [(2, 0.06), (4, 0.02), (8, 0.22)])
def test_crowding_is_what_was_measured(busy, tolerance):
    predicted = MEASURED[0] * (1 + crowding(busy, 2.0))
    assert predicted == pytest.approx(MEASURED[busy], rel=tolerance)


@pytest.mark.parametrize(
    ('nice', 'expected'), [(0, 3.5), (10, 0.0), (19, 0.0), (5, 0.81)]
)
def test_polite_workers_crowd_less(nice, expected):
    assert crowding(8, 2.0, nice=nice) == pytest.approx(expected, abs=0.005)


def test_strangers_crowd_whatever_the_workers_do():
    assert crowding(8, 2.0, strangers=2.0, nice=19) == pytest.approx(0.56, abs=0.01)
    assert crowding(1, 0.0) == math.inf


def test_a_delay_is_scaled_by_its_crowding():
    assert rescale_delay_s(2.0, 4.0, 1.0) == 0.5
    assert rescale_delay_s(2.0, 0.0, 0.0) is None
    assert rescale_delay_s(2.0, math.inf, 0.0) is None


@pytest.mark.parametrize(
    ('saves_s', 'run_s', 'times'), [(12.0, 52.0, 6), (2.0, 42.0, 1), (5.0, 5.0, 1)]
)
def test_how_much_less_often_saves_must_come(saves_s, run_s, times):
    assert times_less_often(saves_s, run_s, 0.05) == times
