from __future__ import annotations

import math
import random

import pytest

from benchmarks.memory_causes import judge_series
from mmgpu_hooks.model.stats import (
    READINGS,
    count_missing_readings,
    estimate_difference,
    estimate_mean,
    find_growth,
    find_last_change,
    paired_gain,
    rank_sum_chance,
    summarize_series,
)


def test_the_gain_of_pairs_is_studentised_on_the_logarithms():
    same = paired_gain([0.2, 0.4, 0.1, 9.0], [0.1, 0.2, 0.05])
    assert (same.value, same.count) == (pytest.approx(1.0), 3)
    assert same.half_width == pytest.approx(0.0, abs=1e-12)
    gain = paired_gain([math.exp(log) for log in (0.1, 0.2, 0.3)], [1.0, 1.0, 1.0])
    half = 4.303 * 0.1 / math.sqrt(3)
    assert gain.low == pytest.approx(math.expm1(0.2 - half), abs=1e-4)
    assert gain.high == pytest.approx(math.expm1(0.2 + half), abs=1e-4)
    assert paired_gain([0.2, 0.2], [0.1]) is None


@pytest.mark.parametrize(
    ('low', 'high', 'chance'),
    [
        ([1, 2, 3], [4, 5, 6], 1 / 20),
        ([1, 2, 4], [3, 5, 6], 2 / 20),
        ([4, 5, 6], [1, 2, 3], 1.0),
        ([1] * 4, [1] * 4, 39 / 70),  # ties: 8 of 16 pairs
        ([], [1, 2], 1.0),
        ([1, 2], [], 1.0),
    ],
)
def test_the_chance_of_ranks_is_exact(low, high, chance):
    assert rank_sum_chance(low, high) == pytest.approx(chance)


NOISE = [0.01, -0.02, 0.015, -0.005, 0.0, 0.02]


@pytest.mark.parametrize(
    ('values', 'expected'),
    [
        ([], None),
        ([1 + e for e in NOISE], None),
        # slow, then fast: YOLOX closes Mosaic
        ([1 + e for e in NOISE] + [0.4 + e for e in NOISE], 6),
        ([1.0] * 6 + [2.0] * 6 + [3.0] * 6, 12),
        # a change that did not last, and one too small to matter
        ([1.0] * 8 + [5.0] + [1.0] * 8, None),
        ([1.0] * 8 + [1.05] * 8, None),
        # scatter as large as the step
        ([1.0, 3.0] * 5 + [2.0, 4.0] * 5, None),
    ],
)
def test_the_last_lasting_change_of_level_is_found(values, expected):
    assert find_last_change(values) == expected


def test_a_series_is_weighted_and_its_interval_grows_with_its_drift():
    weighted = summarize_series([1.0, 3.0] * 3, [30.0, 10.0] * 3)
    assert (weighted.value, weighted.count) == (pytest.approx(1.5), 6)
    equal = summarize_series([0.5] * 8, [1.0] * 8)
    assert (equal.value, equal.count) == (0.5, 8)
    assert estimate_mean(equal).half_width == 0.0
    assert estimate_difference(equal, equal).value == 0.0
    assert summarize_series([1.0, 2.0, 1.0, 2.0, 1.0], [1.0] * 5) is None
    assert summarize_series([1.0] * 8, [0.0] * 8) is None
    # they count as two: 12.706 is Student's t of one degree of freedom
    few = summarize_series([1.0, 2.0, 3.0], [1.0] * 3, least=3)
    half = 12.706 * math.sqrt(2 / 3)
    assert estimate_mean(few).half_width == pytest.approx(half, rel=1e-4)
    # a drift tells its mean worse than the same values in any order, and an interval
    # that ends within what was seen would say that it does not go on
    rising = [float(value) for value in range(12)]
    shuffled = random.Random(1).sample(rising, 12)
    drift, noise = (
        estimate_mean(summarize_series(values, [1.0] * 12))
        for values in (rising, shuffled)
    )
    assert drift.half_width > max(5.5, 1.5 * noise.half_width)


def test_for_independent_values_the_interval_is_close_to_students():
    # 400 values alternate around a mean: no drift fits them, and Student's t is left
    values = [1.0, 2.0, 2.0, 1.0] * 100
    mean = estimate_mean(summarize_series(values, [1.0] * 400))
    plain = 1.966 * 0.5 / math.sqrt(399)
    assert plain < mean.half_width < 1.1 * plain


@pytest.mark.parametrize('scale', [1e-150, 1e-9, 1.0, 1e150])
def test_an_interval_is_in_the_units_of_the_series(scale):
    values = [1.0, 3.0, 2.0, 2.5, 1.5, 2.0, 1.0, 3.0]
    weights = [5.0, 10.0] * 4
    plain = estimate_mean(summarize_series(values, weights))
    scaled = [value * scale for value in values]
    mean = estimate_mean(summarize_series(scaled, weights))
    assert mean.half_width == pytest.approx(scale * plain.half_width, rel=1e-6)


def test_unequal_weights_count_as_fewer_values():
    lots = random.Random(4)
    values = [lots.gauss(0, 1) for _ in range(60)]
    equal, unequal = (
        estimate_mean(summarize_series(values, weights)).half_width
        for weights in ([1.0] * 60, [1.0] * 30 + [9.0] * 30)
    )
    # as independent values: (30 + 9 * 30)**2 / (30 + 81 * 30) = 36.6 of 60
    assert unequal / equal == pytest.approx(math.sqrt(60 / 36.6), rel=0.05)


def make_series(lots: random.Random, count: int, alike: float) -> list[float]:
    """Returns autocorrelated iteration times of about 1 s with 5 % noise."""
    values, state = [], lots.gauss(0, 1)
    for _ in range(count):
        values.append(1 + 0.05 * state)
        state = alike * state + math.sqrt(1 - alike**2) * lots.gauss(0, 1)
    return values


@pytest.mark.parametrize(('alike', 'count'), [(0.0, 8), (0.5, 8), (0.9, 60), (0.0, 60)])
def test_equal_runs_raise_no_alarm_and_a_tenth_is_found(alike, count):
    lots, rounds = random.Random(9), 200
    alarms = covered = 0
    for _ in range(rounds):
        before, after = (make_series(lots, count, alike) for _ in range(2))
        slower = [1.1 * value for value in after]
        first, same, tenth = (
            summarize_series(values, [1.0] * count)
            for values in (before, after, slower)
        )
        alarms += estimate_difference(first, same).low > 0
        change = estimate_difference(first, tenth)
        covered += change.low <= 0.1 <= change.high
    assert alarms / rounds <= 0.05
    assert covered / rounds >= 0.9


# Growth of memory: planted rates are found, healthy series raise no alarm.

MIB = 2**20


def test_simulated_series_meet_the_targets_of_the_benchmark():
    assert [figure.verdict for figure in judge_series()] == 3 * ['met']


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
    ids=['level', 'one step', 'full', 'slow', 'falling'],
)
def test_jumps_and_full_memory_are_no_steady_growth(sizes):
    assert find_growth(range(len(sizes)), sizes) is None


def test_short_series_say_how_many_readings_they_lack():
    assert count_missing_readings([]) == READINGS
    assert find_growth(range(10), [float(n) * 2**30 for n in range(10)]) is None
    assert 0 < count_missing_readings(range(10)) < READINGS
    assert count_missing_readings(range(100)) == 0
