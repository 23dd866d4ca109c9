"""Tests the diagnosis of real ranks that wait for each other."""

from __future__ import annotations

import pytest

from benchmarks import why


@pytest.mark.slow
@pytest.mark.parametrize(
    'name',
    [
        'uneven batches and a validation',
        'uneven batches',
        'work on rank 0',
        'a rank loads',
        'a rank that never came',
        'a rank that never came to the weights',
        'a branch without gradient',
        'kill -9 of one of two ranks',
        'a slow save on rank 0',
        'a slow metric on rank 0',
        'a slow start of rank 1',
    ],
)
def test_the_rank_and_its_cause_are_named(tmp_path, name):
    case = why.CASES[name]
    played = why.play_and_ask(case, tmp_path / 'case')
    assert played.cause == case.cause
    assert played.is_named or case.cause is None
    assert case.cause is not None or played.alarms == 0
