"""Folds a run's intervals into the figures that judging needs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mmgpu_hooks.evidence.ledger_parts import PARTS
from mmgpu_hooks.evidence.summary_gpu import (
    fold_cards,
    fold_gpu,
    fold_gpu_idle,
    fold_imbalance,
    uuids_of_run,
)
from mmgpu_hooks.evidence.summary_host import fold_cpu, fold_external_cores, fold_host
from mmgpu_hooks.evidence.summary_loader import fold_loader, fold_worker_cpu
from mmgpu_hooks.evidence.summary_memory import fold_cuda_memory
from mmgpu_hooks.evidence.weights import max_known, mean, median, sum_all
from mmgpu_hooks.records import (
    EndRecord,
    HookCost,
    IntervalRecord,
    RunEvidence,
    RunRecord,
    RunSummary,
)


def fold_run(evidence: RunEvidence) -> RunSummary:
    """Fold one rank's evidence.

    The first interval holds lazy initialisation and is left out of the steady
    figures as soon as there are others. First waits of epochs hold the workers'
    start and are left out of ``data_wait_s``; what they took beyond a normal wait
    is in ``startup_s``, as is the rest of ``worker_startup``, but for the replay of a
    resumed run.

    Args:
        evidence: As read back, or as the hook holds it when training ends.
    """
    intervals = evidence.intervals
    end = evidence.end
    steady = steady_intervals(intervals)
    iterations = sum(record.iterations for record in steady)
    unknown = dict(evidence.run.unknown)
    unknown.update({off.source: off.reason for off in evidence.sources_off})
    wait_s = _steady_wait(steady)
    step_s = mean((record.step.total_s for record in steady), iterations)
    hooks_s = mean((record.ledger_s.get('hooks', 0.0) for record in steady), iterations)
    iter_s = None
    if wait_s is not None and step_s is not None and hooks_s is not None:
        iter_s = wait_s + step_s + hooks_s
    images = sum_all(record.images for record in steady)
    waits_s = sum(record.data_wait.total_s for record in steady)
    wait_cpu_s = sum_all(record.data_wait_cpu_s for record in steady)
    cpu = fold_cpu(steady)
    cpu_s, run_delay_s, workers = fold_worker_cpu(intervals, evidence.run.loader)
    idle_pct, idle_iterations = fold_gpu_idle(steady)
    cards = fold_cards(steady)
    ledger_s = end.ledger_s if end and end.ledger_s else _add_ledgers(intervals)
    return RunSummary(
        run=evidence.run,
        iterations=sum(record.iterations for record in intervals),
        duration_s=math.fsum(ledger_s.values()),
        ledger_s=ledger_s,
        status=end.status if end else 'killed',
        steady_iterations=iterations,
        data_wait_s=wait_s,
        data_wait_p95_s=median(record.data_wait.p95_s for record in steady),
        step_s=step_s,
        hooks_s=hooks_s,
        iter_s=iter_s,
        iter_p50_s=median(record.iter.p50_s for record in steady),
        iter_p95_s=median(record.iter.p95_s for record in steady),
        images_per_s=images / (iter_s * iterations) if images and iter_s else None,
        epoch_starts=sum(record.first_waits for record in intervals),
        startup_s=_startup(evidence.run, ledger_s, intervals, wait_s),
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
        external_cpu_cores=fold_external_cores(evidence.run, cpu, cpu_s, iter_s),
        process_rss_bytes=max_known(r.process_rss_bytes for r in intervals),
        batch_bytes=max_known(r.batch_bytes for r in intervals),
        batch_tensors=max_known(r.batch_tensors for r in intervals),
        gpu=fold_gpu(steady),
        gpu_mem_peak_bytes=max_known(r.gpu_mem_peak_bytes for r in intervals),
        gpu_mem_reserved_bytes=max_known(r.gpu_mem_reserved_bytes for r in intervals),
        saves=end.saves if end else sum(record.saves for record in intervals),
        unknown=unknown,
        notes=evidence.notes,
        hooks=_fold_hooks(end, intervals, steady),
        loader=fold_loader(intervals, steady),
        host=fold_host(intervals, steady),
        gpu_idle_pct=idle_pct,
        gpu_idle_iterations=idle_iterations,
        cards=cards,
        card_imbalance=fold_imbalance(cards, uuids_of_run(evidence.run, cards)),
        cuda_memory=fold_cuda_memory(intervals),
        model=evidence.model,
        largest_batch_pixels=max_known(r.largest_batch_pixels for r in intervals),
        most_boxes=max_known(r.most_boxes for r in intervals),
        save_records=evidence.save_records,
        save_aftermaths=evidence.save_aftermaths,
    )


def steady_intervals(intervals: Sequence[IntervalRecord]) -> Sequence[IntervalRecord]:
    """All but the first, which holds lazy initialisation, unless it is the only one."""
    return intervals[1:] if len(intervals) > 1 else intervals


def _fold_hooks(
    end: EndRecord | None,
    intervals: Sequence[IntervalRecord],
    steady: Sequence[IntervalRecord],
) -> dict[str, HookCost]:
    """Seconds of the whole run by class of hook; empty for an older file."""
    seconds = dict(end.hooks_s) if end and end.hooks_s else _add_hooks(intervals)
    calm = _add_hooks(steady)
    iterations = sum(record.iterations for record in steady)
    return {
        name: HookCost(
            seconds=total_s,
            iteration_s=calm.get(name, 0.0) / iterations if iterations else None,
        )
        for name, total_s in sorted(seconds.items(), key=lambda item: -item[1])
    }


def _add_hooks(intervals: Sequence[IntervalRecord]) -> dict[str, float]:
    total: dict[str, float] = {}
    for record in intervals:
        for name, seconds in record.hooks_s.items():
            total[name] = total.get(name, 0.0) + seconds
    return total


def _steady_wait(steady: Sequence[IntervalRecord]) -> float | None:
    """Mean wait over iterations that did not begin an epoch."""
    count = sum(record.iterations - record.first_waits for record in steady)
    if count <= 0:
        return None
    total = sum(record.data_wait.total_s - record.first_wait_s for record in steady)
    return max(total, 0.0) / count


def _startup(
    run: RunRecord,
    ledger_s: Mapping[str, float],
    intervals: Sequence[IntervalRecord],
    wait_s: float | None,
) -> float:
    booked_s = ledger_s.get('worker_startup')
    if booked_s is not None:
        # a resumed iteration-based loop draws its old batches again in there: no
        # setting of the loader spares that
        is_replay = run.loop == 'iter' and run.start_iteration > 0 and intervals
        replay_s = intervals[0].ledger_s.get('worker_startup', 0.0) if is_replay else 0
        return max(booked_s - replay_s, 0.0)
    # older evidence has it in the first waits
    first_s = sum(record.first_wait_s for record in intervals)
    starts = sum(record.first_waits for record in intervals)
    return max(first_s - starts * (wait_s or 0.0), 0.0)


def _add_ledgers(intervals: Sequence[IntervalRecord]) -> dict[str, float]:
    """Sum of each part that some interval has: older evidence lacks some."""
    there = {part for record in intervals for part in record.ledger_s}
    return {
        part: math.fsum([record.ledger_s.get(part, 0.0) for record in intervals])
        for part in PARTS
        if part in there
    }
