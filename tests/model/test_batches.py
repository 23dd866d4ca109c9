from __future__ import annotations

import random

import pytest

from mmgpu_hooks.model.batches import (
    MemoryFit,
    StepPoint,
    find_largest_batch,
    find_oom_batch,
    fit_batch_memory,
    fit_step_line,
    predict_peak,
)
from mmgpu_hooks.model.workload import BatchLine, Cost
from mmgpu_hooks.schema.errors import NoPredictionError
from mmgpu_hooks.schema.memory import MeasuredPeak

MIB, GIB = 2**20, 2**30


def points_of(*batches: int, fixed: int = 600 * MIB, each: int = 700 * MIB):
    return [MeasuredPeak(batch, fixed + batch * each) for batch in batches]


def fitted(points) -> MemoryFit:
    return fit_batch_memory(points)


@pytest.mark.parametrize('sizes', [(2, 4), (2, 4, 8)])
def test_nine_in_ten_truths_are_inside(sizes):
    draw = random.Random(7)
    inside = 0
    for _ in range(200):
        noisy = [
            MeasuredPeak(
                point.batch_size, round(point.peak_bytes * draw.gauss(1, 0.02))
            )
            for point in points_of(*sizes)
        ]
        truth = points_of(24)[0].peak_bytes * draw.gauss(1, 0.02)
        seen = predict_peak(fitted(noisy), 24)
        inside += seen.low_bytes <= truth <= seen.high_bytes
    assert 0.9 * 200 <= inside < 200


def test_points_that_scatter_widen_the_interval():
    true, odd = points_of(2, 4, 8), points_of(2, 4, 8)
    odd[1] = MeasuredPeak(4, round(1.2 * odd[1].peak_bytes))
    widths = []
    for points in (true, odd):
        seen = predict_peak(fitted(points), 8)
        widths.append(seen.high_bytes - seen.low_bytes)
    assert widths[1] > 2 * widths[0]


@pytest.mark.parametrize('free', [1, 5, 11, 24, 80])
def test_a_true_line_is_found_and_says_where_memory_ends(free):
    fit = fitted(points_of(2, 5))
    assert fit.fixed_bytes == pytest.approx(600 * MIB)
    assert fit.image_bytes == pytest.approx(700 * MIB)
    seen = [predict_peak(fit, batch) for batch in range(1, 200)]
    for smaller, larger in zip(seen, seen[1:]):
        assert smaller.low_bytes <= smaller.peak_bytes <= smaller.high_bytes
        assert smaller.peak_bytes <= larger.peak_bytes
    fits = [n for n, peak in enumerate(seen, 1) if peak.high_bytes <= free * GIB]
    assert find_largest_batch(fit, free * GIB) == max(fits, default=0)
    full = next(n for n, peak in enumerate(seen, 1) if peak.peak_bytes > free * GIB)
    assert find_oom_batch(fit, free * GIB) == full
    assert find_oom_batch(fit, 1e18) is None


def line_of(*steps: tuple[int, float]) -> BatchLine:
    return fit_step_line([StepPoint(batch, Cost(step_s)) for batch, step_s in steps])


def test_steps_of_two_batch_sizes_make_a_line():
    line = line_of((2, 0.05), (4, 0.08))
    assert (line.constant_s, line.image_s) == pytest.approx((0.02, 0.015))
    # each step is taken to be within 2 %
    assert line.image_error_s == pytest.approx(0.02 * (0.05**2 + 0.08**2) ** 0.5 / 2)
    unsure = [
        StepPoint(1, Cost(0.1)),
        StepPoint(2, Cost(0.2)),
        StepPoint(4, Cost(0.9, error_s=1.0)),
    ]
    doubtful = fit_step_line(unsure)
    assert isinstance(doubtful, BatchLine)
    assert doubtful.image_s == pytest.approx(0.1, rel=0.02)
    # noise alone: as long with any batch
    flat = line_of((1, 0.101), (4, 0.1))
    assert (flat.constant_s, flat.image_s) == (pytest.approx(0.1005, abs=1e-4), 0.0)


@pytest.mark.parametrize(
    ('fit', 'points', 'reason'),
    [
        (
            fit_step_line,
            [StepPoint(4, Cost(0.1)), StepPoint(4, Cost(0.2))],
            'train a second run',
        ),
        (
            fit_step_line,
            [StepPoint(2, Cost(0.2)), StepPoint(4, Cost(0.1))],
            '0.2000 s with 2, 0.1000 s with 4',
        ),
        (fit_batch_memory, points_of(4, 4, 4), 'at least two batch sizes'),
        (fit_batch_memory, points_of(2, 4, each=-50 * MIB), 'does not grow'),
        (fit_batch_memory, points_of(2, 4, each=MIB), '602 MiB with 2, 604 MiB with 4'),
    ],
)
def test_points_that_make_no_line_are_refused_with_the_reason(fit, points, reason):
    with pytest.raises(NoPredictionError, match=reason):
        fit(points)
