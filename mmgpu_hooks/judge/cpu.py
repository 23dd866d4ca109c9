"""The CPU that plain training used, and threads inside the loader's workers. Pure.

Of plain training saves and validations are taken off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.columns import (
    Column,
    Intervals,
    average,
    count_all,
    largest,
    quiet,
    sum_known,
    total,
)
from mmgpu_hooks.schema.recorded import SaveRecord, ValidationRecord

if TYPE_CHECKING:
    from mmgpu_hooks.judge.run import Run

START_CPU_SHARE = 0.65
"""Of the time in which workers are started, and those of the epoch before are ended:
to fork is CPU and to join is waiting; 0.5 to 0.8 were seen."""

CALM_ITERATIONS = 20
"""Iterations in calm intervals from which the others are left out: a mean of fewer
swings by more than what saves and validations leave of an error."""

_NAN = float('nan')
_UNKNOWN = 'CPU of the training process, or of its saves and validations, not recorded'


def are_workers_many(workers: int, cores: float) -> bool:
    """True if workers outnumber the usable cores of their rank."""
    return workers > max(cores, 1)


class TrainingCpu(NamedTuple):
    """CPU of plain training; ``None`` is unknown."""

    main_s: float | None = None
    """Of the training process per iteration, its waits' part left out."""
    main_delay_s: float | None = None
    """Its main thread's wait for cores per iteration."""
    process_cores: float | None = None
    external_cores: float | None = None
    """Cores of the host that other programs than this training used."""
    external_unknown: str | None = None
    """Why that is not known on a host with several ranks."""
    unknown: str | None = None
    """Why there are no figures."""


@quiet
def find_cpu(run: Run) -> TrainingCpu:
    """CPU of plain training.

    The process of a save and the workers of a validation would pass for the step and
    for other programs. So calm intervals are taken, which have neither. Where these are
    too few, as in short epochs that end with both, all intervals are, less what saves
    and validations themselves recorded: their mean use by the second, times their
    seconds in the ledger.
    """
    steady, aside_s, used = run.steady, 0.0, np.zeros(4)
    chosen = steady.where(steady.calm())
    if count_all(chosen.column('iterations')) < CALM_ITERATIONS:
        chosen = steady
        saves_s = total(steady.column('ledger_s', 'checkpoint_save'))
        validations_s = total(steady.column('ledger_s', 'validation'))
        used = _use(run.save_records, saves_s) + _use(run.validations, validations_s)
        aside_s = saves_s + validations_s
    return _subtract(run, chosen, used, aside_s)


def _subtract(run: Run, some: Intervals, used: Column, aside_s: float) -> TrainingCpu:
    """Figures of some intervals, less what was used aside in so many seconds."""
    column, logical = some.column, run.run.host.logical_cpus or _NAN
    iterations = count_all(column('iterations')) or _NAN
    whole_s = total(column('duration_s'))
    seconds = max(whole_s - aside_s, 0.0) or _NAN
    process_s = max(float(column('process_cpu_s').sum() - used[0]), 0.0)
    # a wait for cores within saves and validations would pass for one of the step, and
    # starts of workers are no iterations: they have their part of it by their time
    share = max(1.0 - total(column('ledger_s', 'startup')) / seconds, 0.0)
    delay_s = share * float(column('process_run_delay_s').sum() - used[1])
    main_s = process_s - float(column('data_wait_cpu_s').sum()) - _start_cpu_s(some)
    busy_pct = average(column('system_cpu_pct'), column('duration_s'))
    busy_s = _NAN if busy_pct is None else busy_pct / 100 * logical * whole_s
    busy = float(np.clip((busy_s - used[3]) / seconds, 0.0, logical))
    worker_s = 0.0 if run.run.loader.num_workers == 0 else run.worker_cpu_s
    workers = _NAN if worker_s is None or not run.iter_s else worker_s / run.iter_s
    if aside_s and worker_s is not None and not np.isnan(used[2]):
        # batches made while training stood still were not made in these seconds
        workers = max(worker_s * iterations - float(used[2]), 0.0) / seconds
    cores = process_s / seconds
    external, why = busy - cores - workers, None
    if run.run.host.ranks > 1:
        # what is the other ranks' stands in their own evidence
        found = find_external_cores(run)
        external, why = (_NAN, found) if isinstance(found, str) else (found, None)
    return TrainingCpu(
        main_s=_known(main_s / iterations),
        main_delay_s=_known(delay_s / iterations),
        process_cores=_known(cores),
        external_cores=_known(external),
        external_unknown=why,
        unknown=_UNKNOWN if np.isnan(main_s / iterations) else None,
    )


def find_external_cores(run: Run) -> float | str:
    """Cores that programs other than the ranks used, of a host with several ranks.

    The busy share of the host less what each rank, its loader's workers and those of
    its validations used, over the time in which all of them recorded intervals.

    Args:
        run: One of the ranks; it knows the others.

    Returns:
        The cores, or a sentence that says what is missing for them.
    """
    host, expected = run.run.hostname, run.run.host.ranks
    # evidence without a name of the host is of one host, if all ranks are on it
    is_named = host is not None or run.run.world_size == expected
    same = [one for one in run.other_ranks if is_named and one.run.hostname == host]
    ranks = [run, *same]
    if len(ranks) != expected:
        return (
            'what other programs used needs the evidence of all '
            f'{expected} ranks on the host, and {len(ranks)} can be read together'
        )
    begin_s = max(_times_s(rank)[0].min(initial=np.inf) for rank in ranks)
    end_s = min(_times_s(rank)[1].max(initial=-np.inf) for rank in ranks)
    busy, used = list[float](), 0.0
    for rank in ranks:
        begins_s, ends_s = _times_s(rank)
        # one that reaches out by less than half of it is inside
        middles_s = (begins_s + ends_s) / 2
        shared = rank.steady.where((middles_s >= begin_s) & (middles_s <= end_s))
        if not len(shared):
            return 'the ranks on the host were not measured at the same time'
        busy_pct = average(shared.column('system_cpu_pct'), shared.column('duration_s'))
        if busy_pct is not None:
            busy.append(busy_pct / 100 * (rank.run.host.logical_cpus or _NAN))
        used += _used_cores(rank, shared)
    if not busy or np.isnan(used):
        return 'the CPU of a rank, of its workers or of the host was not recorded'
    return max(float(np.mean(busy)) - used, 0.0)


def _times_s(run: Run) -> tuple[Column, Column]:
    """When its steady intervals began and ended, by the clock of the host."""
    ends_s = run.run.started_unix_s + run.steady.column('elapsed_s')
    return ends_s - run.steady.column('duration_s'), ends_s


def _used_cores(run: Run, some: Intervals) -> float:
    """Cores that one rank used in some intervals, workers included; NaN is unknown."""
    batch_s = 0.0 if run.run.loader.num_workers == 0 else run.worker_cpu_s
    cpu_s = float(some.column('process_cpu_s').sum())
    cpu_s += count_all(some.column('iterations')) * (
        _NAN if batch_s is None else batch_s
    )
    validations_s = total(some.column('ledger_s', 'validation'))
    if validations_s > 0:
        own = [(one.wall_s, _used(one)[3]) for one in run.validations]
        wall_s, own_s = np.array(own, dtype=np.float64).reshape(-1, 2).T
        rate = own_s.sum() / wall_s.sum() if wall_s.sum() > 0 else _NAN
        cpu_s += float(rate) * validations_s
    return cpu_s / (total(some.column('duration_s')) or _NAN)


def _known(figure: float) -> float | None:
    return None if np.isnan(figure) else max(figure, 0.0)


def _use(events: Sequence[SaveRecord | ValidationRecord], seconds: float) -> Column:
    """What so many seconds used, at the mean rate of the events that show it.

    Returns:
        CPU of the training process, its main thread's wait for cores, CPU of the train
        loader's workers, CPU of all on the host; NaN where it is unknown.
    """
    if seconds <= 0.0:
        return np.zeros(4)
    rows = [[one.wall_s, *_used(one), one.other_cpu_s] for one in events]
    wall_s, cpu_s, delay_s, workers_s, *others_s = (
        np.array(rows, dtype=np.float64).reshape(-1, 6).T
    )
    used = np.array([cpu_s, delay_s, workers_s, cpu_s + workers_s + sum(others_s)])
    known_s = np.where(np.isnan(used), 0.0, wall_s).sum(axis=1)
    rates: Column = np.nansum(used, axis=1) / np.where(known_s > 0, known_s, np.nan)
    return rates * seconds


def _used(one: SaveRecord | ValidationRecord) -> list[float | None]:
    """The first three of `_use`, and the CPU of a validation's own workers."""
    if isinstance(one, SaveRecord):
        return [one.cpu_s, one.run_delay_s, one.workers_cpu_s, 0.0]
    own_s = 0.0 if one.loader.num_workers == 0 else None
    if one.workers is not None and one.workers.count:
        own_s = one.workers.cpu_s
    return [one.whole_cpu_s, one.run_delay_s, one.train_workers_cpu_s, own_s]


def _start_cpu_s(some: Intervals) -> float:
    """CPU of the training process for starting workers, which is no part of a step.

    The first waits are booked with the starts, their CPU with the waits.
    """
    count = max(total(some.column('iterations')), 1)
    usual_s = total(some.column('ledger_s', 'data_wait')) / count
    firsts_s = usual_s * total(some.column('first_waits'))
    beyond_s = max(total(some.column('first_wait_s')) - firsts_s, 0.0)
    starts_s = total(some.column('ledger_s', 'startup'))
    return START_CPU_SHARE * max(starts_s - beyond_s, 0.0)


@dataclass(frozen=True)
class WorkerThreads:
    """Of a run with workers whose CPU and waits for cores were read."""

    workers: int
    threads: int
    """Most that one worker had, PyTorch's own included."""
    cores: float
    """That this rank may use."""
    cpu_s: float
    """Of a worker for one batch, all its threads."""
    delay_s: float
    """What its main thread waited for a core, per batch."""
    share: float | None
    """Of ``cpu_s``, what neither the main thread used nor those that send batches;
    ``None`` where the latter were not measured."""
    opencv: int | None
    """Threads that OpenCV says it uses in a worker."""

    @property
    def is_crowd(self) -> bool:
        """True if they are more than the cores, and wait for them."""
        waits = self.delay_s / (self.cpu_s + self.delay_s)
        return (
            self.threads > thresholds.OWN_THREADS
            and self.workers * self.threads > self.cores
            and waits >= thresholds.RUN_DELAY_PROBLEM
        )

    @property
    def is_thrash(self) -> bool:
        """True if threads of the workers are worth a word."""
        return self.is_crowd and (self.share or 0.0) >= thresholds.THREADS_NOTICE


def find_threads(run: Run) -> WorkerThreads | None:
    """``None`` where there are no workers, or they do not show it."""
    workers, cores = run.run.loader.num_workers, run.run.host.usable_cores
    threads = largest(run.column('worker_threads'))
    cpu_s, delay_s = run.worker_cpu_s, run.worker_run_delay_s
    beside_s = sum_known(run.steady.column('workers.thread_cpu_s'))
    if not workers or not threads or not cores or not cpu_s or delay_s is None:
        return None
    if beside_s is None or not run.steady_iterations:
        return None
    sent_s = run.loader.sent_cpu_s if run.loader else None
    share = None
    if sent_s is not None:
        share = max(beside_s / run.steady_iterations - sent_s, 0.0) / cpu_s
    opencv = run.loader.opencv_threads if run.loader else None
    return WorkerThreads(workers, threads, cores, cpu_s, delay_s, share, opencv)
