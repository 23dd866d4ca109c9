from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence

import pytest

from fakes.runs import make_interval
from mmgpu_hooks.evidence import pooled_percentile
from mmgpu_hooks.evidence.pooled_percentile import (
    Quantiles,
    pool_p95,
    pool_percentile,
)
from mmgpu_hooks.evidence.tabulation import tabulate
from mmgpu_hooks.telemetry.durations import fold_durations

DRAW = random.Random(3)


def keep(parts: Sequence[Sequence[float]]) -> list[Quantiles]:
    """What the intervals with these durations keep of them."""
    folded = map(fold_durations, parts)
    return [Quantiles(f.count, f.mean_s, f.p50_s, f.p95_s, f.max_s) for f in folded]


def true_percentile(parts: Sequence[Sequence[float]], fraction: float) -> float:
    values = sorted(value for part in parts for value in part)
    return values[round(fraction * (len(values) - 1))]


def skewed(_: int) -> list[float]:
    return [DRAW.lognormvariate(-4.0, 1.0) for _ in range(50)]


def drifting(number: int) -> list[float]:
    return [0.1 + 0.002 * number + DRAW.expovariate(50.0) for _ in range(50)]


def few_slow(number: int) -> list[float]:
    """One interval in twelve, with more than 5 % of all iterations, is slow."""
    mean_s = 1.0 if number % 12 == 5 else 0.1
    return [DRAW.gauss(mean_s, mean_s / 20) for _ in range(50)]


def uneven(number: int) -> list[float]:
    """Short slow intervals between long fast ones: most intervals, few iterations."""
    count, mean_s = (5, 2.0) if number % 3 else (400, 0.1)
    return [DRAW.gauss(mean_s, 0.01) for _ in range(count)]


def tiny(_: int) -> list[float]:
    return [DRAW.expovariate(1.0) for _ in range(4)]


def stalls(_: int) -> list[float]:
    """One wait in 50 is long, all the others are none."""
    return [5.0, *[DRAW.uniform(0.001, 0.002) for _ in range(49)]]


@pytest.mark.parametrize(
    'draw', [skewed, drifting, few_slow, uneven, tiny, stalls], ids=lambda f: f.__name__
)
def test_it_is_that_of_all_values(draw: Callable[[int], list[float]]):
    parts = [draw(number) for number in range(120)]
    # within what one value in seventy more or fewer lies below, and the 3 % of its size
    # by which the intervals' own percentiles swing
    least = true_percentile(parts, 0.935)
    most = true_percentile(parts, 0.965)
    found = pool_percentile(keep(parts), 0.95)
    assert found is not None
    assert 0.97 * least <= found <= 1.03 * most


@pytest.mark.parametrize('draw', [few_slow, uneven], ids=lambda f: f.__name__)
def test_a_median_of_percentiles_would_not_be(draw: Callable[[int], list[float]]):
    parts = [draw(number) for number in range(120)]
    true_s = true_percentile(parts, 0.95)
    median_s = statistics.median(part.p95_s for part in keep(parts))
    assert not 0.5 * true_s < median_s < 2 * true_s
    assert pool_percentile(keep(parts), 0.95) == pytest.approx(true_s, rel=0.05)


def test_where_all_are_alike_it_is_that():
    assert pool_percentile([Quantiles(20, 0.3, 0.3, 0.3, 0.3)] * 9, 0.95) == 0.3


def test_of_one_value_it_is_that():
    assert pool_percentile([Quantiles(1, 0.3, 0.3, 0.3, 0.3)], 0.95) == 0.3


@pytest.mark.parametrize('parts', [[], [Quantiles(0, 0.0, 0.0, 0.0, 0.0)]])
def test_of_nothing_there_is_none(parts: list[Quantiles]):
    assert pool_percentile(parts, 0.95) is None


def test_edited_figures_in_any_order_are_no_harm():
    parts = [Quantiles(20, 1e300, 3.0, 1.0, 2.0), Quantiles(20, 0.0, 0.0, 1e300, 1e300)]
    found = pool_percentile(parts, 0.95)
    assert found is not None
    assert 3.0 <= found <= 1e300


def test_of_a_long_run_some_intervals_that_are_drawn_from_all_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
):
    # each fourth interval, such as the first of an epoch, is slow
    waits = [fold_durations(drifting(600 * (i % 4 == 0))) for i in range(400)]
    table = tabulate([make_interval(i, data_wait=w) for i, w in enumerate(waits)])
    whole = pool_p95(table, 'data_wait', count='iterations')
    monkeypatch.setattr(pooled_percentile, 'MOST_INTERVALS', 100)
    assert pool_p95(table, 'data_wait', count='iterations') == pytest.approx(
        whole, rel=0.01
    )
