"""The CPU that plain training used: saves and validations are taken off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mmgpu_hooks.judge.columns import (
    Column,
    Intervals,
    average,
    count_all,
    quiet,
    total,
)
from mmgpu_hooks.schema.recorded import RunRecord, SaveRecord, ValidationRecord

START_CPU_SHARE = 0.65
"""Of the time in which workers are started, and those of the epoch before are ended:
to fork is CPU and to join is waiting; 0.5 to 0.8 were seen."""

CALM_ITERATIONS = 20
"""Iterations in calm intervals from which the others are left out: a mean of fewer
swings by more than what saves and validations leave of an error."""

_NAN = float('nan')
_FIRSTS = 'iterations', 'first_waits', 'first_wait_s'


class TrainingCpu(NamedTuple):
    """CPU of plain training; ``None`` is unknown."""

    main_s: float | None = None
    """Of the training process per iteration, its waits' part left out."""
    main_delay_s: float | None = None
    """Its main thread's wait for cores per iteration."""
    process_cores: float | None = None
    system_pct: float | None = None
    external_cores: float | None = None
    """Cores of the host that others used."""
    unknown: str | None = None
    """Why there are no figures."""


@quiet
def find_cpu(
    run: RunRecord,
    steady: Intervals,
    saves: Sequence[SaveRecord],
    validations: Sequence[ValidationRecord],
    worker_s: float | None,
    iter_s: float | None,
) -> TrainingCpu:
    """CPU of plain training.

    The process of a save and the workers of a validation would pass for the step and
    for other programs. So calm intervals are taken, which have neither. Where these are
    too few, as in short epochs that end with both, all intervals are, less what saves
    and validations themselves recorded: their mean use by the second, times their
    seconds in the ledger.

    Args:
        run: Of the run.
        steady: Intervals without the warm-up.
        saves: All saves of the run.
        validations: All validations of the run.
        worker_s: CPU of the train loader's workers per batch.
        iter_s: Length of an iteration.
    """
    chosen, aside_s, used = steady.where(steady.calm()), 0.0, np.zeros(4)
    if count_all(chosen.column('iterations')) < CALM_ITERATIONS:
        if not len(steady):
            return TrainingCpu(unknown='no interval was recorded')
        chosen = steady
        for part, some in (('checkpoint_save', saves), ('validation', validations)):
            seconds = total(steady.column('ledger_s', part))
            used, aside_s = used + _use(some, seconds), aside_s + seconds
        if np.isnan(used[0]):
            return TrainingCpu(
                unknown='too few intervals hold neither a save nor a validation, and '
                'what CPU those used was not recorded'
            )
    return _subtract(run, chosen, used, aside_s, worker_s, iter_s)


def _subtract(
    run: RunRecord,
    intervals: Intervals,
    used: Column,
    aside_s: float,
    worker_s: float | None,
    iter_s: float | None,
) -> TrainingCpu:
    """Figures of some intervals, less what was used aside in so many seconds."""
    column = intervals.column
    if np.isnan(column('process_cpu_s')).any():
        return TrainingCpu(unknown='the CPU of the training process was not recorded')
    aside_cpu_s, aside_delay_s, ahead_s, aside_busy_s = used.tolist()
    iterations = count_all(column('iterations')) or _NAN
    whole_s = total(column('duration_s'))
    seconds = max(whole_s - aside_s, 0.0)
    process_s = max(total(column('process_cpu_s')) - aside_cpu_s, 0.0)
    # a wait for cores within saves and validations would pass for one of the step, and
    # starts of workers are no iterations: they have their part of it by their time
    startup_s = total(column('ledger_s', 'startup'))
    share = max(1.0 - startup_s / seconds, 0.0) if seconds else 1.0
    delay_s = _whole(column('process_run_delay_s')) - aside_delay_s
    main_s = process_s - _whole(column('data_wait_cpu_s')) - _start_cpu_s(intervals)
    cores = process_s / seconds if seconds else _NAN
    system_pct = average(column('system_cpu_pct'), column('duration_s'))
    logical, external = run.host.logical_cpus or 0, _NAN
    busy_s = (system_pct or 0.0) / 100 * logical * whole_s - aside_busy_s
    if system_pct is not None and logical and seconds and not np.isnan(busy_s):
        busy = min(max(busy_s, 0.0) / seconds, float(logical))
        system_pct = 100 * busy / logical
        workers = worker_s / iter_s if worker_s is not None and iter_s else _NAN
        if aside_s and worker_s is not None and not np.isnan(ahead_s):
            # batches made while training stood still were not made in these seconds
            workers = max(worker_s * iterations - ahead_s, 0.0) / seconds
        workers = 0.0 if run.loader.num_workers == 0 else workers
        # the other ranks' part cannot be distinguished from another program's
        external = busy - cores - workers if run.host.ranks_on_host <= 1 else _NAN
    return TrainingCpu(
        main_s=_known(main_s / iterations),
        main_delay_s=_known(share * delay_s / iterations),
        process_cores=_known(cores),
        system_pct=system_pct,
        external_cores=_known(external),
    )


def _known(figure: float) -> float | None:
    return None if np.isnan(figure) else max(figure, 0.0)


def _whole(column: Column) -> float:
    """Sum, unknown as soon as one part of it is."""
    return _NAN if np.isnan(column).any() else total(column)


def _use(events: Sequence[SaveRecord | ValidationRecord], seconds: float) -> Column:
    """What so many seconds used, at the mean rate of the events that tell it.

    Returns:
        CPU of the training process, its main thread's wait for cores, CPU of the train
        loader's workers, CPU of anybody on the host; NaN where it is unknown.
    """
    if seconds <= 0.0:
        return np.zeros(4)
    rows: list[list[float | None]] = []
    mine: list[float | None]
    for one in events:
        if isinstance(one, SaveRecord):
            mine = [one.cpu_s, one.run_delay_s, one.workers_cpu_s, 0.0]
        else:
            own_s = 0.0 if one.loader.num_workers == 0 else None
            if one.workers is not None and one.workers.count:
                own_s = one.workers.cpu_s
            mine = [one.whole_cpu_s, one.run_delay_s, one.train_workers_cpu_s, own_s]
        rows.append([one.wall_s, *mine, one.other_cpu_s])
    wall_s, cpu_s, delay_s, workers_s, *others_s = (
        np.array(rows, dtype=np.float64).reshape(-1, 6).T
    )
    used = np.array([cpu_s, delay_s, workers_s, cpu_s + workers_s + sum(others_s)])
    told_s = np.where(np.isnan(used), 0.0, wall_s).sum(axis=1)
    rates: Column = np.nansum(used, axis=1) / np.where(told_s > 0, told_s, np.nan)
    return rates * seconds


def _start_cpu_s(intervals: Intervals) -> float:
    """CPU of the training process for starting workers, which is no part of a step.

    The first waits are booked with the starts, their CPU with the waits.
    """
    sums = {field: total(intervals.column(field)) for field in _FIRSTS}
    usual_s = total(intervals.column('ledger_s', 'data_wait'))
    usual_s *= sums['first_waits'] / max(sums['iterations'], 1)
    starts_s = total(intervals.column('ledger_s', 'startup'))
    return START_CPU_SHARE * max(
        starts_s - max(sums['first_wait_s'] - usual_s, 0.0), 0.0
    )
