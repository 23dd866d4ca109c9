"""The CPU that plain training used: saves and validations are taken off."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mmgpu_hooks.judge.columns import Intervals, average, count_all, sum_all, total
from mmgpu_hooks.schema import RunRecord, SaveRecord, ValidationRecord

START_CPU_SHARE = 0.65
"""Of the time in which workers are started, and those of the epoch before are ended:
to fork is CPU and to join is waiting; 0.5 to 0.8 were seen."""

CALM_ITERATIONS = 20
"""Iterations in calm intervals from which the others are left out: a mean of fewer
swings by more than what saves and validations leave of an error."""


@dataclass(frozen=True)
class TrainingCpu:
    """CPU of plain training."""

    main_s: float | None = None
    """Of the training process per iteration, its waits' part left out."""
    main_delay_s: float | None = None
    """Its main thread's wait for cores per iteration."""
    process_cores: float | None = None
    system_pct: float | None = None
    busy_cores: float | None = None
    """Of the host, by anyone."""
    iterations: int = 0
    seconds: float = 0.0
    """Behind the figures, as the iterations; what was taken off is not in it."""
    ahead_s: float | None = None
    """CPU of the train loader's workers in what was taken off; ``None`` when unknown or
    nothing was."""
    unknown: str | None = None
    """Why there are no figures."""


def _busy(one: ValidationRecord) -> float | None:
    own_s = 0.0 if one.loader.num_workers == 0 else None
    if one.workers is not None and one.workers.count:
        own_s = one.workers.cpu_s
    return _sum(one.whole_cpu_s, own_s, one.train_workers_cpu_s, one.strangers_cpu_s)


_Read = Callable[[Any], 'float | None']
_ASIDE: dict[str, tuple[_Read, _Read]] = {
    'cpu': (lambda save: save.cpu_s, lambda one: one.whole_cpu_s),
    'run_delay': (lambda save: save.run_delay_s, lambda one: one.run_delay_s),
    'busy': (
        lambda save: _sum(save.cpu_s, save.workers_cpu_s, save.strangers_cpu_s),
        _busy,
    ),
    'workers': (lambda save: save.workers_cpu_s, lambda one: one.train_workers_cpu_s),
}
"""What saves and validations used: the training process, its wait for cores, anyone on
the host, the train loader's workers."""


def find_cpu(
    run: RunRecord,
    steady: Intervals,
    saves: Sequence[SaveRecord],
    validations: Sequence[ValidationRecord],
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
    """
    calm = steady.where(steady.calm())
    if count_all(calm.column('iterations')) >= CALM_ITERATIONS:
        return _subtract(run, calm, dict.fromkeys(_ASIDE, 0.0), 0.0)
    saved_s = total(steady.column('ledger_s', 'checkpoint_save'))
    validated_s = total(steady.column('ledger_s', 'validation'))
    used = {
        name: _sum(
            _scale(saves, of_save, saved_s),
            _scale(validations, of_validation, validated_s),
        )
        for name, (of_save, of_validation) in _ASIDE.items()
    }
    if not len(steady):
        return TrainingCpu(unknown='no interval was recorded')
    if used['cpu'] is None:
        return TrainingCpu(
            unknown='too few intervals hold neither a save nor a validation, and what '
            'CPU those used was not recorded'
        )
    return _subtract(run, steady, used, saved_s + validated_s)


def _scale(events: Sequence[Any], read: _Read, seconds: float) -> float | None:
    """What so many seconds used, at the mean rate of the events that tell it."""
    if seconds <= 0:
        return 0.0
    known = [(used, e.wall_s) for e in events if (used := read(e)) is not None]
    wall_s = math.fsum(wall_s for _, wall_s in known)
    return math.fsum(used for used, _ in known) / wall_s * seconds if wall_s else None


def _sum(*parts: float | None) -> float | None:
    known = [part for part in parts if part is not None]
    return math.fsum(known) if len(known) == len(parts) else None


def _subtract(
    run: RunRecord, intervals: Intervals, used: dict[str, float | None], aside_s: float
) -> TrainingCpu:
    """Figures of some intervals, less what was used aside in so many seconds."""
    process_s = sum_all(intervals.column('process_cpu_s'))
    if process_s is None:
        return TrainingCpu(unknown='the CPU of the training process was not recorded')
    iterations = count_all(intervals.column('iterations'))
    whole_s = total(intervals.column('duration_s'))
    seconds = max(whole_s - aside_s, 0.0)
    left_s = max(process_s - (used['cpu'] or 0.0), 0.0)
    system_pct = average(
        intervals.column('system_cpu_pct'), intervals.column('duration_s')
    )
    logical, busy_cores = run.host.logical_cpus, None
    if system_pct is not None and logical and seconds and used['busy'] is not None:
        busy_s = max(system_pct / 100 * logical * whole_s - used['busy'], 0.0)
        busy_cores = min(busy_s / seconds, float(logical))
        system_pct = 100 * busy_cores / logical
    wait_s = sum_all(intervals.column('data_wait_cpu_s'))
    main_s = main_delay_s = None
    if wait_s is not None and iterations:
        main_s = max(left_s - wait_s - _start_cpu_s(intervals), 0.0) / iterations
    delay_s = sum_all(intervals.column('process_run_delay_s'))
    # a wait for cores within saves and validations would pass for one of the step
    if delay_s is not None and used['run_delay'] is not None and iterations:
        # starts of workers are no iterations: they have their part of it by their time
        startup_s = total(intervals.column('ledger_s', 'startup'))
        share = max(1.0 - startup_s / seconds, 0.0) if seconds else 1.0
        main_delay_s = share * max(delay_s - used['run_delay'], 0.0) / iterations
    return TrainingCpu(
        main_s=main_s,
        main_delay_s=main_delay_s,
        process_cores=left_s / seconds if seconds else None,
        system_pct=system_pct,
        busy_cores=busy_cores,
        iterations=iterations,
        seconds=seconds,
        ahead_s=used['workers'] if aside_s else None,
    )


def _start_cpu_s(intervals: Intervals) -> float:
    """CPU of the training process for starting workers, which is no part of a step.

    The first waits are booked with the starts, their CPU with the waits.
    """
    iterations = total(intervals.column('iterations'))
    usual_s = total(intervals.column('ledger_s', 'data_wait')) / max(iterations, 1)
    firsts = total(intervals.column('first_waits'))
    waits_s = max(total(intervals.column('first_wait_s')) - firsts * usual_s, 0.0)
    starts_s = total(intervals.column('ledger_s', 'startup'))
    return START_CPU_SHARE * max(starts_s - waits_s, 0.0)


def find_external_cores(
    run: RunRecord, cpu: TrainingCpu, worker_cpu_s: float | None, iter_s: float | None
) -> float | None:
    """Cores that others used meanwhile; ``None`` when they are unknown."""
    worker_cores = 0.0
    # the other ranks' part cannot be distinguished from another program's
    busy, own = cpu.busy_cores, cpu.process_cores
    if run.host.ranks_on_host > 1 or busy is None or own is None:
        return None
    if run.loader.num_workers != 0:
        if worker_cpu_s is None or not iter_s:
            return None
        worker_cores = worker_cpu_s / iter_s
        if cpu.ahead_s is not None:
            # batches made while training stood still were not made in these seconds
            made_s = max(worker_cpu_s * cpu.iterations - cpu.ahead_s, 0.0)
            worker_cores = made_s / cpu.seconds
    return max(busy - own - worker_cores, 0.0)
