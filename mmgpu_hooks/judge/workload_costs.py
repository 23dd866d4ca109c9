"""Folds a run's figures into costs: a mean, a spread and how well it is known each."""

from __future__ import annotations

import math

import numpy as np

from mmgpu_hooks.judge.columns import Intervals, median, total
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import Cost, NoPrediction

LONGEST_S = 3600.0
"""An iteration that takes longer is a slip of a hand or of a clock."""

_Z95 = 1.645
"""The 95th percentile of a normal distribution, in standard deviations."""

USUAL_VARIATION = 0.3
"""Spread of the loading of a batch where it was not measured."""


def fold_iteration(summary: Run) -> Cost:
    """A steady iteration."""
    return _of_intervals(summary, summary.iter_s or 0.0, 'iter')


def fold_step(summary: Run) -> Cost:
    """The step, with hooks and loop, as it was measured."""
    parts = summary.step_s, summary.hooks_s, summary.loop_s
    step_s = sum(seconds or 0.0 for seconds in parts)
    return _of_intervals(summary, step_s, 'step')


def fold_loading(summary: Run) -> tuple[Cost, bool] | NoPrediction:
    """A batch's loading without waiting for cores, and whether that was measured."""
    loader = summary.loader
    whole_s = loader.occupancy_s if loader else None
    std_s = loader.occupancy_std_s if loader else None
    count = loader.batches if loader else 0
    wait_s, iter_s = summary.data_wait_s or 0.0, summary.iter_s or 0.0
    workers = summary.run.loader.num_workers or 0
    if workers == 0:
        waits = _of_intervals(summary, wait_s, 'data_wait')
        if std_s is not None and _is_sane(std_s):
            return Cost(wait_s, std_s, waits.error_s, waits.count), True
        return waits, True
    delay_s = summary.worker_run_delay_s or 0.0
    if whole_s is not None:
        if not _is_sane(whole_s) or not _is_sane(delay_s):
            return _absurd('time per batch', whole_s)
        std_s = std_s if std_s is not None and _is_sane(std_s) else 0.0
        error_s = std_s / math.sqrt(count) if count else whole_s
        return Cost(whole_s, std_s, error_s, count), True
    busiest_s = workers * iter_s - delay_s
    cpu_s = summary.worker_cpu_s
    if cpu_s is None or not _is_sane(cpu_s) or not _is_sane(delay_s):
        return NoPrediction("The workers' time per batch is unknown.")
    if wait_s >= 0.1 * iter_s:
        # workers that cannot keep up are busy all the time
        mean_s = max(busiest_s, cpu_s)
        return Cost(mean_s, USUAL_VARIATION * mean_s, 0.1 * mean_s), True
    low_s, high_s = cpu_s, max(busiest_s, cpu_s)
    mean_s = (low_s + high_s) / 2
    return Cost(mean_s, USUAL_VARIATION * mean_s, (high_s - low_s) / 4), False


def fold_run_delay(summary: Run) -> float | None:
    """What a worker waits for a core, per batch, once the run is under way.

    The start, when all workers make their first batches side by side, is left out if
    the intervals allow it.
    """
    windows = summary.every.after(1)
    made = total(windows.lists('workers.worker_batches').ravel())
    delay_s = total(windows.column('workers.run_delay_s'))
    if made <= 0:
        if summary.worker_run_delay_s is None:
            return None
        delay_s, made = summary.worker_run_delay_s, 1
    return delay_s / made if _is_sane(delay_s / made) else None


def fold_batch_cpu(summary: Run, loading: Cost) -> Cost | NoPrediction:
    """The CPU of a batch's loading."""
    loader = summary.loader
    if summary.run.loader.num_workers:
        cpu_s = loader.batch_cpu_s if loader else None
        if cpu_s is None:
            cpu_s = summary.worker_cpu_s
    else:
        share = summary.data_wait_cpu_share
        cpu_s = None if share is None else share * loading.mean_s
    if cpu_s is None:
        return NoPrediction('The CPU of loading a batch is unknown.')
    if not _is_sane(cpu_s):
        return _absurd('CPU per batch', cpu_s)
    variation = _variation(summary.every, 'workers.batch_cpu')
    if variation is None:
        variation = loading.variation
    return Cost(cpu_s, variation * cpu_s, loading.relative_error * cpu_s, loading.count)


def _of_intervals(summary: Run, mean_s: float, field: str) -> Cost:
    """A mean whose spread and error the intervals tell, as far as there are some."""
    intervals, count = summary.every.after(1), summary.steady_iterations
    variation = _variation(intervals, field) or 0.0
    error_s = variation * mean_s / math.sqrt(max(count, 1))
    means = intervals.column(f'{field}.mean_s')
    means = means[(means >= 0.0) & (means <= LONGEST_S)]
    if len(means) >= 3:
        # intervals that differ more than chance would have them drift
        error_s = max(error_s, float(means.std(ddof=1)) / math.sqrt(len(means)))
    return Cost(mean_s, variation * mean_s, error_s, count)


def _variation(intervals: Intervals, field: str) -> float | None:
    """Standard deviation over mean, of a log-normal with the same percentiles."""
    p50_s = intervals.column(f'{field}.p50_s')
    p95_s = intervals.column(f'{field}.p95_s')
    counts = intervals.column(f'{field}.count')
    is_known = (counts >= 8) & (p50_s > 0) & (p95_s >= p50_s)
    sigma = median(np.log(p95_s[is_known] / p50_s[is_known]) / _Z95)
    return None if sigma is None else math.sqrt(math.expm1(min(sigma, 1.5) ** 2))


def _is_sane(seconds: float) -> bool:
    return 0.0 <= seconds <= LONGEST_S


def _absurd(what: str, seconds: float) -> NoPrediction:
    return NoPrediction(
        f"The workers' {what} is absurd: {seconds:g} s; was the evidence edited?"
    )
