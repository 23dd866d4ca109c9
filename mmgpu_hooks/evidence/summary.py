"""Folds a run's intervals into the figures that judging needs."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mmgpu_hooks.evidence.interval_table import IntervalTable
from mmgpu_hooks.evidence.ledger_parts import PARTS
from mmgpu_hooks.evidence.pooled_percentile import pool_p95
from mmgpu_hooks.evidence.summary_cpu import fold_cpu, fold_external_cores
from mmgpu_hooks.evidence.summary_gpu import (
    fold_cards,
    fold_gpu,
    fold_gpu_idle,
    fold_imbalance,
    uuids_of_run,
)
from mmgpu_hooks.evidence.summary_host import fold_host
from mmgpu_hooks.evidence.summary_loader import fold_loader, fold_worker_cpu
from mmgpu_hooks.evidence.summary_memory import fold_cuda_memory
from mmgpu_hooks.evidence.tabulation import tabulate
from mmgpu_hooks.evidence.weights import max_known, mean, median, sum_all, total
from mmgpu_hooks.schema import (
    EndRecord,
    HookCost,
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
    table = tabulate(evidence.intervals)
    end = evidence.end
    steady = steady_intervals(table)
    iterations = total(steady.ints('iterations'))
    unknown = dict(evidence.run.unknown)
    unknown.update({off.source: off.reason for off in evidence.sources_off})
    wait_s = _steady_wait(steady)
    step_s = mean(steady.floats('step', 'total_s'), iterations)
    hooks_s = mean(steady.floats('ledger_s', 'hooks'), iterations)
    iter_s = None
    if wait_s is not None and step_s is not None and hooks_s is not None:
        iter_s = wait_s + step_s + hooks_s
    images = sum_all(steady.ints('images'))
    waits_s = total(steady.floats('data_wait', 'total_s'))
    wait_cpu_s = sum_all(steady.floats('data_wait_cpu_s'))
    cpu = fold_cpu(evidence.run, steady, evidence.save_records, evidence.validations)
    if cpu.untold is not None:
        unknown.setdefault('CPU', cpu.untold)
    cpu_s, run_delay_s, workers = fold_worker_cpu(table, evidence.run.loader)
    idle_pct, idle_iterations = fold_gpu_idle(steady)
    cards = fold_cards(steady)
    ledger_s = end.ledger_s if end and end.ledger_s else _add_ledgers(table)
    return RunSummary(
        run=evidence.run,
        iterations=total(table.ints('iterations')),
        duration_s=math.fsum(ledger_s.values()),
        ledger_s=ledger_s,
        status=end.status if end else 'killed',
        steady_iterations=iterations,
        data_wait_s=wait_s,
        data_wait_p95_s=pool_p95(steady, 'data_wait', count='iterations'),
        data_wait_usual_p95_s=median(steady.floats('data_wait', 'p95_s')),
        step_s=step_s,
        hooks_s=hooks_s,
        iter_s=iter_s,
        iter_p50_s=median(steady.floats('iter', 'p50_s')),
        iter_p95_s=pool_p95(steady, 'iter', count='iterations'),
        images_per_s=images / (iter_s * iterations) if images and iter_s else None,
        epoch_starts=total(table.ints('first_waits')),
        startup_s=_startup(evidence.run, ledger_s, table, wait_s),
        data_wait_cpu_share=(
            min(wait_cpu_s / waits_s, 1.0)
            if wait_cpu_s is not None and waits_s > 0
            else None
        ),
        main_cpu_s=cpu.main_s,
        main_run_delay_s=cpu.main_delay_s,
        worker_cpu_s=cpu_s,
        worker_run_delay_s=run_delay_s,
        worker_count=workers,
        process_cpu_cores=cpu.process_cores,
        system_cpu_pct=cpu.system_pct,
        cpu_aside_pct=cpu.aside_pct,
        external_cpu_cores=fold_external_cores(evidence.run, cpu, cpu_s, iter_s),
        process_rss_bytes=max_known(table.ints('process_rss_bytes')),
        batch_bytes=max_known(table.ints('batch_bytes')),
        batch_tensors=max_known(table.ints('batch_tensors')),
        gpu=fold_gpu(steady),
        gpu_mem_peak_bytes=max_known(table.ints('gpu_mem_peak_bytes')),
        gpu_mem_reserved_bytes=max_known(table.ints('gpu_mem_reserved_bytes')),
        saves=end.saves if end else total(table.ints('saves')),
        unknown=unknown,
        notes=evidence.notes,
        hooks=_fold_hooks(end, table, steady),
        loader=fold_loader(table, steady),
        host=fold_host(table, steady),
        gpu_idle_pct=idle_pct,
        gpu_idle_iterations=idle_iterations,
        cards=cards,
        card_imbalance=fold_imbalance(cards, uuids_of_run(evidence.run, cards)),
        cuda_memory=fold_cuda_memory(table),
        model=evidence.model,
        largest_batch_pixels=max_known(table.ints('largest_batch_pixels')),
        most_boxes=max_known(table.ints('most_boxes')),
        save_records=evidence.save_records,
        save_aftermaths=evidence.save_aftermaths,
        validations=evidence.validations,
    )


def steady_intervals(table: IntervalTable) -> IntervalTable:
    """All but the first, which holds lazy initialisation, unless it is the only one."""
    return table.after(1) if len(table) > 1 else table


def _fold_hooks(
    end: EndRecord | None, table: IntervalTable, steady: IntervalTable
) -> dict[str, HookCost]:
    """Seconds of the whole run by class of hook; empty for an older file."""
    seconds = dict(end.hooks_s) if end and end.hooks_s else _add_up(table, 'hooks_s')
    calm = _add_up(steady, 'hooks_s')
    iterations = total(steady.ints('iterations'))
    return {
        name: HookCost(
            seconds=total_s,
            iteration_s=calm.get(name, 0.0) / iterations if iterations else None,
        )
        for name, total_s in sorted(seconds.items(), key=lambda item: -item[1])
    }


def _add_up(table: IntervalTable, field: str) -> dict[str, float]:
    """Sum by name, of the names that some interval has."""
    columns = ((name, table.floats(field, name)) for name in table.names(field))
    return {name: total(column) for name, column in columns if column.is_known}


def _steady_wait(steady: IntervalTable) -> float | None:
    """Mean wait over iterations that did not begin an epoch."""
    count = total(steady.ints('iterations')) - total(steady.ints('first_waits'))
    if count <= 0:
        return None
    waits_s, first_s = (
        steady.floats('data_wait', 'total_s'),
        steady.floats('first_wait_s'),
    )
    return max(total(waits_s) - total(first_s), 0.0) / count


def _startup(
    run: RunRecord,
    ledger_s: Mapping[str, float],
    table: IntervalTable,
    wait_s: float | None,
) -> float:
    booked_s = ledger_s.get('worker_startup')
    if booked_s is not None:
        # a resumed iteration-based loop draws its old batches again in there: no
        # setting of the loader spares that
        is_replay = run.loop == 'iter' and run.start_iteration > 0 and len(table) > 0
        startups_s = table.floats('ledger_s', 'worker_startup').filled()
        return max(booked_s - (startups_s[0] if is_replay else 0.0), 0.0)
    # older evidence has it in the first waits
    first_s = total(table.floats('first_wait_s'))
    starts = total(table.ints('first_waits'))
    return max(first_s - starts * (wait_s or 0.0), 0.0)


def _add_ledgers(table: IntervalTable) -> dict[str, float]:
    """Sum of each part that some interval has: older evidence lacks some."""
    sums = _add_up(table, 'ledger_s')
    return {part: sums[part] for part in PARTS if part in sums}
