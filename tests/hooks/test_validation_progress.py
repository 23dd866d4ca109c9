"""Tests how often a validation's progress is recorded, by scripted validations."""

from __future__ import annotations

import pytest

from mmgpu_hooks.hooks.validation_progress import ProgressPace
from mmgpu_hooks.measure.validation_parts import FORWARD, ValidationState


def note(call_s: float, whole_s: float) -> list[float]:
    """Returns when progress is recorded (in seconds) if calls take ``call_s`` each."""
    pace, noted, now_s = ProgressPace(), [], 0.0
    while now_s < whole_s:
        now_s += 1.0
        state = ValidationState(FORWARD, now_s // call_s * call_s, now_s, {})
        if pace.is_due(state, now_s):
            pace.note(state)
            noted.append(now_s)
    return noted


def test_short_calls_are_noted_soon_and_then_every_half_minute():
    assert note(0.25, 100) == [1, 2, 4, 8, 16, 32, 62, 92]


@pytest.mark.parametrize(('call_s', 'most'), [(0.25, 120), (4.0, 700)])
def test_an_hour_of_validation_leaves_few_notes(call_s, most):
    assert len(note(call_s, 3600)) < most


def test_one_long_call_is_noted_as_it_doubles():
    assert note(1e9, 120) == [1, 2, 4, 8, 16, 32, 62, 64, 94]
