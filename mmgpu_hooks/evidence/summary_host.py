"""Folds what the host did to the run, and what CPU the run used of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mmgpu_hooks.evidence.weights import (
    is_calm,
    max_known,
    min_known,
    sum_all,
    sum_known,
    weighted_mean,
)
from mmgpu_hooks.records import HostSummary, IntervalRecord, RunRecord


@dataclass(frozen=True)
class CpuFigures:
    """CPU of plain training."""

    main_s: float | None
    """Of the training process per iteration, its waits' part left out."""
    process_cores: float | None
    system_pct: float | None


def fold_cpu(steady: Sequence[IntervalRecord]) -> CpuFigures:
    """CPU of plain training: intervals with a validation or a save are left out.

    Their process and its validation workers would pass for the step and for strangers.
    """
    calm = [record for record in steady if is_calm(record)]
    process_s = sum_all(record.process_cpu_s for record in calm)
    wait_s = sum_all(record.data_wait_cpu_s for record in calm)
    iterations = sum(record.iterations for record in calm)
    seconds = sum(record.duration_s for record in calm)
    main_s = None
    if process_s is not None and wait_s is not None and iterations:
        main_s = max(process_s - wait_s, 0.0) / iterations
    return CpuFigures(
        main_s=main_s,
        process_cores=process_s / seconds
        if process_s is not None and seconds
        else None,
        system_pct=weighted_mean((r.system_cpu_pct, r.duration_s) for r in calm),
    )


def fold_external_cores(
    run: RunRecord, cpu: CpuFigures, worker_cpu_s: float | None, iter_s: float | None
) -> float | None:
    """Cores that others used meanwhile; ``None`` when they cannot be told from ours."""
    logical = run.host.logical_cpus
    if logical is None or cpu.system_pct is None or cpu.process_cores is None:
        return None
    worker_cores = 0.0
    if run.loader.num_workers != 0:
        if worker_cpu_s is None or not iter_s:
            return None
        worker_cores = worker_cpu_s / iter_s
    # the other ranks' part cannot be told from a stranger's
    if run.host.ranks_on_host > 1:
        return None
    busy = cpu.system_pct / 100 * logical
    return max(busy - cpu.process_cores - worker_cores, 0.0)


def fold_host(
    intervals: Sequence[IntervalRecord], steady: Sequence[IntervalRecord]
) -> HostSummary | None:
    """Fold the host's windows.

    Args:
        intervals: All of the run; sums and extremes are taken over them.
        steady: Those without the warm-up; pressure is taken over them.
    """
    every = [(r.host, r.duration_s) for r in intervals if r.host]
    if not every:
        return None
    windows = [window for window, _ in every]
    calm = [(r.host, r.duration_s) for r in steady if r.host]
    told_s = math.fsum([s for w, s in every if w.throttled_s is not None])
    throttled_s = sum_known(window.throttled_s for window in windows)
    return HostSummary(
        seconds=math.fsum([seconds for _, seconds in calm]),
        cpu_pressure_pct=weighted_mean((w.cpu_pressure_pct, s) for w, s in calm),
        io_pressure_pct=weighted_mean((w.io_pressure_pct, s) for w, s in calm),
        memory_pressure_pct=weighted_mean((w.memory_pressure_pct, s) for w, s in calm),
        throttled_s=throttled_s,
        throttled_pct=(
            100 * throttled_s / told_s if throttled_s is not None and told_s else None
        ),
        swap_in_bytes=sum_known(window.swap_in_bytes for window in windows),
        swap_out_bytes=sum_known(window.swap_out_bytes for window in windows),
        swap_used_bytes=max_known(window.swap_used_bytes for window in windows),
        ram_available_bytes=min_known(w.ram_available_bytes for w in windows),
        shm_free_bytes=min_known(window.shm_free_bytes for window in windows),
        open_files=max_known(window.open_files for window in windows),
    )
