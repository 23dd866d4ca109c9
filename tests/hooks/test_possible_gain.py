"""Tests where a training might gain anything by other loader settings."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.runs import make_interval, make_workers
from mmgpu_hooks.hooks.possible_gain import PossibleGain

# 20 iterations of 0.2 s, in which the workers and the training use a core each
IDLE: dict[str, Any] = {
    'data_wait_s': 0.0,
    'step_s': 0.2,
    'process_cpu_s': 4.0,
    'system_cpu_pct': 30.0,
    'workers': make_workers(0.2),
}
WAITING = {'data_wait_s': 0.04}
FIRST = {'data_wait_s': 0.05, 'first_waits': 1, 'first_wait_s': 1.0}
NO_WAIT, TOO_FEW = 'training does not wait for its loader', 'too few intervals yet'
CASES: dict[str, tuple[list[dict[str, Any]], str | None]] = {
    'nothing to gain': ([{}, {}], NO_WAIT),
    'too few': ([WAITING], TOO_FEW),
    'waits': ([WAITING, WAITING], None),
    'waits seldom and long': ([{}, {}, {'data_wait_s': 0.2}, {}], None),
    'hardly waits': ([{'data_wait_s': 0.005}] * 3, NO_WAIT),
    'waited for the very first batch alone': ([FIRST, {}], NO_WAIT),
    'its workers start in each epoch': ([FIRST, {}, FIRST, {}], None),
    'takes nearly all cores': ([{'workers': make_workers(1.2, count=8)}] * 2, None),
    'others take nearly all cores': ([{'system_cpu_pct': 90.0}] * 2, None),
    'CPU unknown': ([{}, {'process_cpu_s': None}], None),
    'CPU of the host unknown': ([{'system_cpu_pct': None}] * 2, NO_WAIT),
    'workers unknown': ([{'workers': None}, {}], None),
}


@pytest.mark.parametrize(('intervals', 'why_not'), CASES.values(), ids=CASES.keys())
def test_a_gain_is_possible_where_training_waits_or_cores_are_taken(intervals, why_not):
    gain = PossibleGain(8.0)
    for more in intervals:
        gain.add(make_interval(**{**IDLE, **more}))
    assert (None if gain.why_not is None else str(gain.why_not)) == why_not


def test_a_gain_is_possible_on_a_host_that_does_not_say_its_cores():
    gain = PossibleGain(None)
    for _ in range(2):
        gain.add(make_interval(**IDLE))
    assert gain.why_not is None
