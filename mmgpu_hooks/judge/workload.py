"""Makes a workload, which predictions start from, of what one run recorded."""

from __future__ import annotations

import math
from dataclasses import replace

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.thresholds import (
    BLOCKED_PROBLEM,
    IO_PRESSURE_PCT,
    MIN_ITERATIONS,
)
from mmgpu_hooks.judge.workload_costs import (
    LONGEST_S,
    fold_batch_cpu,
    fold_iteration,
    fold_loading,
    fold_run_delay,
    fold_step,
)
from mmgpu_hooks.judge.workload_segment import cut_segment
from mmgpu_hooks.model.calibration import calibrate
from mmgpu_hooks.model.handover import estimate_handover
from mmgpu_hooks.model.job import first_batch_s
from mmgpu_hooks.model.prediction import MOST_PREFETCH, MOST_WORKERS
from mmgpu_hooks.schema import (
    LoaderWorkload,
    NoPrediction,
)

MOST_CORES = 65536
"""Of one host; no more were built."""

WORKER_START_S = 0.02
"""What a worker adds to the start of an epoch where it was not measured: a fork of a
process that has PyTorch loaded, on an ordinary server."""


def fit_workload(summary: Run) -> LoaderWorkload | NoPrediction:
    """Make a workload of one rank's run, or say why there is none.

    A run whose pipeline changed midway is cut and its last long part taken.
    """
    notes: list[str] = []
    segment = cut_segment(summary)
    if segment is not None:
        summary, note = segment
        notes.append(note)
    missing = _find_missing(summary)
    if missing is not None:
        return NoPrediction(missing)
    workload = _fold_workload(summary, notes)
    if isinstance(workload, NoPrediction):
        return workload
    workload = calibrate(
        workload,
        _stranger_cores(summary, workload.host_cores),
        fold_run_delay(summary),
        summary.main_run_delay_s or 0.0,
    )
    return replace(
        workload,
        worker_start_s=_worker_start_s(summary, workload),
        usable_cores=summary.run.host.usable_cores or 0.0,
    )


def _find_missing(summary: Run) -> str | None:
    """What a workload cannot be made without; a sentence, or ``None``."""
    loader, host = summary.run.loader, summary.run.host
    if loader.num_workers is None:
        because = _why(summary, 'loader workers')
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
    if summary.steady_iterations < MIN_ITERATIONS:
        return (
            f'Not enough evidence: {summary.steady_iterations} steady iterations, '
            f'{MIN_ITERATIONS} needed.'
        )
    if host.usable_cores is None:
        return 'The usable cores of this host are unknown.'
    if not 0.0 < host.usable_cores <= MOST_CORES or (
        not 0 <= (host.logical_cpus or 0) <= MOST_CORES
    ):
        return (
            f'The usable cores of this host are absurd: {host.usable_cores:g} of '
            f'{host.logical_cpus}; was the evidence edited?'
        )
    needed = {
        'the wait for data': summary.data_wait_s,
        'the step': summary.step_s,
        'the hooks': summary.hooks_s,
        'the CPU of the training process': summary.main_cpu_s,
    }
    for name, value in needed.items():
        if value is None:
            because = _why(summary, 'CPU') if name.startswith('the CPU') else ''
            return f'What {name} took per iteration is unknown{because}.'
        if not 0.0 <= value <= LONGEST_S:
            return (
                f'What {name} took per iteration is absurd: {value:g} s; was the '
                'evidence edited?'
            )
    if not summary.iter_s or summary.iter_s <= 0.0:
        return 'The iterations took no time at all; was the evidence edited?'
    return None


def _why(summary: Run, source: str) -> str:
    """The reason of what is unknown, to end a sentence with; nothing without one."""
    reason = summary.unknown.get(source)
    return f': {reason.rstrip(".")}' if reason else ''


def _fold_workload(summary: Run, notes: list[str]) -> LoaderWorkload | NoPrediction:
    run, loader = summary.run, summary.run.loader
    workers = loader.num_workers or 0
    loading = fold_loading(summary)
    if isinstance(loading, NoPrediction):
        return loading
    occupancy, is_known = loading
    cpu = fold_batch_cpu(summary, occupancy)
    if isinstance(cpu, NoPrediction):
        return cpu
    step = fold_step(summary)
    step_cpu_s = summary.main_cpu_s or 0.0
    usable = run.host.usable_cores or 0.0
    iter_s = summary.iter_s or 0.0
    if cpu.mean_s + step_cpu_s > 1.15 * usable * iter_s:
        return NoPrediction(
            f'The figures contradict each other: {cpu.mean_s + step_cpu_s:.4f} s of '
            f'CPU per iteration, in {iter_s:.4f} s on {usable:g} usable cores.'
        )
    # OpenMP's other threads had the rest of the cores, the workers only these
    had = max(run.host.cores_had or 0.0, (cpu.mean_s + step_cpu_s) / iter_s)
    if had < usable:
        notes.append(
            f'The run was bound to {run.host.affinity_cpus} of '
            f'{run.host.unbound_cpus} CPUs (MG113); the predictions are for the '
            f'{usable:g} usable cores that it has without that.'
        )
    if not is_known:
        notes.append(
            "The workers' time per batch was not measured inside them, and they were "
            'not always busy: it is only bounded.'
        )
    handover = estimate_handover(summary.batch_tensors, occupancy, cpu)
    if workers:
        # it is in the CPU already; between two batches nobody measures
        whole_s, cpu_s = occupancy.mean_s + handover.gap_s, cpu.mean_s
    else:
        whole_s = occupancy.mean_s + handover.whole_s
        cpu_s = cpu.mean_s + handover.cpu_s
    return LoaderWorkload(
        num_workers=workers,
        prefetch_factor=loader.prefetch_factor or 2,
        persistent_workers=bool(loader.persistent_workers),
        batch_size=loader.batch_size if (loader.batch_size or 0) > 0 else None,
        iterations=summary.steady_iterations,
        iter_time=fold_iteration(summary),
        occupancy=replace(occupancy, mean_s=whole_s),
        batch_cpu=replace(cpu, mean_s=min(cpu_s, whole_s)),
        step=step,
        step_cpu_s=step_cpu_s,
        fetch_s=handover.fetch_s,
        fetch_busy_s=handover.fetch_busy_s,
        handover_s=handover.whole_s,
        handover_cpu_s=handover.cpu_s,
        usable_cores=min(had, usable),
        host_cores=_host_cores(summary, usable),
        spin_s=_spin_s(summary, step_cpu_s),
        is_storage_bound=_is_storage_bound(summary, occupancy.mean_s, cpu.mean_s),
        is_handover_known=workers > 0,
        is_occupancy_known=is_known,
        notes=tuple(notes),
    )


def _host_cores(summary: Run, usable: float) -> float:
    """This rank's part of the host: the other ranks keep theirs busy."""
    host = summary.run.host
    logical = host.logical_cpus or usable
    return max(logical / max(host.ranks_on_host, 1), usable)


def _stranger_cores(summary: Run, host_cores: float) -> float:
    """What others used; nothing where that is unknown or cannot be."""
    used = summary.external_cpu_cores
    if used is None or not 0.0 <= used <= host_cores:
        return 0.0
    return used


def _spin_s(summary: Run, step_cpu_s: float) -> float:
    """CPU that the training process burns while it waits for the GPU.

    It is all of it but the time in which the GPU had nothing to do outside the waits
    for data: then the process was giving it work.
    """
    if summary.run.device != 'cuda':
        return 0.0
    idle_s = (summary.gpu_idle_pct or 0.0) / 100.0 * (summary.iter_s or 0.0)
    giving_s = max(idle_s - (summary.data_wait_s or 0.0), summary.hooks_s or 0.0)
    return min(max(step_cpu_s - giving_s, 0.0), summary.step_s or 0.0)


def _is_storage_bound(summary: Run, whole_s: float, cpu_s: float) -> bool:
    pressure = summary.host.io_pressure_pct if summary.host else None
    if pressure is None or whole_s <= 0.0:
        return False
    return pressure >= IO_PRESSURE_PCT and 1.0 - cpu_s / whole_s >= BLOCKED_PROBLEM


def _worker_start_s(summary: Run, workload: LoaderWorkload) -> float:
    """What one worker adds to the start of an epoch beyond making its first batch."""
    if not workload.num_workers or not summary.epoch_starts:
        return WORKER_START_S
    starts = 1 if workload.persistent_workers else summary.epoch_starts
    if not math.isfinite(summary.startup_s) or summary.startup_s < 0.0:
        return WORKER_START_S
    latency_s = summary.epoch_starts * first_batch_s(workload)
    return max(summary.startup_s - latency_s, 0.0) / starts / workload.num_workers
