"""The CPU that plain training used: saves and validations are taken off."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from mmgpu_hooks.judge.columns import (
    Intervals,
    average,
    count_all,
    filled,
    sum_all,
    total,
)
from mmgpu_hooks.schema import RunRecord, SaveRecord, ValidationRecord

START_CPU_SHARE = 0.65
"""Of the time in which workers are started, and those of the epoch before are ended:
to fork is CPU and to join is waiting; 0.5 to 0.8 were seen."""

CALM_ITERATIONS = 20
"""Iterations in calm intervals from which the others are left out: a mean of fewer
swings by more than what saves and validations leave of an error."""

MOST_ASIDE = 0.1
"""Share of an interval in saves and validations of unknown CPU, up to which it stands
for plain training all the same."""

_E = TypeVar('_E', SaveRecord, ValidationRecord)


@dataclass(frozen=True)
class CpuFigures:
    """CPU of plain training."""

    main_s: float | None = None
    """Of the training process per iteration, its waits' part left out."""
    main_delay_s: float | None = None
    """Its main thread's wait for cores per iteration."""
    process_cores: float | None = None
    system_pct: float | None = None
    busy_cores: float | None = None
    """Of the host, by anyone; ``None`` where validations may be in it."""
    iterations: int = 0
    seconds: float = 0.0
    """Behind the figures, as the iterations; what was taken off is not in it."""
    ahead_s: float | None = None
    """CPU of the train loader's workers in what was taken off; ``None`` where only calm
    intervals were taken."""
    aside_pct: float | None = None
    """Share of the seconds that are saves and validations of unknown CPU."""
    unknown: str | None = None
    """Why there are no figures."""


class _Use(NamedTuple):
    """What a save or a validation used by the second, or in all."""

    cpu: float | None = 0.0
    run_delay: float | None = 0.0
    busy: float | None = 0.0
    """Cores of the host, by anyone."""
    workers: float | None = 0.0
    """Of the train loader."""


def find_cpu(
    run: RunRecord,
    steady: Intervals,
    saves: Sequence[SaveRecord],
    validations: Sequence[ValidationRecord],
) -> CpuFigures:
    """CPU of plain training.

    The process of a save and the workers of a validation would pass for the step and
    for strangers. So calm intervals are taken, which have neither. Where these are too
    few, as in short epochs that end with both, all intervals are, less what saves and
    validations themselves recorded: their mean use by the second, times their seconds
    in the ledger. Where they recorded none, the intervals of which they are a small
    part stand for training as they are, and ``aside_pct`` says how much of it they are.

    Args:
        run: Of the run.
        steady: Intervals without the warm-up.
        saves: All saves that were taken apart.
        validations: All validations of the run.
    """
    calm = steady.where(steady.calm())
    if count_all(calm.column('iterations')) >= CALM_ITERATIONS:
        return _subtract(run, calm, _Use(), 0.0)
    saved_s = filled(steady.column('ledger_s', 'checkpoint_save'))
    validated_s = filled(steady.column('ledger_s', 'validation'))
    used = _both(
        _used(total(saved_s), _within(steady, saves), _SAVE),
        _used(total(validated_s), _within(steady, validations), _VALIDATION),
    )
    aside_s = saved_s + validated_s
    if used.cpu is not None and len(steady):
        return _subtract(run, steady, used, total(aside_s))
    quiet = steady.where(aside_s <= MOST_ASIDE * steady.column('duration_s'))
    if total(quiet.column('iterations')):
        return _subtract(run, quiet, _Use(None, None, None, None), 0.0)
    if not len(steady):
        return CpuFigures(unknown='no interval was recorded')
    return CpuFigures(
        unknown='every interval holds a save or a validation, and what CPU they used '
        'was not recorded'
    )


def _subtract(
    run: RunRecord, intervals: Intervals, used: _Use, aside_s: float
) -> CpuFigures:
    """Figures of some intervals, less what was used aside in so many seconds.

    Of an unknown use, nothing is taken off.
    """
    process_s = sum_all(intervals.column('process_cpu_s'))
    if process_s is None:
        return CpuFigures(unknown='the CPU of the training process was not recorded')
    wait_s = sum_all(intervals.column('data_wait_cpu_s'))
    delay_s = sum_all(intervals.column('process_run_delay_s'))
    iterations = count_all(intervals.column('iterations'))
    durations_s = intervals.column('duration_s')
    whole_s = total(durations_s)
    seconds = max(whole_s - aside_s, 0.0)
    left_s = max(process_s - (used.cpu or 0.0), 0.0)
    system_pct = average(intervals.column('system_cpu_pct'), durations_s)
    logical, busy_cores = run.host.logical_cpus, None
    if system_pct is not None and logical and seconds and used.busy is not None:
        busy_s = max(system_pct / 100 * logical * whole_s - used.busy, 0.0)
        busy_cores = min(busy_s / seconds, float(logical))
        system_pct = 100 * busy_cores / logical
    # a wait for cores within saves and validations would pass for one of the step
    is_delay_told = not aside_s or used.run_delay is not None
    main_delay_s = None
    if delay_s is not None and iterations and is_delay_told:
        # starts of workers are no iterations: they have their part of it by their time
        startup_s = total(intervals.column('ledger_s', 'startup'))
        share = max(1.0 - startup_s / seconds, 0.0) if seconds else 1.0
        delay_s = max(delay_s - (used.run_delay or 0.0), 0.0)
        main_delay_s = share * delay_s / iterations
    main_s = None
    if wait_s is not None and iterations:
        main_s = max(left_s - wait_s - _start_cpu_s(intervals), 0.0) / iterations
    unknown_s = 0.0
    if used.cpu is None:
        unknown_s = total(intervals.column('ledger_s', 'checkpoint_save'))
        unknown_s += total(intervals.column('ledger_s', 'validation'))
    return CpuFigures(
        main_s=main_s,
        main_delay_s=main_delay_s,
        process_cores=left_s / seconds if seconds else None,
        system_pct=system_pct,
        busy_cores=busy_cores,
        iterations=iterations,
        seconds=seconds,
        ahead_s=used.workers if aside_s else None,
        aside_pct=100 * unknown_s / whole_s if unknown_s else None,
    )


def _within(intervals: Intervals, events: Sequence[_E]) -> Sequence[_E]:
    """Those since the first of some intervals began, if there are any."""
    if not len(intervals):
        return events
    began = (intervals.column('iteration') - intervals.column('iterations'))[0]
    return [one for one in events if one.iteration >= began] or events


def _used(
    seconds: float,
    events: Sequence[_E],
    figures: Mapping[str, Callable[[_E], float | None]],
) -> _Use:
    """What so many seconds used, at the mean rate of the events that tell it."""
    if seconds <= 0:
        return _Use()
    return _Use(
        **{
            name: _rate([(figure(one), one.wall_s) for one in events], seconds)
            for name, figure in figures.items()
        }
    )


def _rate(told: Sequence[tuple[float | None, float]], seconds: float) -> float | None:
    known = [(used, wall_s) for used, wall_s in told if used is not None]
    wall_s = math.fsum(wall_s for _, wall_s in known)
    return math.fsum(used for used, _ in known) / wall_s * seconds if wall_s else None


def _both(one: _Use, other: _Use) -> _Use:
    return _Use(*map(_sum, zip(one, other)))


def _sum(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return math.fsum(known) if len(known) == len(parts) else None


def _validation_busy(one: ValidationRecord) -> float | None:
    own_s = 0.0 if one.loader.num_workers == 0 else None
    if one.workers is not None and one.workers.count:
        own_s = one.workers.cpu_s
    return _sum((one.whole_cpu_s, own_s, one.train_workers_cpu_s, one.strangers_cpu_s))


_SAVE: Mapping[str, Callable[[SaveRecord], float | None]] = {
    'cpu': lambda one: one.cpu_s,
    'run_delay': lambda one: one.run_delay_s,
    'busy': lambda one: _sum((one.cpu_s, one.workers_cpu_s, one.strangers_cpu_s)),
    'workers': lambda one: one.workers_cpu_s,
}
_VALIDATION: Mapping[str, Callable[[ValidationRecord], float | None]] = {
    'cpu': lambda one: one.whole_cpu_s,
    'run_delay': lambda one: one.run_delay_s,
    'busy': _validation_busy,
    'workers': lambda one: one.train_workers_cpu_s,
}


def _start_cpu_s(intervals: Intervals) -> float:
    """CPU of the training process for starting workers, which is no part of a step.

    The first waits are booked with the starts, their CPU with the waits.
    """
    iterations = total(intervals.column('iterations'))
    firsts = total(intervals.column('first_waits'))
    starts_s = total(intervals.column('ledger_s', 'startup'))
    usual_s = total(intervals.column('ledger_s', 'data_wait')) / max(iterations, 1)
    waits_s = max(total(intervals.column('first_wait_s')) - firsts * usual_s, 0.0)
    return START_CPU_SHARE * max(starts_s - waits_s, 0.0)


def find_external_cores(
    run: RunRecord, cpu: CpuFigures, worker_cpu_s: float | None, iter_s: float | None
) -> float | None:
    """Cores that others used meanwhile; ``None`` when they cannot be told from ours."""
    if cpu.busy_cores is None or cpu.process_cores is None:
        return None
    worker_cores = 0.0
    if run.loader.num_workers != 0:
        if worker_cpu_s is None or not iter_s:
            return None
        worker_cores = worker_cpu_s / iter_s
        if cpu.ahead_s is not None:
            # batches made while training stood still were not made in these seconds
            made_s = max(worker_cpu_s * cpu.iterations - cpu.ahead_s, 0.0)
            worker_cores = made_s / cpu.seconds
    # the other ranks' part cannot be told from a stranger's
    if run.host.ranks_on_host > 1:
        return None
    return max(cpu.busy_cores - cpu.process_cores - worker_cores, 0.0)
