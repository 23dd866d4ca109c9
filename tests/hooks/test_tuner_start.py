"""Tests where a training is worth asking for other loader settings."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.runs import make_interval, make_workers
from mmgpu_hooks.hooks.tuner import may_gain

# 20 iterations of 0.2 s, in which the workers and the training use a core each
IDLE: dict[str, Any] = {
    'data_wait_s': 0.0,
    'step_s': 0.2,
    'process_cpu_s': 4.0,
    'system_cpu_pct': 30.0,
    'workers': make_workers(0.2),
}
CASES: dict[str, tuple[dict[str, Any], bool]] = {
    'nothing to gain': ({}, False),
    'waits for data': ({'data_wait_s': 0.01}, True),
    'hardly waits': ({'data_wait_s': 0.005}, False),
    'waited for the first batch alone': (
        {'data_wait_s': 0.05, 'first_waits': 1, 'first_wait_s': 1.0},
        False,
    ),
    'takes nearly all cores': ({'workers': make_workers(1.2, count=8)}, True),
    'others take nearly all cores': ({'system_cpu_pct': 90.0}, True),
    'CPU unknown': ({'process_cpu_s': None}, True),
    'CPU of the host unknown': ({'system_cpu_pct': None}, False),
    'workers unknown': ({'workers': None}, True),
}


@pytest.mark.parametrize(('more', 'expected'), CASES.values(), ids=CASES.keys())
def test_a_training_may_gain_where_it_waits_or_its_cores_are_taken(more, expected):
    record = make_interval(**{**IDLE, **more})
    assert may_gain(record, 8.0) == expected
    # a host that does not say how many cores there are
    assert may_gain(record, None)
