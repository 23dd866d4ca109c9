from __future__ import annotations

import pytest

from fakes.replaced import replace
from fakes.runs import (
    make_interval,
    make_run,
)
from mmgpu_hooks.judge.figures import GpuFigures
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import GpuWindow, RunEvidence


def fold(*windows: tuple[int, GpuWindow]) -> GpuFigures:
    """Windows with their iterations; an interval of warm-up comes before."""
    records = [
        make_interval(index, iterations=iterations, gpu=gpu)
        for index, (iterations, gpu) in enumerate(windows)
    ]
    evidence = RunEvidence('x', make_run(), (make_interval(), *records))
    gpu = Run(evidence).gpu
    assert gpu is not None
    return gpu


def test_means_are_weighted_by_seconds_and_extremes_are_the_largest():
    gpu = fold(
        (
            10,
            GpuWindow(
                samples=5,
                sm_clock_mhz=100.0,
                temperature_c=70.0,
                sm_active_pct=80.0,
            ),
        ),
        (
            30,
            GpuWindow(samples=5, sm_clock_mhz=300.0, temperature_c=60.0),
        ),
    )
    assert gpu.sm_clock_mhz == pytest.approx(250.0)
    assert gpu.temperature_c == 70.0
    # told by one window only
    assert gpu.sm_active_pct == pytest.approx(80.0)
    assert gpu.util_pct is None


def test_utilisation_is_weighted_by_what_was_sampled_of_an_interval():
    gpu = fold(
        # unknown for most of it
        (
            30,
            GpuWindow(
                samples=5,
                util_pct=100.0,
                zero_pct=0.0,
                sm_clock_mhz=300.0,
                sampled_s=1.0,
            ),
        ),
        (
            10,
            GpuWindow(
                samples=5,
                util_pct=20.0,
                zero_pct=40.0,
                sm_clock_mhz=100.0,
                sampled_s=3.0,
            ),
        ),
    )
    assert (gpu.util_pct, gpu.zero_pct) == pytest.approx((40.0, 30.0))
    # clocks and the like were looked at all the time
    assert gpu.sm_clock_mhz == pytest.approx(250.0)


@pytest.mark.parametrize('part', ['validation', 'checkpoint_save'])
def test_means_are_of_plain_training_where_there_is_enough(part: str):
    def fold_with(calm: int) -> GpuFigures:
        window = GpuWindow(
            samples=5,
            util_pct=90.0,
            mem_used_bytes=1,
            temperature_c=50.0,
            sm_clock_mhz=300.0,
        )
        records = [make_interval(index, gpu=window) for index in range(1 + calm)]
        busy = make_interval(9)
        records.append(
            replace(
                busy,
                ledger_s={**busy.ledger_s, part: 1.0},
                gpu=replace(window, util_pct=0.0, mem_used_bytes=9, sm_clock_mhz=0.0),
            )
        )
        gpu = Run(RunEvidence('x', make_run(), tuple(records))).gpu
        assert gpu is not None
        return gpu

    gpu = fold_with(3)
    assert (gpu.util_pct, gpu.sm_clock_mhz, gpu.samples) == (90.0, 300.0, 15)
    # what was reached was reached
    assert gpu.mem_used_bytes == 9
    assert fold_with(2).util_pct == pytest.approx(60.0)


def test_a_reason_that_a_window_lacks_was_not_there_in_it():
    cap, heat = {'power_cap': 40.0}, {'power_cap': 20.0, 'thermal': 60.0}
    gpu = fold(
        (20, GpuWindow(samples=5, throttled_pct=40.0, throttle_reasons_pct=cap)),
        (20, GpuWindow(samples=5, throttled_pct=60.0, throttle_reasons_pct=heat)),
        (60, GpuWindow(samples=5)),
    )
    assert gpu.throttled_pct == pytest.approx(50.0)
    assert list(gpu.throttle_reasons_pct) == ['power_cap', 'thermal']
    assert gpu.throttle_reasons_pct['power_cap'] == pytest.approx(30.0)
    assert gpu.throttle_reasons_pct['thermal'] == pytest.approx(30.0)


def test_idling_is_weighted_by_the_iterations_timed():
    records = (
        make_interval(0, gpu_idle_pct=99.0, gpu_idle_iterations=20),
        make_interval(1, gpu_idle_pct=10.0, gpu_idle_iterations=30),
        make_interval(2, gpu_idle_pct=50.0, gpu_idle_iterations=10),
        make_interval(3),
    )
    summary = Run(RunEvidence('x', make_run(), records))
    assert summary.gpu_idle_pct == pytest.approx(20.0)
    assert summary.gpu_idle_iterations == 40
