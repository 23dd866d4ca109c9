from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Callable, Final

import pytest

from fakes.clock import HandClock
from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.gpu import (
    SAMPLER_THREAD,
    GpuSampler,
    Sample,
    TimedSample,
    summarize_samples,
)
from mmgpu_hooks.schema.recorded import GpuWindow

END = SourceError('NVML stopped answering')


def until(condition: Callable[[], object]) -> None:
    deadline = time.perf_counter() + 5.0
    while not condition():
        assert time.perf_counter() < deadline, 'waited 5 s in vain'
        time.sleep(0.002)


def is_sampling() -> bool:
    return SAMPLER_THREAD in [thread.name for thread in threading.enumerate()]


UTIL: Final = 'util_pct'
MEMORY: Final = 'mem_used_bytes'
CLOCK: Final = 'sm_clock_mhz'
HOT: Final = 'temperature_c'
SAMPLED: Final = 'sampled_s'


def capped(clock: float, hot: float, *reasons: str) -> Sample:
    return {MEMORY: 5, CLOCK: clock, HOT: hot, 'throttled_pct': frozenset(reasons)}


@pytest.mark.parametrize(
    ('samples', 'window'),
    [
        # a sample weighs as much as its time: the plain mean would be 40
        (
            [(3.0, {UTIL: 0.0, MEMORY: 7}), (1.0, {UTIL: 80.0, MEMORY: 9})],
            {'samples': 2, UTIL: 20.0, 'zero_pct': 75.0, MEMORY: 9, SAMPLED: 4.0},
        ),
        # nothing sampled is unknown, and not zero
        ([], {}),
        ([(1.0, {})], {}),
        ([(0.0, {UTIL: 50.0, MEMORY: 3})], {'samples': 1, MEMORY: 3}),
        (
            [(1.0, {UTIL: 40.0, MEMORY: 1}), (9.0, {MEMORY: 8})],
            {'samples': 2, UTIL: 40.0, 'zero_pct': 0.0, MEMORY: 8, SAMPLED: 1.0},
        ),
        # the others come to means, shares and the largest
        (
            [
                (1.0, capped(1000.0, 60.0, 'power_cap')),
                (1.0, capped(1600.0, 75.0, 'power_cap', 'thermal')),
                (1.0, capped(1900.0, 70.0)),
                (1.0, capped(1500.0, 65.0)),
                (1.0, {MEMORY: 5}),
            ],
            {
                **{'samples': 5, MEMORY: 5, CLOCK: 1500.0, HOT: 75.0},
                'throttled_pct': 50.0,
                'throttle_reasons_pct': {'power_cap': 50.0, 'thermal': 25.0},
            },
        ),
    ],
)
def test_samples_come_to_a_window(samples, window):
    assert GpuWindow(
        **summarize_samples([TimedSample(*pair) for pair in samples])
    ) == GpuWindow(**window)


@pytest.mark.parametrize(
    ('error', 'reason'), [(END, str(END)), (OSError('odd'), 'OSError: odd')]
)
def test_the_thread_weighs_by_the_clock_until_the_source_fails(error, reason: str):
    clock = HandClock()

    def script() -> Iterator[Sample]:
        for seconds, util in ((0.2, 100.0), (0.6, 0.0), (0.2, 50.0)):
            clock.turn(seconds)
            yield {UTIL: util, MEMORY: 5}
        raise error

    closed = threading.Event()
    sampler = GpuSampler(script().__next__, 0.001, close=closed.set, clock=clock)
    sampler.start()
    assert closed.wait(5.0)
    assert sampler.failure == reason
    sampler.stop()
    window = GpuWindow(**sampler.drain())
    assert (window.samples, window.mem_used_bytes) == (3, 5)
    assert window.util_pct == pytest.approx(30.0)
    assert window.zero_pct == pytest.approx(60.0)
    assert GpuWindow(**sampler.drain()) == GpuWindow()


def test_a_stop_waits_for_no_period():
    sampler = GpuSampler(lambda: {UTIL: 10.0}, period_s=600.0)
    sampler.start()
    start = time.perf_counter()
    sampler.stop()
    sampler.stop()
    assert time.perf_counter() - start < 60.0
    assert not is_sampling()


@pytest.mark.parametrize('error', [None, END])
def test_stop_is_bounded_when_a_read_hangs(error: SourceError | None):
    reading, release = threading.Event(), threading.Event()

    def hang() -> Sample:
        reading.set()
        release.wait(30.0)
        if error is not None:
            raise error
        return {UTIL: 10.0}

    sampler = GpuSampler(hang, period_s=0.001)
    sampler.start()
    assert reading.wait(5.0)
    start = time.perf_counter()
    sampler.stop()
    assert is_sampling()
    assert time.perf_counter() - start < 15.0
    release.set()
    until(lambda: not is_sampling())
    # what came after the stop is neither a failure nor a sample
    assert sampler.failure is None
    assert GpuWindow(**sampler.drain()) == GpuWindow()
