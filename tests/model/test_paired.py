from __future__ import annotations

import math

import pytest

from mmgpu_hooks.model.stats import alternate, fold_gain


def test_the_gain_is_that_of_the_pairs():
    gain = fold_gain([0.2, 0.4, 0.1], [0.1, 0.2, 0.05])
    assert gain is not None
    assert (gain.value, gain.count) == (pytest.approx(1.0), 3)
    # each pair says the same, whatever the machine was like then
    assert gain.half_width == pytest.approx(0.0, abs=1e-12)


def test_the_interval_is_one_of_student_on_the_logarithms():
    logs = [0.1, 0.2, 0.3]
    gain = fold_gain([math.exp(log) for log in logs], [1.0, 1.0, 1.0])
    half = 4.303 * 0.1 / math.sqrt(3)
    assert gain.low == pytest.approx(math.expm1(0.2 - half), abs=1e-4)
    assert gain.high == pytest.approx(math.expm1(0.2 + half), abs=1e-4)


def test_a_block_without_a_partner_is_left_out():
    assert fold_gain([0.2, 0.2, 9.0], [0.1, 0.1]) == fold_gain([0.2] * 2, [0.1] * 2)
    assert fold_gain([0.2, 0.2], [0.1]) is None


def test_turns_cancel_a_drift():
    turns = alternate(4)
    assert [int(is_second) for is_second in turns] == [0, 1, 1, 0, 0, 1, 1, 0]
    # over each two pairs both were there at the same time, on average
    first = [index for index, is_second in enumerate(turns[:4]) if not is_second]
    assert sum(first) == 3
