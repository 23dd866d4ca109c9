"""Makes the rows of a sweep's table of what its trials recorded. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.run_comparison import ITER, fold_figures
from mmgpu_hooks.judge.workload import fit_workload
from mmgpu_hooks.model.prediction import predict_setting
from mmgpu_hooks.model.stats import LEAST_VALUES, fold_mean
from mmgpu_hooks.model.workload import Workload
from mmgpu_hooks.recommend.worker_cap import DEFAULT_PREFETCH, cap_workers
from mmgpu_hooks.schema import (
    Estimate,
    NoPrediction,
    Prediction,
    SweepRow,
    SweepSetting,
)

USUAL_WORKERS = 2
"""Of MMDetection's configs: the run that people have is one with these."""


SETTLED = 0.03
"""The iteration time is known well enough when its interval is +- so much of it."""


LEAST_INTERVALS = 3
"""Of a trial whose time is up; its interval of confidence is then a wide one."""


def fold_iter(run: Run | None, warm_up: int) -> Estimate | None:
    """A steady iteration with its interval; ``None`` while intervals are too few.

    Args:
        run: As far as it was recorded.
        warm_up: First intervals to leave out.
    """
    if run is None:
        return None
    series = fold_figures(run.every.after(warm_up), LEAST_INTERVALS)[ITER]
    return fold_mean(series) if series is not None else None


def is_settled(iter_s: Estimate | None) -> bool:
    """Whether more iterations would tell nothing that matters."""
    if iter_s is None or iter_s.count < LEAST_VALUES:
        return False
    return iter_s.half_width <= SETTLED * iter_s.value


def fold_sweep_row(row: SweepRow, run: Run | None, warm_up: int) -> SweepRow:
    """Add what a trial recorded.

    Args:
        row: With how the trial ended, and the peak of resident memory as far as it is
            known from outside.
        run: What it left, if anything that can be read.
        warm_up: First intervals to leave out.
    """
    if run is None or len(run.intervals) <= warm_up:
        return row
    steady = _without_warm_up(run, warm_up)
    saves = [save.wall_s for save in steady.save_records if save.error is None]
    # the first finds every cache cold
    saves = saves[1:] or saves
    peak, source = _fold_memory(row, steady)
    row = replace(
        row,
        iterations=steady.steady_iterations,
        iter_s=fold_iter(run, warm_up),
        data_wait_s=steady.data_wait_s,
        images_per_s=_of_all_ranks(steady),
        memory_peak_bytes=peak,
        memory_source=source,
        batches_per_epoch=steady.run.loader.batches_per_epoch,
        cpu_cores=_fold_cores(steady),
        external_cpu_cores=steady.external_cpu_cores,
        save_s=statistics.median(saves) if saves else None,
    )
    if steady.gpu is not None:
        row = replace(
            row,
            gpu_util_pct=steady.gpu.util_pct,
            gpu_zero_pct=steady.gpu.zero_pct,
        )
    if steady.run.host.usable_cores is None:
        return row
    prefetch = row.setting.prefetch_factor or DEFAULT_PREFETCH
    cap = cap_workers(steady, prefetch)
    return replace(row, most_workers=cap.workers, most_workers_reason=cap.reason)


def choose_calibrations(rows: Sequence[SweepRow]) -> dict[SweepSetting, SweepSetting]:
    """From which trial each setting is predicted.

    Of those with the same batch size, pinned memory and precision it is the one with
    2 workers, MMDetection's usual number, or the measured one that is nearest to that.

    Returns:
        The trial by setting; without those that have none.
    """
    chosen = {}
    for row in rows:
        near = [
            other.setting
            for other in rows
            if other.is_measured and other.setting.loads == row.setting.loads
        ]
        if near:
            chosen[row.setting] = min(near, key=_distance)
    return chosen


def fit_sweep_workload(run: Run | None, warm_up: int) -> Workload | NoPrediction:
    """What one trial tells of its loader.

    Args:
        run: Of the trial; ``None`` when its evidence is gone.
        warm_up: First intervals to leave out.
    """
    if run is None:
        return NoPrediction('The evidence of the trial to predict from is gone.')
    return fit_workload(_without_warm_up(run, warm_up))


def predict_rows(
    rows: Sequence[SweepRow],
    calibrations: Mapping[SweepSetting, SweepSetting],
    workloads: Mapping[SweepSetting, Workload | NoPrediction],
) -> list[SweepRow]:
    """Set beside each trial what the model of one other had said of it.

    Args:
        rows: All trials.
        calibrations: From :func:`choose_calibrations`.
        workloads: By the setting of the trial that each is taken from.
    """
    return [_predict(row, calibrations, workloads) for row in rows]


def _predict(
    row: SweepRow,
    calibrations: Mapping[SweepSetting, SweepSetting],
    workloads: Mapping[SweepSetting, Workload | NoPrediction],
) -> SweepRow:
    source = calibrations.get(row.setting)
    if source is None:
        why = (
            'No trial with this batch size was measured, and what a step takes with '
            'another batch size is not known from one run.'
        )
        return replace(row, predicted=None, unpredicted=why, is_calibration=False)
    workload = workloads[source]
    found: Prediction | NoPrediction = NoPrediction('')
    if isinstance(workload, NoPrediction):
        found = workload
    else:
        setting = row.setting
        # the config's own where none was asked for, which that trial had too
        prefetch = setting.prefetch_factor or workload.prefetch_factor
        found = predict_setting(workload, setting.num_workers, prefetch)
    is_own = row.setting == source
    if isinstance(found, NoPrediction):
        return replace(
            row, predicted=None, unpredicted=found.reason, is_calibration=is_own
        )
    return replace(row, predicted=found, unpredicted=None, is_calibration=is_own)


def _distance(setting: SweepSetting) -> tuple[int, int, int]:
    # of two as near, the one whose workers tell more of workers
    away = abs(setting.num_workers - USUAL_WORKERS)
    prefetch = abs((setting.prefetch_factor or DEFAULT_PREFETCH) - DEFAULT_PREFETCH)
    return away, prefetch, -setting.num_workers


def _without_warm_up(run: Run, warm_up: int) -> Run:
    """With one interval of it left, which steady figures leave out themselves."""
    intervals = run.intervals[max(warm_up - 1, 0) :]
    return Run(replace(run.evidence, intervals=intervals))


def _of_all_ranks(run: Run) -> float | None:
    """Images per second: every rank has batches of the same size."""
    speed = run.images_per_s
    return None if speed is None else speed * run.run.world_size


def _fold_memory(row: SweepRow, run: Run) -> tuple[int | None, str | None]:
    if run.gpu_mem_peak_bytes is not None:
        return run.gpu_mem_peak_bytes, 'cuda_allocator'
    resident = row.memory_peak_bytes or run.process_rss_bytes
    return resident, None if resident is None else 'process_rss'


def _fold_cores(run: Run) -> float | None:
    """Cores in use by the training process and its workers."""
    own, iter_s = run.process_cpu_cores, run.iter_s
    if own is None or not run.run.loader.num_workers:
        return own
    if run.worker_cpu_s is None or not iter_s or not math.isfinite(iter_s):
        return None
    return own + run.worker_cpu_s / iter_s
