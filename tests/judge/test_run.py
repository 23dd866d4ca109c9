"""Tests the values of a run that are summed up from its intervals."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import (
    make_evidence,
    make_inside_workers,
    make_interval,
    make_run,
    make_workers,
)
from mmgpu_hooks.judge.figures import LoaderFigures
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.recorded import GpuWindow, IntervalRecord, WorkersWindow
from mmgpu_hooks.schema.run import RunEvidence

MIB = 2**20


def run_of(*intervals: IntervalRecord, **fields: Any) -> Run:
    return Run(RunEvidence('x', make_run(**fields), intervals))


def after_warm_up(*fields: dict[str, Any]) -> Run:
    """Returns a run of a warm-up interval and one interval per dict of fields."""
    records = [make_interval(index, **values) for index, values in enumerate(fields, 1)]
    return run_of(make_interval(), *records)


def test_the_first_interval_is_warm_up():
    slow = make_interval(0, data_wait_s=5.0, step_s=5.0)
    run = run_of(slow, make_interval(1), make_interval(2))
    assert (run.figures.steady_iterations, run.figures.iterations) == (40, 60)
    parts = run.figures.per_iteration
    assert (parts.data_wait_s, parts.step_s) == pytest.approx((0.1, 0.2))
    assert run.figures.images_per_s == pytest.approx(4 / 0.3)
    # for want of others
    assert run_of(make_interval()).figures.steady_iterations == 20


def test_first_waits_are_start_up_and_no_wait():
    first = make_interval(1, first_waits=1, first_wait_s=4.0)
    first = replace(
        first,
        data_wait=replace(first.data_wait, total_s=1.9 + 4.0),
        ledger_s={**first.ledger_s, 'startup': 3.9 + 0.25},
    )
    run = run_of(make_interval(0), first)
    assert run.figures.per_iteration.data_wait_s == pytest.approx(0.1)
    # creating the workers, outside any wait, is in it
    assert (run.figures.startup_s, run.figures.epoch_starts) == (pytest.approx(4.15), 1)


def test_worker_cpu_is_per_batch_over_the_whole_run():
    # of workers that were not reached, the batches that were taken are known
    windows = make_workers(0.3), make_workers(0.3, run_delay_s=0.04)
    run = run_of(
        *(make_interval(n, workers=window) for n, window in enumerate(windows))
    )
    assert run.figures.worker_cpu_s == pytest.approx(0.3)
    assert run.figures.worker_run_delay_s == pytest.approx(0.02)


def test_hooks_are_summed_by_class():
    records = [
        make_interval(i, by_hook={'LoggerHook': 1.0 + i, 'EMAHook': 4.0})
        for i in range(3)
    ]
    run = run_of(*records)
    assert list(run.figures.by_hook_s) == ['EMAHook', 'LoggerHook']
    assert run.figures.by_hook_s['LoggerHook'] == pytest.approx(6.0)
    end = replace(make_evidence(1).end, hooks_s={'LoggerHook': 7.5, 'LateHook': 1.0})
    # what came after the last interval is in the end record only
    hooks = Run(replace(run.evidence, end=end)).figures.by_hook_s
    assert hooks == {'LoggerHook': 7.5, 'LateHook': 1.0}


def loader_of(*windows: WorkersWindow) -> LoaderFigures:
    loader = after_warm_up(*({'workers': window} for window in windows)).figures.loader
    assert loader is not None
    return loader


def test_a_batch_is_weighted_by_batches():
    loader = loader_of(
        make_inside_workers(0.2, iterations=30), make_inside_workers(0.6, iterations=10)
    )
    assert loader.batches == 40
    assert loader.batch_time_s == pytest.approx(0.3)
    assert loader.batch_cpu_s == pytest.approx(0.27)


def test_spread_is_of_all_batches_and_not_the_mean_of_spreads():
    windows = (make_inside_workers(0.4, std_s=std_s) for std_s in (0.3, 0.1))
    assert loader_of(*windows).batch_time_std_s == pytest.approx(math.sqrt(0.05))


@pytest.mark.parametrize(
    ('later', 'batch_s'), [(make_inside_workers(0.4), 0.4), (make_workers(0.0), 9.0)]
)
def test_warm_up_counts_where_all_batches_were_made_in_it(later, batch_s):
    first = make_interval(0, workers=make_inside_workers(9.0))
    loader = run_of(first, make_interval(1, workers=later)).figures.loader
    assert loader is not None
    assert loader.batch_time_s == pytest.approx(batch_s)


def test_transforms_are_added_up_and_given_per_image():
    first, second = {'Load': 0.4, 'Flip': 0.1}, {'Flip': 1.1}
    run = after_warm_up(
        {'workers': make_inside_workers(transforms_s=first, timed_samples=4)},
        {'workers': make_inside_workers(transforms_s=second, timed_samples=6)},
    )
    # over all samples timed, those that passed it by too
    assert [cost.name for cost in run.transforms] == ['Flip', 'Load']
    seconds = [cost.image_s for cost in run.transforms]
    assert seconds == pytest.approx([0.12, 0.04])


def test_gpu_means_are_weighted_by_seconds_and_extremes_are_the_largest():
    first = GpuWindow(samples=5, util_pct=100.0, zero_pct=0.0, sampled_s=1.0)
    reasons = {'power_cap': 40.0}
    held = {'temperature_c': 70.0, 'throttled_pct': 40.0, 'sm_active_pct': 80.0}
    second = {'util_pct': 20.0, 'zero_pct': 40.0, 'sampled_s': 3.0}
    second |= {'temperature_c': 60.0, 'throttled_pct': 60.0}
    windows = [
        replace(first, **held, throttle_reasons_pct=reasons),
        replace(
            first, **second, throttle_reasons_pct={'power_cap': 20.0, 'thermal': 60.0}
        ),
    ]
    gpu = after_warm_up(
        *({'iterations': 10, 'gpu': window} for window in windows)
    ).figures.gpu
    assert gpu is not None
    assert (gpu.util_pct, gpu.zero_pct) == pytest.approx((40.0, 30.0))
    # known in one interval only
    assert (gpu.temperature_c, gpu.sm_active_pct) == (70.0, pytest.approx(80.0))
    assert gpu.throttled_pct == pytest.approx(50.0)
    assert gpu.throttle_reasons == ['power_cap', 'thermal']


@pytest.mark.parametrize('part', ['validation', 'checkpoint_save'])
@pytest.mark.parametrize(('calm', 'util_pct'), [(3, 90.0), (2, 60.0)])
def test_utilisation_is_of_plain_training_where_there_is_enough(part, calm, util_pct):
    window = GpuWindow(samples=5, util_pct=90.0, sampled_s=1.0, mem_used_bytes=1)
    busy = make_interval(9, gpu=replace(window, util_pct=0.0, mem_used_bytes=9))
    busy = replace(busy, ledger_s={**busy.ledger_s, part: 1.0})
    gpu = run_of(
        *(make_interval(i, gpu=window) for i in range(1 + calm)), busy
    ).figures.gpu
    assert gpu is not None
    assert gpu.util_pct == pytest.approx(util_pct)
    # what was reached was reached
    assert gpu.mem_used_bytes == 9


def test_idling_is_weighted_by_the_iterations_timed():
    run = after_warm_up(
        {'gpu_idle_pct': 10.0, 'gpu_idle_iterations': 30},
        {'gpu_idle_pct': 50.0, 'gpu_idle_iterations': 10},
        {},
    )
    assert run.figures.gpu_idle_pct == pytest.approx(20.0)
