from __future__ import annotations

import threading
import time

import pytest

from fakes.clock import HandClock
from fakes.nvml import FakeGpu, FakeNvml
from mmgpu_hooks.measure.gpu import Gpu, GpuSample, open_gpu
from mmgpu_hooks.measure.gpu_sampler import GpuSampler
from mmgpu_hooks.measure.gpu_util import UtilSpan
from mmgpu_hooks.schema import GpuWindow

OTHER = FakeGpu(uuid='GPU-2', bus='00000000:AF:00.0', util=(10,))


class Thread:
    """Runs a sampler's thread through so many looks, by a clock in hand."""

    def __init__(self, looks: int) -> None:
        self.clock = HandClock()
        self.waits: list[float] = []
        self._looks = looks

    def wait(self, stop: threading.Event, period_s: float) -> bool:
        if len(self.waits) == self._looks:
            return True
        self.waits.append(period_s)
        self.clock.turn(period_s)
        return False

    def run(self, sampler: GpuSampler) -> None:
        sampler.start()
        assert sampler._thread is not None
        sampler._thread.join(10.0)
        assert sampler.stop()


def test_the_driver_that_keeps_samples_is_looked_at_less_often():
    thread = Thread(5)
    buffered = GpuSample(None, 5, (UtilSpan(1.0, 40.0),), next_look_s=1.0)
    samples = iter([GpuSample(0.0, 5), buffered, buffered, GpuSample(0.0, 5), buffered])
    sampler = GpuSampler(
        lambda: next(samples),
        clock=thread.clock,
        wait=thread.wait,
        draw=lambda: 0.5,
        period_s=0.2,
    )
    thread.run(sampler)
    assert thread.waits == [0.2, 0.2, 1.0, 1.0, 0.2]
    window = GpuWindow(**sampler.drain())
    # 3 s of the buffer at 40 %, 0.2 and 1 s of polling at 0 %
    assert window.util_pct == pytest.approx(120 / 4.2)
    assert window.zero_pct == pytest.approx(100 * 1.2 / 4.2)
    assert (window.samples, window.source) == (5, 'buffer')


def test_a_slower_pace_that_the_user_asked_for_is_kept():
    thread = Thread(3)
    sampler = GpuSampler(
        lambda: GpuSample(None, 5, (), next_look_s=1.0),
        clock=thread.clock,
        wait=thread.wait,
        draw=lambda: 0.5,
        period_s=5.0,
    )
    thread.run(sampler)
    assert thread.waits == [5.0, 5.0, 5.0]


def test_a_curve_in_the_drivers_buffer_is_seen_whole(fake_nvml: FakeNvml):
    # 20 ms at 0 %, 60 ms at 100 %, again and again; looked at every 50 ms
    fake_nvml.set(FakeGpu(more=['curve 20000 0 100 100 100'], util=(1,)), OTHER)
    gpu = open_gpu(uuid=FakeGpu.uuid)
    assert isinstance(gpu, Gpu)
    gpu_look = gpu.read_sample

    def read_sample() -> GpuSample:
        sample = gpu_look()
        return GpuSample(sample.util_pct, sample.mem_used_bytes, sample.spans)

    sampler = GpuSampler(read_sample, period_s=0.05)
    sampler.start()
    time.sleep(1.0)
    assert sampler.stop()
    window = GpuWindow(**sampler.drain())
    gpu.close()
    assert sampler.failure is None
    assert window.source == 'buffer'
    assert window.util_pct is not None and window.zero_pct is not None
    # a whole number of curves but for one of them
    assert window.samples >= 12
    assert window.util_pct == pytest.approx(75.0, abs=100 / window.samples)
    assert window.util_pct + window.zero_pct == pytest.approx(100.0)
    assert GpuWindow(**sampler.drain()) == GpuWindow()
