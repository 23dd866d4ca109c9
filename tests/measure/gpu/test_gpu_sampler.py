from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Callable, Union

import pytest

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.gpu import (
    THREAD_NAME,
    GpuSample,
    GpuSampler,
    summarize_samples,
)
from mmgpu_hooks.schema.recorded import GpuWindow

Step = tuple[float, Union[float, Exception, None]]


class Script:
    """Turns the clock and gives the samples: one (seconds, utilisation) a step."""

    def __init__(self, *steps: Step, mem_used: int | None = 5) -> None:
        self.now = 100.0
        self._steps = iter(steps)
        self._mem_used = mem_used
        self._value: float | Exception | None = None
        self.periods: list[float] = []

    def clock(self) -> float:
        return self.now

    def wait(self, stop: threading.Event, period_s: float) -> bool:
        self.periods.append(period_s)
        step = next(self._steps, None)
        if step is None:
            return True
        self.now += step[0]
        self._value = step[1]
        return False

    def read_sample(self) -> GpuSample:
        if isinstance(self._value, Exception):
            raise self._value
        return GpuSample(self._value, self._mem_used)


def finish(sampler: GpuSampler) -> None:
    """Let the thread end by itself, without a stop."""
    for thread in sampler_threads():
        thread.join(5.0)
    sampler.stop()


def sampler_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == THREAD_NAME]


def until(condition: Callable[[], object]) -> None:
    deadline = time.perf_counter() + 5.0
    while not condition():
        assert time.perf_counter() < deadline, 'waited 5 s in vain'
        time.sleep(0.002)


def fold(samples: Iterable[tuple[float, float | None, int | None]]) -> GpuWindow:
    given = [(seconds, GpuSample(util, used)) for seconds, util, used in samples]
    return GpuWindow(**summarize_samples(given))


def test_a_sample_weighs_as_much_as_its_time():
    window = fold([(3.0, 0.0, 7), (1.0, 80.0, 9)])
    assert window == GpuWindow(
        samples=2,
        util_pct=20.0,  # the plain mean would be 40
        zero_pct=75.0,
        util_std_pct=pytest.approx(1200**0.5),
        mem_used_bytes=9,
        sampled_s=4.0,
    )


def test_nothing_sampled_is_unknown_not_zero():
    assert fold([]) == GpuWindow()
    assert fold([(1.0, None, None)]) == GpuWindow()
    assert fold([(0.0, 50.0, 3)]) == GpuWindow(samples=1, mem_used_bytes=3)
    window = fold([(1.0, 40.0, 1), (9.0, None, 8), (1.0, 60.0, 1)])
    assert (window.samples, window.util_pct, window.mem_used_bytes) == (3, 50.0, 8)


def test_the_thread_weighs_by_the_clock_and_not_by_the_period():
    script = Script((0.2, 100.0), (0.6, 0.0), (0.2, 50.0))
    draws = iter((0.5, 0.0, 1.0, 0.25))
    sampler = GpuSampler(
        script.read_sample,
        clock=script.clock,
        wait=script.wait,
        draw=lambda: next(draws),
    )
    sampler.start()
    finish(sampler)
    window = GpuWindow(**sampler.drain())
    assert window.samples == 3
    assert window.util_pct == pytest.approx(30.0)
    assert window.zero_pct == pytest.approx(60.0)
    assert window.mem_used_bytes == 5
    assert script.periods == pytest.approx([0.2, 0.1, 0.3, 0.15])
    assert sampler.failure is None
    assert GpuWindow(**sampler.drain()) == GpuWindow()


@pytest.mark.parametrize(
    ('error', 'reason'),
    [
        (SourceError('NVML stopped answering'), 'NVML stopped answering'),
        (OSError('odd'), 'OSError: odd'),
    ],
)
def test_a_failing_source_ends_the_thread_and_says_why(error: Exception, reason: str):
    script = Script((1.0, 60.0), (1.0, error), (1.0, 0.0))
    sampler = GpuSampler(script.read_sample, clock=script.clock, wait=script.wait)
    sampler.start()
    until(lambda: sampler.failure)
    assert sampler.failure == reason
    finish(sampler)
    assert GpuWindow(**sampler.drain()).util_pct == 60.0
    assert GpuWindow(**sampler.drain()) == GpuWindow()


def test_stop_and_start_may_be_repeated():
    sampler = GpuSampler(lambda: GpuSample(10.0, 1), period_s=0.001)
    sampler.start()
    sampler.start()
    assert len(sampler_threads()) == 1
    assert sampler_threads()[0].daemon
    until(lambda: GpuWindow(**sampler.drain()).samples)
    assert sampler.stop()
    assert sampler.stop()
    assert not sampler_threads()
    slow = GpuSampler(lambda: GpuSample(10.0, 1), period_s=600.0)
    slow.start()
    start = time.perf_counter()
    assert slow.stop()
    assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize('error', [None, SourceError('closed meanwhile')])
def test_stop_is_bounded_when_a_read_hangs(error: SourceError | None):
    reading, release = threading.Event(), threading.Event()

    def hang() -> GpuSample:
        reading.set()
        release.wait(30.0)
        if error is not None:
            raise error
        return GpuSample(10.0, 1)

    sampler = GpuSampler(hang, period_s=0.001)
    sampler.start()
    assert reading.wait(5.0)
    start = time.perf_counter()
    assert not sampler.stop()
    assert time.perf_counter() - start < 1.0
    release.set()
    until(lambda: not sampler_threads())
    # what came after the stop is neither a failure nor a sample
    assert sampler.failure is None
    assert GpuWindow(**sampler.drain()) == GpuWindow()


def test_other_figures_come_to_means_shares_and_maxima():
    samples = [
        (1.0, GpuSample(None, 5, {'sm_clock_mhz': clock, 'temperature_c': hot}, why))
        for clock, hot, why in (
            (1000.0, 60.0, frozenset({'power_cap'})),
            (1600.0, 75.0, frozenset({'power_cap', 'thermal'})),
            (1900.0, 70.0, frozenset()),
            (1500.0, 65.0, frozenset()),
        )
    ]
    window = GpuWindow(**summarize_samples([*samples, (1.0, GpuSample(None, 5))]))
    assert window == GpuWindow(
        samples=5,
        mem_used_bytes=5,
        sm_clock_mhz=1500.0,
        temperature_c=75.0,
        throttled_pct=50.0,
        throttle_reasons_pct={'power_cap': 50.0, 'thermal': 25.0},
    )
