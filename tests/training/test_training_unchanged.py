"""What is trained is the same with and without the hook."""

from __future__ import annotations

import pytest

from training.conftest import CASES, ITERATIONS, PLAIN, Detections


@pytest.mark.parametrize('case', CASES)
def test_losses_are_equal_bit_for_bit(detections: Detections, case: str) -> None:
    losses = detections.losses(case)
    assert len(losses) == ITERATIONS
    assert len(set(losses)) == ITERATIONS
    assert losses == detections.losses(f'{PLAIN}_{case}')
