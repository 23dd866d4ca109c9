from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmgpu_hooks.model.batches import find_knee, fit_step_line
from mmgpu_hooks.schema import BatchLine, Cost, NoPrediction


def fitted(*steps: tuple[int, float], error_s: float = 0.0) -> BatchLine:
    line = fit_step_line([(b, Cost(s, error_s=error_s)) for b, s in steps])
    assert isinstance(line, BatchLine)
    return line


def test_two_batch_sizes_make_a_line():
    line = fitted((2, 0.05), (4, 0.08))
    assert (line.constant_s, line.image_s) == pytest.approx((0.02, 0.015))
    # each step is taken to be within 2 %
    assert line.image_error_s == pytest.approx(0.02 * (0.05**2 + 0.08**2) ** 0.5 / 2)


def test_a_badly_known_step_counts_less():
    points = [(1, Cost(0.1)), (2, Cost(0.2)), (4, Cost(0.9, error_s=1.0))]
    line = fit_step_line(points)
    assert line.image_s == pytest.approx(0.1, rel=0.02)


def test_neither_part_is_below_zero():
    # faster than proportional: the constant part would be negative
    steep = fitted((1, 0.1), (2, 0.25))
    assert steep.constant_s == 0.0
    assert 0.1 < steep.image_s < 0.125
    # a GPU that is not full: as long for four as for one
    flat = fitted((1, 0.101), (4, 0.1))
    assert flat.image_s == 0.0
    assert flat.constant_s == pytest.approx(0.1005, abs=1e-4)


@pytest.mark.parametrize(
    ('points', 'reason'),
    [
        ([], 'at least two batch sizes'),
        ([(4, Cost(0.1)), (4, Cost(0.2))], 'train a second run'),
        ([(2, Cost(0.2)), (4, Cost(0.1))], '0.2000 s with 2, 0.1000 s with 4'),
        ([(2, Cost(0.0)), (4, Cost(0.1))], 'A step of 0 s'),
        ([(2, Cost(-1.0)), (4, Cost(0.1))], 'A step of -1 s'),
        ([(2, Cost(float('nan'))), (4, Cost(0.1))], 'A step of nan s'),
        ([(0, Cost(0.1)), (4, Cost(0.1))], 'a batch size of 0 is absurd'),
    ],
)
def test_points_that_make_no_line(points, reason):
    found = fit_step_line(points)
    assert isinstance(found, NoPrediction)
    assert reason in found.reason


def test_the_knee_is_the_smallest_that_is_nearly_as_fast():
    assert find_knee({1: 10.0, 2: 18.0, 4: 29.2, 8: 30.0}) == 4
    assert find_knee({8: 30.0, 4: 20.0}) == 8
    # larger batches that are slower do not hide it
    assert find_knee({2: 30.0, 4: 12.0}) == 2
    assert find_knee({}) is None


@given(
    constant=st.floats(0, 1),
    image=st.floats(1e-3, 1),
    batches=st.lists(st.integers(1, 64), min_size=2, max_size=6, unique=True),
)
def test_a_true_line_is_found(constant, image, batches):
    line = fitted(*((b, constant + image * b) for b in batches))
    assert line.image_s == pytest.approx(image, rel=1e-6)
    assert line.constant_s == pytest.approx(constant, abs=1e-6)
