"""Growth of memory: planted rates are found, healthy series raise no alarm."""

from __future__ import annotations

import pytest

from benchmarks.memory_causes import judge_series
from mmgpu_hooks.model.stats import READINGS, count_missing_readings, find_growth

MIB = 2**20


def test_simulated_series_meet_the_targets_of_the_benchmark():
    assert [one.verdict for one in judge_series()] == 3 * ['met']


@pytest.mark.parametrize(
    'sizes',
    [
        [100.0 * MIB] * 200,
        # a stage of training begins
        [1000.0 * MIB] * 150 + [1400.0 * MIB] * 50,
        # full, from its middle on
        [float(min(n, 100)) * MIB for n in range(200)],
        # less than is worth a word
        [1000 * MIB + n * 1000.0 for n in range(200)],
        [-float(n) * MIB for n in range(200)],
    ],
)
def test_what_is_no_steady_growth(sizes):
    assert find_growth(range(len(sizes)), sizes) is None


def test_short_series_say_how_many_readings_they_lack():
    assert count_missing_readings([]) == READINGS
    assert find_growth(range(10), [float(n) * 2**30 for n in range(10)]) is None
    assert 0 < count_missing_readings(range(10)) < READINGS
    assert count_missing_readings(range(100)) == 0
