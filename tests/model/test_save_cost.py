from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmgpu_hooks.model.save_cost import (
    SaveTimes,
    certain_strangers_s,
    estimate_by_others_s,
    estimate_by_parts_s,
    net_delay_s,
    split_run_delay,
    won_back_s,
)
from mmgpu_hooks.model.save_cures import (
    crowding,
    rescale_delay_s,
    times_less_often,
)

MEASURED = {0: 0.258, 2: 0.371, 4: 0.656, 8: 1.475}
"""A save of 250 MB beside so many busy workers on two cores, in seconds."""

seconds = st.floats(0.0, 1e6)
unknown = st.none() | seconds


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


@pytest.mark.parametrize(
    ('times', 'expected'),
    [
        (SaveTimes(2.0, 0.4, 1.6, 0.0), 0.4),
        (SaveTimes(2.0, 0.4, 0.0, 1.6), 0.6),
        (SaveTimes(0.5, 0.4, 0.0, 0.1), 0.5),
        (SaveTimes(0.0, 0.0, 0.0, 0.0), 0.0),
        # the parts were read a moment apart from the whole
        (SaveTimes(1.0, 0.1, 1.2, 0.0), 0.0),
    ],
)
def test_a_save_without_its_waits(times, expected):
    assert estimate_by_parts_s(times) == pytest.approx(expected)


def test_others_count_when_their_size_is_like_it():
    def of(size, wall_s):
        return SaveTimes(wall_s, wall_s, 0.0, 0.0, size)

    calm = [of(100, 1.0), of(110, 1.1), of(90, 0.9), of(10, 0.1), of(None, 9.0)]
    assert estimate_by_others_s(100, calm) == (pytest.approx(1.0), 3)
    assert estimate_by_others_s(10, calm) is None
    assert estimate_by_others_s(None, calm[-1:] * 3) == (9.0, 3)


@given(seconds, unknown, unknown, st.none() | st.floats(0.1, 512))
def test_shares_are_never_negative_and_add_up(delay_s, workers, strangers, cores):
    times = SaveTimes(delay_s + 0.1, 0.1, delay_s, 0.0)
    parts = split_run_delay(
        times, workers_cpu_s=workers, strangers_cpu_s=strangers, cores=cores
    )
    if parts is not None:
        assert min(parts) >= 0.0
        assert sum(parts) == pytest.approx(delay_s)


@given(unknown, seconds, st.none() | st.integers(1, 512), st.none() | st.floats(0, 512))
def test_certain_strangers_are_at_most_all(cpu_s, wall_s, logical, cores):
    certain = certain_strangers_s(cpu_s, wall_s, logical, cores)
    assert certain is None or 0.0 <= certain <= (cpu_s or 0.0)


@given(seconds, unknown, seconds, st.integers(0, 10**6), st.none() | st.integers(0, 64))
def test_the_net_delay_is_from_nothing_to_the_gross(gross, usual, waits, count, ahead):
    won_s = won_back_s(
        usual_wait_s=usual, waits_s=waits, iterations=count, most_ahead=ahead
    )
    net_s = net_delay_s(gross, won_s)
    # after no iterations nothing can have been won back, whatever is usual
    assert (net_s is None) is (usual is None and count > 0)
    assert net_s is None or 0.0 <= net_s <= gross
    if won_s is not None and ahead is not None:
        assert won_s <= (usual or 0.0) * ahead
