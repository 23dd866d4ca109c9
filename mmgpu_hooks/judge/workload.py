"""From a `Run` to the workload that predictions start from.

Costs have a mean, a spread and a standard error each. A run whose pipeline or step
changed midway is cut, and its last long part taken.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mmgpu_hooks.judge.columns import Column, Intervals, median, total
from mmgpu_hooks.judge.thresholds import (
    BLOCKED_PROBLEM,
    IO_PRESSURE_PCT,
    MIN_ITERATIONS,
)
from mmgpu_hooks.model.calibration import calibrate
from mmgpu_hooks.model.job import first_batch_s
from mmgpu_hooks.model.prediction import MOST_PREFETCH, MOST_WORKERS
from mmgpu_hooks.model.stats import find_last_change
from mmgpu_hooks.model.workload import GAP_S, Cost, Workload, estimate_transfer
from mmgpu_hooks.schema import NoPrediction

if TYPE_CHECKING:
    from mmgpu_hooks.judge.run import Run

_MOST_CORES = 65536
"""Of one host; no more were built."""

_WORKER_START_S = 0.02
"""What a worker adds to the start of an epoch where it was not measured: a fork of a
process that has PyTorch loaded, on an ordinary server."""

_LONGEST_S = 3600.0
"""An iteration that takes longer is a slip of a hand or of a clock."""

_Z95 = 1.645
"""The 95th percentile of a normal distribution, in standard deviations."""

_USUAL_VARIATION = 0.3
"""Spread of the loading of a batch where it was not measured."""

NEWEST = 1000
"""Intervals that are looked at: of 10,000 iterations and more, further ones would not
make a prediction surer."""


def fit_workload(run: Run) -> Workload | NoPrediction:
    """Make a workload of one rank's run, or say why there is none.

    A run whose pipeline changed midway is cut and its last long part taken.
    """
    notes: list[str] = []
    segment = _cut_segment(run)
    if segment is not None:
        run, note = segment
        notes.append(note)
    missing = _find_missing(run)
    if missing is not None:
        return NoPrediction(missing)
    workload = _make_workload(run, notes)
    if isinstance(workload, NoPrediction):
        return workload
    workload = calibrate(
        workload,
        _other_cores(run, workload.host_cores),
        _run_delay_s(run),
        run.main_run_delay_s or 0.0,
    )
    return replace(
        workload,
        worker_start_s=_worker_start_s(run, workload),
        usable_cores=run.run.host.usable_cores or 0.0,
    )


def _find_missing(run: Run) -> str | None:
    """What a workload cannot be made without; a sentence, or ``None``."""
    loader, host = run.run.loader, run.run.host
    if loader.num_workers is None:
        because = _why(run, 'loader workers')
        return f'The live settings of the loader are unknown{because}.'
    prefetch = 1 if loader.prefetch_factor is None else loader.prefetch_factor
    if not 0 <= loader.num_workers <= MOST_WORKERS or (
        not 1 <= prefetch <= MOST_PREFETCH
    ):
        return (
            f'The live settings of the loader are absurd: {loader.num_workers} '
            f'workers, prefetch_factor {loader.prefetch_factor}; was the evidence '
            'edited?'
        )
    if run.steady_iterations < MIN_ITERATIONS:
        return (
            f'Not enough evidence: {run.steady_iterations} steady iterations, '
            f'{MIN_ITERATIONS} needed.'
        )
    if host.usable_cores is None:
        return 'The usable cores of this host are unknown.'
    if not 0.0 < host.usable_cores <= _MOST_CORES or (
        not 0 <= (host.logical_cpus or 0) <= _MOST_CORES
    ):
        return (
            f'The usable cores of this host are absurd: {host.usable_cores:g} of '
            f'{host.logical_cpus}; was the evidence edited?'
        )
    needed = {
        'the wait for data': run.data_wait_s,
        'the step': run.step_s,
        'the hooks': run.hooks_s,
        'the CPU of the training process': run.main_cpu_s,
    }
    for name, value in needed.items():
        if value is None:
            because = _why(run, 'CPU') if name.startswith('the CPU') else ''
            return f'What {name} took per iteration is unknown{because}.'
        if not 0.0 <= value <= _LONGEST_S:
            return (
                f'What {name} took per iteration is absurd: {value:g} s; was the '
                'evidence edited?'
            )
    if not run.iter_s or run.iter_s <= 0.0:
        return 'The iterations took no time at all; was the evidence edited?'
    return None


def _why(run: Run, source: str) -> str:
    """The reason of what is unknown, to end a sentence with; nothing without one."""
    reason = run.unknown.get(source)
    return f': {reason.rstrip(".")}' if reason else ''


def _make_workload(run: Run, notes: list[str]) -> Workload | NoPrediction:
    record, loader = run.run, run.run.loader
    workers = loader.num_workers or 0
    loading = _loading_cost(run)
    if isinstance(loading, NoPrediction):
        return loading
    occupancy, is_known = loading
    cpu = _batch_cpu_cost(run, occupancy)
    if isinstance(cpu, NoPrediction):
        return cpu
    step = _step_cost(run)
    step_cpu_s = run.main_cpu_s or 0.0
    usable = record.host.usable_cores or 0.0
    iter_s = run.iter_s or 0.0
    if cpu.mean_s + step_cpu_s > 1.15 * usable * iter_s:
        return NoPrediction(
            f'The figures contradict each other: {cpu.mean_s + step_cpu_s:.4f} s of '
            f'CPU per iteration, in {iter_s:.4f} s on {usable:g} usable cores.'
        )
    # OpenMP's other threads had the rest of the cores, the workers only these
    had = max(record.host.cores_had or 0.0, (cpu.mean_s + step_cpu_s) / iter_s)
    if had < usable:
        notes.append(
            f'The run was bound to {record.host.affinity_cpus} of '
            f'{record.host.unbound_cpus} CPUs (MG113); the predictions are for the '
            f'{usable:g} usable cores that it has without that.'
        )
    if not is_known:
        notes.append(
            "The workers' time per batch was not measured inside them, and they were "
            'not always busy: it is only bounded.'
        )
    transfer = estimate_transfer(run.batch_tensors, occupancy, cpu)
    if workers:
        # it is in the CPU already; between two batches nobody measures
        whole_s, cpu_s = occupancy.mean_s + GAP_S, cpu.mean_s
    else:
        whole_s = occupancy.mean_s + transfer.whole_s
        cpu_s = cpu.mean_s + transfer.cpu_s
    return Workload(
        num_workers=workers,
        prefetch_factor=loader.prefetch_factor or 2,
        persistent_workers=bool(loader.persistent_workers),
        batch_size=loader.batch_size if (loader.batch_size or 0) > 0 else None,
        iterations=run.steady_iterations,
        iter_time=_iteration_cost(run),
        batch_time=replace(occupancy, mean_s=whole_s),
        batch_cpu=replace(cpu, mean_s=min(cpu_s, whole_s)),
        step=step,
        step_cpu_s=step_cpu_s,
        fetch_s=transfer.fetch_s,
        fetch_busy_s=transfer.fetch_busy_s,
        transfer_s=transfer.whole_s,
        transfer_cpu_s=transfer.cpu_s,
        usable_cores=min(had, usable),
        host_cores=_host_cores(run, usable),
        spin_s=_spin_s(run, step_cpu_s),
        is_storage_bound=_is_storage_bound(run, occupancy.mean_s, cpu.mean_s),
        is_transfer_known=workers > 0,
        is_batch_time_known=is_known,
        notes=tuple(notes),
    )


def _host_cores(run: Run, usable: float) -> float:
    """This rank's part of the host: the other ranks keep theirs busy."""
    host = run.run.host
    logical = host.logical_cpus or usable
    return max(logical / max(host.ranks_on_host, 1), usable)


def _other_cores(run: Run, host_cores: float) -> float:
    """What others used; nothing where that is unknown or cannot be."""
    used = run.external_cpu_cores
    if used is None or not 0.0 <= used <= host_cores:
        return 0.0
    return used


def _spin_s(run: Run, step_cpu_s: float) -> float:
    """CPU that the training process burns while it waits for the GPU.

    It is all of it but the time in which the GPU had nothing to do outside the waits
    for data: then the process was giving it work.
    """
    if run.run.device != 'cuda':
        return 0.0
    idle_s = (run.gpu_idle_pct or 0.0) / 100.0 * (run.iter_s or 0.0)
    giving_s = max(idle_s - (run.data_wait_s or 0.0), run.hooks_s or 0.0)
    return min(max(step_cpu_s - giving_s, 0.0), run.step_s or 0.0)


def _is_storage_bound(run: Run, whole_s: float, cpu_s: float) -> bool:
    pressure = run.host.io_pressure_pct if run.host else None
    if pressure is None or whole_s <= 0.0:
        return False
    return pressure >= IO_PRESSURE_PCT and 1.0 - cpu_s / whole_s >= BLOCKED_PROBLEM


def _worker_start_s(run: Run, workload: Workload) -> float:
    """What one worker adds to the start of an epoch beyond making its first batch."""
    if not workload.num_workers or not run.epoch_starts:
        return _WORKER_START_S
    starts = 1 if workload.persistent_workers else run.epoch_starts
    if not math.isfinite(run.startup_s) or run.startup_s < 0.0:
        return _WORKER_START_S
    latency_s = run.epoch_starts * first_batch_s(workload)
    return max(run.startup_s - latency_s, 0.0) / starts / workload.num_workers


def _iteration_cost(run: Run) -> Cost:
    """A steady iteration."""
    return _of_intervals(run, run.iter_s or 0.0, 'iter')


def _step_cost(run: Run) -> Cost:
    """The step, with hooks and loop, as it was measured."""
    parts = run.step_s, run.hooks_s, run.loop_s
    step_s = sum(seconds or 0.0 for seconds in parts)
    return _of_intervals(run, step_s, 'step')


def _loading_cost(run: Run) -> tuple[Cost, bool] | NoPrediction:
    """A batch's loading without waiting for cores, and whether that was measured."""
    loader = run.loader
    whole_s = loader.occupancy_s if loader else None
    std_s = loader.occupancy_std_s if loader else None
    count = loader.batches if loader else 0
    wait_s, iter_s = run.data_wait_s or 0.0, run.iter_s or 0.0
    workers = run.run.loader.num_workers or 0
    if workers == 0:
        waits = _of_intervals(run, wait_s, 'data_wait')
        if std_s is not None and _is_sane(std_s):
            return Cost(wait_s, std_s, waits.error_s, waits.count), True
        return waits, True
    delay_s = run.worker_run_delay_s or 0.0
    if whole_s is not None:
        if not _is_sane(whole_s) or not _is_sane(delay_s):
            return _absurd('time per batch', whole_s)
        std_s = std_s if std_s is not None and _is_sane(std_s) else 0.0
        error_s = std_s / math.sqrt(count) if count else whole_s
        return Cost(whole_s, std_s, error_s, count), True
    busiest_s = workers * iter_s - delay_s
    cpu_s = run.worker_cpu_s
    if cpu_s is None or not _is_sane(cpu_s) or not _is_sane(delay_s):
        return NoPrediction("The workers' time per batch is unknown.")
    if wait_s >= 0.1 * iter_s:
        # workers that cannot keep up are busy all the time
        mean_s = max(busiest_s, cpu_s)
        return Cost(mean_s, _USUAL_VARIATION * mean_s, 0.1 * mean_s), True
    low_s, high_s = cpu_s, max(busiest_s, cpu_s)
    mean_s = (low_s + high_s) / 2
    return Cost(mean_s, _USUAL_VARIATION * mean_s, (high_s - low_s) / 4), False


def _run_delay_s(run: Run) -> float | None:
    """What a worker waits for a core, per batch, once the run is under way.

    The start, when all workers make their first batches side by side, is left out if
    the intervals allow it.
    """
    windows = run.every.after(1)
    made = total(windows.lists('workers.worker_batches').ravel())
    delay_s = total(windows.column('workers.run_delay_s'))
    if made <= 0:
        if run.worker_run_delay_s is None:
            return None
        delay_s, made = run.worker_run_delay_s, 1
    return delay_s / made if _is_sane(delay_s / made) else None


def _batch_cpu_cost(run: Run, loading: Cost) -> Cost | NoPrediction:
    """The CPU of a batch's loading."""
    loader = run.loader
    if run.run.loader.num_workers:
        cpu_s = loader.batch_cpu_s if loader else None
        if cpu_s is None:
            cpu_s = run.worker_cpu_s
    else:
        share = run.data_wait_cpu_share
        cpu_s = None if share is None else share * loading.mean_s
    if cpu_s is None:
        return NoPrediction('The CPU of loading a batch is unknown.')
    if not _is_sane(cpu_s):
        return _absurd('CPU per batch', cpu_s)
    variation = _variation(run.every, 'workers.batch_cpu')
    if variation is None:
        variation = loading.variation
    return Cost(cpu_s, variation * cpu_s, loading.relative_error * cpu_s, loading.count)


def _of_intervals(run: Run, mean_s: float, field: str) -> Cost:
    """A mean whose spread and error the intervals tell, as far as there are some."""
    intervals, count = run.every.after(1), run.steady_iterations
    variation = _variation(intervals, field) or 0.0
    error_s = variation * mean_s / math.sqrt(max(count, 1))
    means = intervals.column(f'{field}.mean_s')
    means = means[(means >= 0.0) & (means <= _LONGEST_S)]
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
    return 0.0 <= seconds <= _LONGEST_S


def _absurd(what: str, seconds: float) -> NoPrediction:
    return NoPrediction(
        f"The workers' {what} is absurd: {seconds:g} s; was the evidence edited?"
    )


def _cut_segment(run: Run) -> tuple[Run, str] | None:
    """The last long part of a run that changed midway, or that is very long.

    Returns:
        A run of that part alone and a sentence; ``None`` when nothing changed, or the
        part after the change is too short to tell anything.
    """
    newest = run.every.after(max(len(run.every) - NEWEST, 0))
    counts = newest.column('iterations')
    found = (
        _find_cut(newest.column('workers.occupancy.mean_s')),
        _find_cut(newest.column('step.p50_s')),
    )
    for cut in sorted({cut for cut in found if cut is not None}, reverse=True):
        # the first interval of a part counts as its warm-up
        if counts[cut + 1 :].sum() >= MIN_ITERATIONS:
            part = run.newest(len(newest) - cut)
            return part, (
                'The pipeline or the step changed during the run: only what was '
                f'measured from iteration {part.intervals[0].iteration} on is used.'
            )
    if len(newest) < len(run.every):
        part = run.newest(NEWEST)
        return part, (
            f'Only what was measured from iteration {part.intervals[0].iteration} on '
            'is used.'
        )
    return None


def _find_cut(values: Column) -> int | None:
    known = np.flatnonzero(~np.isnan(values))
    # the first holds lazy initialisation
    known = known[known > 0]
    change = find_last_change(values[known].tolist())
    return None if change is None else int(known[change])
