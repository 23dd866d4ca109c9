from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmgpu_hooks.model.batches import (
    MOST_BATCH,
    MemoryFit,
    MemoryPoint,
    find_largest_batch,
    find_oom_batch,
    fit_batch_memory,
    fit_step_line,
    predict_peak,
)
from mmgpu_hooks.model.workload import BatchLine, Cost
from mmgpu_hooks.schema import NoPrediction

MIB, GIB = 2**20, 2**30
STATIC = 480 * MIB


def points_of(*batches: int, fixed: int = 600 * MIB, each: int = 700 * MIB, **fields):
    return [MemoryPoint(b, fixed + b * each, **fields) for b in batches]


def fitted(points) -> MemoryFit:
    fit = fit_batch_memory(points)
    assert isinstance(fit, MemoryFit)
    return fit


def test_the_line_begins_no_lower_than_what_was_counted():
    counted = {'static_bytes': STATIC, 'gradient_bytes': 160 * MIB}
    assert fitted(points_of(2, 4, **counted)).workspace_bytes == pytest.approx(
        120 * MIB
    )
    # activations are most before gradients come: the line may begin that much lower
    lower = fitted(points_of(2, 4, fixed=400 * MIB, **counted))
    assert lower.workspace_bytes == pytest.approx(-80 * MIB)
    # what is counted after the step is there then, however small the batch
    small = {'static_bytes': STATIC, 'gradient_bytes': STATIC}
    fit = fitted(points_of(2, 4, fixed=330 * MIB, each=80 * MIB, **small))
    assert predict_peak(fit, 1).peak_bytes == STATIC
    noisy = [MemoryPoint(2, 2000 * MIB, None, STATIC), MemoryPoint(4, 3700 * MIB)]
    assert fitted(noisy).fixed_bytes == STATIC


def test_growth_is_per_padded_pixel_where_they_are_known():
    # the run with more images had smaller ones in its largest batch
    pixels = {2: 2 * 1_800_000, 4: 4 * 1_000_000}
    points = [MemoryPoint(b, 500 * MIB + 400 * n, n) for b, n in pixels.items()]
    fit = fitted(points)
    assert fit.image_pixels == 1_800_000
    tail = predict_peak(fit, 8).peak_bytes
    assert tail == pytest.approx(500 * MIB + 400 * 8 * 1_800_000)
    # one point without: per image then
    assert fitted([*points, MemoryPoint(8, 8 * GIB)]).image_pixels is None


@pytest.mark.parametrize(
    ('points', 'reason'),
    [
        ([], 'none was measured'),
        (points_of(4, 4, 4), 'only 4 was measured'),
        (points_of(2, 4, each=-50 * MIB), 'does not grow'),
        (points_of(2, 4, each=1 * MIB), '602 MiB with 2, 604 MiB with 4'),
        ([MemoryPoint(0, GIB), MemoryPoint(2, GIB)], 'absurd'),
        ([MemoryPoint(2, -5), MemoryPoint(4, GIB)], 'absurd'),
        ([MemoryPoint(2, 2**60), MemoryPoint(4, GIB)], 'absurd'),
        (
            [MemoryPoint(2, GIB, 0, STATIC), MemoryPoint(4, 2 * GIB, 0, 2 * STATIC)],
            '480 MiB in one run, 960 MiB',
        ),
        (
            points_of(2, 4, fixed=0, each=100 * MIB, static_bytes=STATIC),
            'below the 480 MiB',
        ),
        ([MemoryPoint(2, GIB, 9e6), MemoryPoint(4, 2 * GIB, 9e6)], 'does not grow'),
    ],
)
def test_points_that_make_no_line(points, reason):
    found = fit_batch_memory(points)
    assert isinstance(found, NoPrediction) and reason in found.reason


def test_nine_in_ten_truths_are_inside():
    draw = random.Random(7)
    inside = 0
    for _ in range(200):
        noisy = [
            MemoryPoint(p.batch_size, round(p.peak_bytes * draw.gauss(1, 0.02)))
            for p in points_of(2, 4)
        ]
        truth = points_of(24)[0].peak_bytes * draw.gauss(1, 0.02)
        seen = predict_peak(fitted(noisy), 24)
        inside += seen.low_bytes <= truth <= seen.high_bytes
    assert inside >= 0.9 * 200


@settings(max_examples=40, deadline=None)
@given(
    fixed=st.integers(0, 8 * GIB),
    each=st.integers(64 * MIB, 4 * GIB),
    batches=st.lists(st.integers(1, 64), min_size=2, max_size=6, unique=True),
    free=st.integers(GIB, 80 * GIB),
)
def test_a_true_line_is_found_and_says_where_memory_ends(fixed, each, batches, free):
    fit = fit_batch_memory(points_of(*batches, fixed=fixed, each=each))
    if isinstance(fit, NoPrediction):  # they differ by less than peaks vary
        assert 'does not grow' in fit.reason
        return
    assert fit.image_bytes == pytest.approx(each, rel=1e-6)
    seen = [predict_peak(fit, batch) for batch in range(1, 81)]
    for one, more in zip(seen, seen[1:]):
        assert one.low_bytes <= one.peak_bytes <= one.high_bytes
        assert one.peak_bytes <= more.peak_bytes
    fits = [batch for batch in range(1, 80) if seen[batch - 1].high_bytes <= free]
    assert min(find_largest_batch(fit, free), 79) == max(fits, default=0)
    assert find_largest_batch(fit, free) < (find_oom_batch(fit, free) or MOST_BATCH)
    assert find_oom_batch(fit, 1e18) is None


def line_of(*steps: tuple[int, float]) -> BatchLine:
    line = fit_step_line([(b, Cost(s)) for b, s in steps])
    assert isinstance(line, BatchLine)
    return line


def test_steps_of_two_batch_sizes_make_a_line():
    line = line_of((2, 0.05), (4, 0.08))
    assert (line.constant_s, line.image_s) == pytest.approx((0.02, 0.015))
    # each step is taken to be within 2 %
    assert line.image_error_s == pytest.approx(0.02 * (0.05**2 + 0.08**2) ** 0.5 / 2)
    unsure = [(1, Cost(0.1)), (2, Cost(0.2)), (4, Cost(0.9, error_s=1.0))]
    assert fit_step_line(unsure).image_s == pytest.approx(0.1, rel=0.02)
    # neither part is below zero
    steep = line_of((1, 0.1), (2, 0.25))
    assert steep.constant_s == 0.0
    assert 0.1 < steep.image_s < 0.125
    flat = line_of((1, 0.101), (4, 0.1))
    assert (flat.constant_s, flat.image_s) == (pytest.approx(0.1005, abs=1e-4), 0.0)


@pytest.mark.parametrize(
    ('points', 'reason'),
    [
        ([], 'at least two batch sizes'),
        ([(4, Cost(0.1)), (4, Cost(0.2))], 'train a second run'),
        ([(2, Cost(0.2)), (4, Cost(0.1))], '0.2000 s with 2, 0.1000 s with 4'),
        ([(2, Cost(-1.0)), (4, Cost(0.1))], 'A step of -1 s'),
        ([(2, Cost(float('nan'))), (4, Cost(0.1))], 'A step of nan s'),
        ([(0, Cost(0.1)), (4, Cost(0.1))], 'a batch size of 0 is absurd'),
    ],
)
def test_steps_that_make_no_line(points, reason):
    found = fit_step_line(points)
    assert isinstance(found, NoPrediction) and reason in found.reason
