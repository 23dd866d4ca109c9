from __future__ import annotations

import pytest

from mmgpu_hooks.model.stats import find_last_change

NOISE = [0.01, -0.02, 0.015, -0.005, 0.0, 0.02]


@pytest.mark.parametrize(
    ('values', 'expected'),
    [
        ([], None),
        ([1.0, 2.0], None),
        ([1.0] * 20, None),
        ([1 + e for e in NOISE], None),
        # slow, then fast: YOLOX closes Mosaic
        ([1 + e for e in NOISE] + [0.4 + e for e in NOISE], 6),
        # the last of two changes
        ([1.0] * 6 + [2.0] * 6 + [3.0] * 6, 12),
        # a change that did not last, and one too small to matter
        ([1.0] * 8 + [5.0] + [1.0] * 8, None),
        ([1.0] * 8 + [1.05] * 8, None),
        # scatter as large as the step
        ([1.0, 3.0] * 5 + [2.0, 4.0] * 5, None),
    ],
)
def test_the_last_level(values, expected):
    assert find_last_change(values) == expected
