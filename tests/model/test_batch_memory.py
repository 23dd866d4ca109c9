from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmgpu_hooks.model.batches import (
    MOST_BATCH,
    compare_rules,
    find_largest_batch,
    find_oom_batch,
    fit_batch_memory,
    predict_peak,
)
from mmgpu_hooks.schema import MemoryFit, MemoryPoint, NoPrediction

MIB, GIB = 2**20, 2**30
STATIC = 480 * MIB


def points_of(*batches: int, fixed: int = 600 * MIB, each: int = 700 * MIB, **fields):
    return [MemoryPoint(b, fixed + b * each, **fields) for b in batches]


def fitted(points) -> MemoryFit:
    fit = fit_batch_memory(points)
    assert isinstance(fit, MemoryFit)
    return fit


def refused(points) -> str:
    found = fit_batch_memory(points)
    assert isinstance(found, NoPrediction)
    return found.reason


def test_two_batch_sizes_make_a_line_that_is_not_proportional():
    fit = fitted(points_of(1, 3))
    assert fit.fixed_bytes == pytest.approx(600 * MIB)
    assert fit.image_bytes == pytest.approx(700 * MIB)
    seen = predict_peak(fit, 32)
    assert seen.peak_bytes == pytest.approx(600 * MIB + 32 * 700 * MIB)
    assert seen.low_bytes < seen.peak_bytes < seen.high_bytes


def test_the_interval_widens_away_from_what_was_measured_and_narrows_with_more():
    def width(points, batch):
        seen = predict_peak(fitted(points), batch)
        return (seen.high_bytes - seen.low_bytes) / seen.peak_bytes

    near, far = width(points_of(4, 8), 8), width(points_of(4, 8), 64)
    assert 0.04 < near < far
    assert width(points_of(4, 8, 16, 32), 64) < far


def test_what_was_counted_is_told_apart_from_the_workspace():
    fit = fitted(points_of(2, 4, static_bytes=STATIC, gradient_bytes=160 * MIB))
    assert fit.workspace_bytes == pytest.approx(120 * MIB)
    # activations are most before gradients come: the line may begin that much lower
    lower = points_of(
        2, 4, fixed=400 * MIB, static_bytes=STATIC, gradient_bytes=160 * MIB
    )
    assert fitted(lower).workspace_bytes == pytest.approx(-80 * MIB)
    # what is counted after the step is there then, however small the batch
    small = points_of(
        2, 4, fixed=330 * MIB, each=80 * MIB, static_bytes=STATIC, gradient_bytes=STATIC
    )
    assert predict_peak(fitted(small), 1).peak_bytes == STATIC


def test_noise_cannot_make_the_line_begin_below_the_model():
    noisy = [MemoryPoint(2, 2000 * MIB, None, STATIC), MemoryPoint(4, 3700 * MIB)]
    fit = fitted(noisy)
    assert fit.fixed_bytes == STATIC
    assert 760 * MIB < fit.image_bytes < 805 * MIB


def test_growth_is_per_padded_pixel_where_they_are_known():
    # the run with more images had smaller ones in its largest batch
    pixels = {2: 2 * 1_800_000, 4: 4 * 1_000_000}
    points = [
        MemoryPoint(batch, 500 * MIB + 400 * size, size)
        for batch, size in pixels.items()
    ]
    fit = fitted(points)
    assert fit.growth_bytes == pytest.approx(400)
    assert fit.image_pixels == 1_800_000
    tail = predict_peak(fit, 8).peak_bytes
    assert tail == pytest.approx(500 * MIB + 400 * 8 * 1_800_000)
    assert predict_peak(fit, 8, 1_000_000).peak_bytes < tail
    # one point without: per image then
    assert fitted([*points, MemoryPoint(8, 8 * GIB)]).image_pixels is None


def test_where_memory_ends():
    fit = fitted(points_of(1, 2, 4, 8))
    room = 600 * MIB + 20 * 700 * MIB
    assert find_oom_batch(fit, room) == 21
    # what is recommended fits even when the peak is at its upper end
    most = find_largest_batch(fit, room)
    assert 15 < most < 20
    assert predict_peak(fit, most).high_bytes <= room
    assert predict_peak(fit, most + 1).high_bytes > room
    assert find_largest_batch(fit, 100 * MIB) == 0
    assert find_oom_batch(fit, 1e18) is None


def test_rules_are_asked_for_what_they_have_not_seen():
    rows = compare_rules(points_of(1, 3, 32))
    assert [row.batch_size for row in rows] == [1, 3, 32]
    assert [row.fit_error_pct for row in rows] == pytest.approx([0, 0, 0], abs=1e-3)
    assert rows[0].proportional_error_pct is None
    # 32 x 1300 MiB instead of 23000
    assert rows[2].proportional_error_pct == pytest.approx(80.9, abs=0.1)
    two = compare_rules(points_of(1, 3))
    assert [row.fit_bytes for row in two] == [None, None]
    assert compare_rules([]) == ()


@pytest.mark.parametrize(
    ('points', 'reason'),
    [
        ([], 'at least two batch sizes, and none was measured'),
        (points_of(4, 4, 4), 'and only 4 was measured: train a second run'),
        (points_of(2, 4, each=-50 * MIB), 'Memory does not grow with the batch size'),
        (points_of(2, 4, each=1 * MIB), '602 MiB with 2, 604 MiB with 4'),
        ([MemoryPoint(0, GIB), MemoryPoint(2, GIB)], 'batch size 0 is absurd'),
        ([MemoryPoint(2, 0), MemoryPoint(4, GIB)], 'peak of 0 bytes is absurd'),
        ([MemoryPoint(2, -5), MemoryPoint(4, GIB)], 'peak of -5 bytes is absurd'),
        ([MemoryPoint(2, 2**60), MemoryPoint(4, GIB)], 'is absurd'),
        (
            [MemoryPoint(2, GIB, 0, STATIC), MemoryPoint(4, 2 * GIB, 0, 2 * STATIC)],
            'The static memory is not the same: 480 MiB in one run, 960 MiB',
        ),
        (
            points_of(2, 4, fixed=0, each=100 * MIB, static_bytes=STATIC),
            'A peak is below the 480 MiB that the model',
        ),
        ([MemoryPoint(2, GIB, 9e6), MemoryPoint(4, 2 * GIB, 9e6)], 'does not grow'),
    ],
)
def test_points_that_make_no_line(points, reason):
    assert reason in refused(points)


@pytest.mark.parametrize('batch', [0, MOST_BATCH + 1])
def test_a_batch_size_out_of_range_is_a_mistake(batch):
    with pytest.raises(ValueError, match='batch_size: expected 1 to'):
        predict_peak(fitted(points_of(1, 2)), batch)


@pytest.mark.parametrize('batches', [(2, 4), (1, 3, 8), (1, 2, 4, 8, 16)])
def test_nine_in_ten_truths_are_inside(batches):
    draw = random.Random(7)
    inside = 0
    for _ in range(400):
        noisy = [
            MemoryPoint(p.batch_size, round(p.peak_bytes * draw.gauss(1, 0.02)))
            for p in points_of(*batches)
        ]
        truth = points_of(24)[0].peak_bytes * draw.gauss(1, 0.02)
        seen = predict_peak(fitted(noisy), 24)
        inside += seen.low_bytes <= truth <= seen.high_bytes
    assert inside >= 0.9 * 400


@given(
    fixed=st.integers(0, 8 * GIB),
    each=st.integers(64 * MIB, 4 * GIB),
    batches=st.lists(st.integers(1, 64), min_size=2, max_size=6, unique=True),
    room=st.integers(GIB, 80 * GIB),
)
def test_a_true_line_is_found_and_larger_batches_take_more(fixed, each, batches, room):
    points = points_of(*batches, fixed=fixed, each=each)
    fit = fit_batch_memory(points)
    if isinstance(fit, NoPrediction):  # they differ by less than peaks vary
        assert 'does not grow' in fit.reason
        return
    assert fit.growth_bytes == pytest.approx(each, rel=1e-6)
    assert fit.fixed_bytes == pytest.approx(fixed, abs=1e-6 * each + 1e-6 * fixed)
    seen = [predict_peak(fit, batch) for batch in range(1, 81)]
    for one, more in zip(seen, seen[1:]):
        assert one.low_bytes <= one.peak_bytes <= one.high_bytes
        assert one.peak_bytes <= more.peak_bytes
    fits = [batch for batch in range(1, 80) if seen[batch - 1].high_bytes <= room]
    assert min(find_largest_batch(fit, room), 79) == max(fits, default=0)
    assert find_largest_batch(fit, room) < (find_oom_batch(fit, room) or MOST_BATCH)
