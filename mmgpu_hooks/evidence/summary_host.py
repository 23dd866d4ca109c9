"""Folds what the host did to the run, and what CPU the run used of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mmgpu_hooks.evidence.interval_table import IntervalTable
from mmgpu_hooks.evidence.weights import (
    calm_mask,
    max_known,
    min_known,
    sum_all,
    sum_known,
    total,
    weighted_mean,
)
from mmgpu_hooks.records import HostSummary, RunRecord

START_CPU_SHARE = 0.65
"""Of the time in which workers are started, and those of the epoch before are ended:
to fork is CPU and to join is waiting; 0.5 to 0.8 were seen."""


@dataclass(frozen=True)
class CpuFigures:
    """CPU of plain training."""

    main_s: float | None
    """Of the training process per iteration, its waits' part left out."""
    main_delay_s: float | None
    """Its main thread's wait for cores per iteration."""
    process_cores: float | None
    system_pct: float | None


def fold_cpu(steady: IntervalTable) -> CpuFigures:
    """CPU of plain training: intervals with a validation or a save are left out.

    Their process and its validation workers would pass for the step and for strangers.
    """
    calm = steady.where(calm_mask(steady))
    process_s = sum_all(calm.floats('process_cpu_s'))
    wait_s = sum_all(calm.floats('data_wait_cpu_s'))
    iterations = total(calm.ints('iterations'))
    durations_s = calm.floats('duration_s').filled()
    seconds = math.fsum(durations_s)
    delay_s = sum_all(calm.floats('process_run_delay_s'))
    main_s = None
    if process_s is not None and wait_s is not None and iterations:
        main_s = max(process_s - wait_s - _start_cpu_s(calm), 0.0) / iterations
    return CpuFigures(
        main_s=main_s,
        main_delay_s=delay_s / iterations
        if delay_s is not None and iterations
        else None,
        process_cores=process_s / seconds
        if process_s is not None and seconds
        else None,
        system_pct=weighted_mean(calm.floats('system_cpu_pct'), durations_s),
    )


def _start_cpu_s(calm: IntervalTable) -> float:
    """CPU of the training process for starting workers, which is no part of a step.

    The first waits are booked with the starts, their CPU with the waits.
    """
    iterations, firsts = total(calm.ints('iterations')), total(calm.ints('first_waits'))
    starts_s = total(calm.floats('ledger_s', 'worker_startup'))
    usual_s = total(calm.floats('ledger_s', 'data_wait')) / max(iterations, 1)
    waits_s = max(total(calm.floats('first_wait_s')) - firsts * usual_s, 0.0)
    return START_CPU_SHARE * max(starts_s - waits_s, 0.0)


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


def fold_host(table: IntervalTable, steady: IntervalTable) -> HostSummary | None:
    """Fold the host's windows.

    Args:
        table: All of the run; sums and extremes are taken over them.
        steady: Those without the warm-up; pressure is taken over them.
    """
    every = table.having('host')
    if not len(every):
        return None
    calm = steady.having('host')
    calm_s = calm.floats('duration_s').filled()
    throttled = every.floats('host', 'throttled_s')
    told_s = math.fsum(throttled.of_known(every.floats('duration_s').filled()))
    throttled_s = sum_known(throttled)
    return HostSummary(
        seconds=math.fsum(calm_s),
        cpu_pressure_pct=weighted_mean(calm.floats('host', 'cpu_pressure_pct'), calm_s),
        io_pressure_pct=weighted_mean(calm.floats('host', 'io_pressure_pct'), calm_s),
        memory_pressure_pct=weighted_mean(
            calm.floats('host', 'memory_pressure_pct'), calm_s
        ),
        throttled_s=throttled_s,
        throttled_pct=(
            100 * throttled_s / told_s if throttled_s is not None and told_s else None
        ),
        swap_in_bytes=sum_known(every.ints('host', 'swap_in_bytes')),
        swap_out_bytes=sum_known(every.ints('host', 'swap_out_bytes')),
        swap_used_bytes=max_known(every.ints('host', 'swap_used_bytes')),
        ram_available_bytes=min_known(every.ints('host', 'ram_available_bytes')),
        shm_free_bytes=min_known(every.ints('host', 'shm_free_bytes')),
        open_files=max_known(every.ints('host', 'open_files')),
    )
