"""Folds a run's intervals into the figures that judging needs."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mmgpu_hooks.evidence.ledger import PARTS
from mmgpu_hooks.records import (
    GpuWindow,
    IntervalRecord,
    LoaderSettings,
    RunEvidence,
    RunRecord,
    RunSummary,
)

_T = TypeVar('_T', int, float)


def fold_run(evidence: RunEvidence) -> RunSummary:
    """Fold one rank's evidence.

    The first interval holds lazy initialisation and is left out of the steady
    figures as soon as there are others. First waits of epochs hold the workers'
    start and are left out of ``data_wait_s``; what they took beyond a normal wait
    is ``startup_s``.

    Args:
        evidence: As read back, or as the hook holds it when training ends.
    """
    intervals = evidence.intervals
    end = evidence.end
    steady = intervals[1:] if len(intervals) > 1 else intervals
    iterations = sum(record.iterations for record in steady)
    unknown = dict(evidence.run.unknown)
    unknown.update({off.source: off.reason for off in evidence.sources_off})
    wait_s = _steady_wait(steady)
    step_s = _mean((record.step.total_s for record in steady), iterations)
    hooks_s = _mean(
        (record.ledger_s.get('hooks', 0.0) for record in steady), iterations
    )
    iter_s = None
    if wait_s is not None and step_s is not None and hooks_s is not None:
        iter_s = wait_s + step_s + hooks_s
    images = _sum_known(record.images for record in steady)
    waits_s = sum(record.data_wait.total_s for record in steady)
    wait_cpu_s = _sum_known(record.data_wait_cpu_s for record in steady)
    cpu = _fold_cpu(steady)
    cpu_s, run_delay_s, workers = _workers_per_batch(intervals, evidence.run.loader)
    ledger_s = end.ledger_s if end and end.ledger_s else _add_ledgers(intervals)
    return RunSummary(
        run=evidence.run,
        iterations=sum(record.iterations for record in intervals),
        duration_s=math.fsum(ledger_s.values()),
        ledger_s=ledger_s,
        status=end.status if end else 'killed',
        steady_iterations=iterations,
        data_wait_s=wait_s,
        data_wait_p95_s=_median(record.data_wait.p95_s for record in steady),
        step_s=step_s,
        hooks_s=hooks_s,
        iter_s=iter_s,
        iter_p50_s=_median(record.iter.p50_s for record in steady),
        iter_p95_s=_median(record.iter.p95_s for record in steady),
        images_per_s=images / (iter_s * iterations) if images and iter_s else None,
        epoch_starts=sum(record.first_waits for record in intervals),
        startup_s=_startup(intervals, wait_s),
        data_wait_cpu_share=(
            min(wait_cpu_s / waits_s, 1.0)
            if wait_cpu_s is not None and waits_s > 0
            else None
        ),
        main_cpu_s=cpu.main_s,
        worker_cpu_s=cpu_s,
        worker_run_delay_s=run_delay_s,
        worker_count=workers,
        process_cpu_cores=cpu.process_cores,
        system_cpu_pct=cpu.system_pct,
        external_cpu_cores=_external_cores(evidence.run, cpu, cpu_s, iter_s),
        process_rss_bytes=_max_known(r.process_rss_bytes for r in intervals),
        batch_bytes=_max_known(r.batch_bytes for r in intervals),
        batch_tensors=_max_known(r.batch_tensors for r in intervals),
        gpu=_fold_gpu(steady),
        gpu_mem_peak_bytes=_max_known(r.gpu_mem_peak_bytes for r in intervals),
        gpu_mem_reserved_bytes=_max_known(r.gpu_mem_reserved_bytes for r in intervals),
        saves=end.saves if end else sum(record.saves for record in intervals),
        unknown=unknown,
        notes=evidence.notes,
    )


def _steady_wait(steady: Sequence[IntervalRecord]) -> float | None:
    """Mean wait over iterations that did not begin an epoch."""
    count = sum(record.iterations - record.first_waits for record in steady)
    if count <= 0:
        return None
    total = sum(record.data_wait.total_s - record.first_wait_s for record in steady)
    return max(total, 0.0) / count


def _startup(intervals: Sequence[IntervalRecord], wait_s: float | None) -> float:
    first_s = sum(record.first_wait_s for record in intervals)
    starts = sum(record.first_waits for record in intervals)
    return max(first_s - starts * (wait_s or 0.0), 0.0)


def _add_ledgers(intervals: Sequence[IntervalRecord]) -> dict[str, float]:
    return {
        part: math.fsum(record.ledger_s.get(part, 0.0) for record in intervals)
        for part in PARTS
    }


def _workers_per_batch(
    intervals: Sequence[IntervalRecord], loader: LoaderSettings
) -> tuple[float | None, float | None, int | None]:
    """CPU and run delay of all workers per batch, and how many there were.

    Over the whole run, because workers make batches ahead: an epoch's may all be made
    in its first interval. What was made and never taken is at most what was in flight
    when workers started, and no more than an epoch has.
    """
    windows = [r.workers for r in intervals if r.workers and r.workers.count]
    batches = float(sum(window.iterations for window in windows))
    if batches <= 0:
        return None, None, None
    per_epoch = loader.batches_per_epoch
    for window in windows:
        if window.fresh:
            ahead = window.count * (loader.prefetch_factor or 1) / 2
            left = ahead if per_epoch is None else max(per_epoch - window.iterations, 0)
            batches += min(ahead, left)
    return (
        sum(window.cpu_s for window in windows) / batches,
        sum(window.run_delay_s for window in windows) / batches,
        Counter(window.count for window in windows).most_common(1)[0][0],
    )


@dataclass(frozen=True)
class _Cpu:
    main_s: float | None
    process_cores: float | None
    system_pct: float | None


def _fold_cpu(steady: Sequence[IntervalRecord]) -> _Cpu:
    """CPU of plain training: intervals with a validation or a save are left out.

    Their process and its validation workers would pass for the step and for strangers.
    """
    calm = [
        record
        for record in steady
        if not record.ledger_s.get('validation')
        and not record.ledger_s.get('checkpoint_save')
    ]
    process_s = _sum_known(record.process_cpu_s for record in calm)
    wait_s = _sum_known(record.data_wait_cpu_s for record in calm)
    iterations = sum(record.iterations for record in calm)
    seconds = sum(record.duration_s for record in calm)
    main_s = None
    if process_s is not None and wait_s is not None and iterations:
        main_s = max(process_s - wait_s, 0.0) / iterations
    return _Cpu(
        main_s=main_s,
        process_cores=process_s / seconds
        if process_s is not None and seconds
        else None,
        system_pct=_weighted((r.system_cpu_pct, r.duration_s) for r in calm),
    )


def _external_cores(
    run: RunRecord, cpu: _Cpu, worker_cpu_s: float | None, iter_s: float | None
) -> float | None:
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


def _fold_gpu(steady: Sequence[IntervalRecord]) -> GpuWindow | None:
    sampled = [(record.gpu, record.duration_s) for record in steady if record.gpu]
    windows = [(gpu, seconds) for gpu, seconds in sampled if gpu.samples]
    if not windows:
        return None
    return GpuWindow(
        samples=sum(gpu.samples for gpu, _ in windows),
        util_pct=_weighted((gpu.util_pct, s) for gpu, s in windows),
        zero_pct=_weighted((gpu.zero_pct, s) for gpu, s in windows),
        util_std_pct=_weighted((gpu.util_std_pct, s) for gpu, s in windows),
        mem_used_bytes=_max_known(gpu.mem_used_bytes for gpu, _ in windows),
    )


def _weighted(pairs: Iterable[tuple[float | None, float]]) -> float | None:
    """Mean of the known figures, each weighted by its seconds."""
    known = [(value, seconds) for value, seconds in pairs if value is not None]
    total = math.fsum(seconds for _, seconds in known)
    if total <= 0:
        return None
    return math.fsum(value * seconds for value, seconds in known) / total


def _mean(values: Iterable[float], count: int) -> float | None:
    return math.fsum(values) / count if count else None


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.median(known) if known else None


def _sum_known(values: Iterable[_T | None]) -> _T | None:
    """Sum, or unknown as soon as one part of it is."""
    total: _T | None = None
    for value in values:
        if value is None:
            return None
        total = value if total is None else total + value
    return total


def _max_known(values: Iterable[_T | None]) -> _T | None:
    known = [value for value in values if value is not None]
    return max(known) if known else None
