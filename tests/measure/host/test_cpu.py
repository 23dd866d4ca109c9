from __future__ import annotations

import sys
from typing import NamedTuple

import pytest

from mmgpu_hooks.measure.host import (
    CpuMeter,
    CpuReading,
    fold_busy_pct,
)


class Times(NamedTuple):
    user: float
    system: float = 0.0
    idle: float = 0.0
    iowait: float = 0.0
    guest: float = 0.0


def test_windows_follow_each_other():
    times = iter([Times(10, idle=10), Times(13, idle=11), Times(13, idle=15)])
    process = iter([1.0, 3.5, 3.75])
    delay = iter([0.5, 2.0, None])
    meter = CpuMeter(lambda: next(times), lambda: next(process), lambda: next(delay))
    assert meter.read() == CpuReading(2.5, 75.0, process_run_delay_s=1.5)
    assert meter.read() == CpuReading(0.25, 0.0, process_run_delay_s=None)


@pytest.mark.parametrize(
    ('before', 'after', 'pct'),
    [
        (Times(0), Times(1, 1, 1, 1), 50.0),  # waiting for a disk is not busy
        (Times(0), Times(2, idle=2, guest=2), 50.0),  # guest is inside user
        (Times(5, idle=5), Times(5, idle=5), None),  # no time passed
        (Times(5, idle=5), Times(4, idle=4), None),
        (Times(5, idle=5, iowait=9), Times(6, idle=8, iowait=8), 25.0),
    ],
)
def test_busy_share(before: Times, after: Times, pct):
    assert fold_busy_pct(before._asdict(), after._asdict()) == pct


def test_without_psutil_the_rest_goes_on_and_says_why(monkeypatch):
    monkeypatch.setitem(sys.modules, 'psutil', None)
    process = iter([1.0, 1.5])
    meter = CpuMeter(process_cpu=lambda: next(process), run_delay=lambda: None)
    assert meter.read() == CpuReading(process_cpu_s=0.5, system_cpu_pct=None)
    assert 'pip install psutil' in meter.unknown['system_cpu_pct']


@pytest.mark.parametrize('error', [OSError('hidden'), TypeError('hidden')])
def test_a_host_that_stops_telling_is_asked_no_more(error: Exception):
    answers = iter([Times(1, idle=1), error, Times(9, idle=9)])

    def read() -> Times:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    meter = CpuMeter(read, lambda: 0.0)
    assert meter.read().system_cpu_pct is None
    assert meter.read().system_cpu_pct is None
    assert 'hidden' in meter.unknown['system_cpu_pct']
    assert next(answers) == Times(9, idle=9)


def test_a_busy_process_is_seen_on_this_host():
    meter = CpuMeter()
    sum(range(12_000_000))
    reading = meter.read()
    assert reading.process_cpu_s > 0.02
    assert reading.system_cpu_pct is not None
    assert 0.0 < reading.system_cpu_pct <= 100.0
