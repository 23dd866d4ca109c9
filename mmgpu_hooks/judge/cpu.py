"""Divides CPU time among a training, its loader workers and other programs; no I/O.

CPU of saves and validations is taken off plain training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.columns import (
    Column,
    Intervals,
    average,
    count_all,
    quiet,
    total,
)
from mmgpu_hooks.schema.recorded import RunRecord, SaveRecord, ValidationRecord
from mmgpu_hooks.schema.text import Text, phrase

START_CPU_SHARE = 0.65
"""Share (0 to 1) of the time for starting and ending workers that is CPU time.

To fork is CPU and to join is waiting; 0.5 to 0.8 were seen.
"""

CALM_ITERATIONS = 20
"""Smallest number of iterations without save or validation to average CPU use over.

The others are then left out: a mean of fewer swings by more than what saves and
validations leave of an error.
"""

_NAN = float('nan')
_UNKNOWN = phrase(
    'CPU of the training process, or of its saves and validations, not recorded'
)


def are_workers_many(workers: int, cores: float) -> bool:
    """True if a rank has more loader workers than cores that it may use."""
    return workers > max(cores, 1)


class TrainingCpu(NamedTuple):
    """CPU seconds per iteration of a training, without saves and validations."""

    main_s: float | None = None
    """CPU seconds of the training process per iteration, outside its data waits."""
    main_delay_s: float | None = None
    """Seconds per iteration that the training's main thread waited for cores."""
    process_cores: float | None = None
    external_cores: float | None = None
    """Mean number of the host's cores that programs other than this training used."""
    external_unknown: str | None = None
    """Reason why other programs' core use is unknown on a host with several ranks."""
    unknown: str | None = None
    """Reason why the training's CPU seconds are not known."""


@dataclass(frozen=True)
class CpuEvidence:
    """Records of one rank from which its CPU seconds and core use are computed."""

    run: RunRecord
    steady: Intervals
    saves: Sequence[SaveRecord]
    validations: Sequence[ValidationRecord]
    worker_cpu_s: float | None
    """CPU seconds of all train loader workers per batch; ``None`` is unknown."""
    iter_s: float | None

    @property
    def batch_cpu_s(self) -> float:
        """CPU seconds of the workers per batch: 0 without workers, NaN if unknown."""
        if self.run.loader.num_workers == 0:
            return 0.0
        return _NAN if self.worker_cpu_s is None else self.worker_cpu_s


@dataclass(frozen=True)
class CpuUse:
    """CPU seconds of process, workers, host in saves and validations; NaN: unknown."""

    process_s: float = 0.0
    """CPU seconds of the training process in all saves and validations together."""
    main_delay_s: float = 0.0
    """Seconds in all saves and validations that the main thread waited for a core."""
    workers_s: float = 0.0
    """CPU seconds of the train loader's workers in all saves and validations."""
    host_s: float = 0.0
    """CPU seconds of all processes on the host in all saves and validations."""

    def __add__(self, other: CpuUse) -> CpuUse:
        return CpuUse(
            process_s=self.process_s + other.process_s,
            main_delay_s=self.main_delay_s + other.main_delay_s,
            workers_s=self.workers_s + other.workers_s,
            host_s=self.host_s + other.host_s,
        )


@quiet
def find_cpu(rank: CpuEvidence, others: Sequence[CpuEvidence] = ()) -> TrainingCpu:
    """Computes a training's CPU seconds per iteration without saves and validations.

    The process of a save and the workers of a validation would pass for the step and
    for other programs. So calm intervals are taken, which have neither. Where these are
    too few, as in short epochs that end with both, all intervals are, less what saves
    and validations themselves recorded: their mean use by the second, times their
    seconds in the ledger.

    Args:
        rank: The one that is asked about.
        others: The other ranks of the run that were read, on any host.
    """
    steady = rank.steady
    calm = steady.where(steady.calm())
    if count_all(calm.column('iterations')) >= CALM_ITERATIONS:
        return _subtract(rank, others, calm, CpuUse(), 0.0)
    saves_s = total(steady.column('ledger_s', 'checkpoint_save'))
    validations_s = total(steady.column('ledger_s', 'validation'))
    used = _use_at_rate(rank.saves, saves_s)
    used += _use_at_rate(rank.validations, validations_s)
    return _subtract(rank, others, steady, used, saves_s + validations_s)


def _subtract(
    rank: CpuEvidence,
    others: Sequence[CpuEvidence],
    some: Intervals,
    used: CpuUse,
    aside_s: float,
) -> TrainingCpu:
    """Computes CPU seconds per iteration in log intervals, minus saves and validations.

    Args:
        rank: The one that is asked about.
        others: The other ranks of the run.
        some: Intervals of the rank.
        used: By saves and validations in these intervals.
        aside_s: What these took.
    """
    column, logical = some.column, rank.run.host.logical_cpus or _NAN
    iterations = count_all(column('iterations')) or _NAN
    whole_s = total(column('duration_s'))
    seconds = max(whole_s - aside_s, 0.0) or _NAN
    process_s = max(float(column('process_cpu_s').sum() - used.process_s), 0.0)
    # a wait for cores within saves and validations would pass for one of the step, and
    # starts of workers are no iterations: they have their part of it by their time
    share = max(1.0 - total(column('ledger_s', 'startup')) / seconds, 0.0)
    delay_s = share * float(column('process_run_delay_s').sum() - used.main_delay_s)
    main_s = process_s - float(column('data_wait_cpu_s').sum()) - _start_cpu_s(some)
    busy_pct = average(column('system_cpu_pct'), column('duration_s'))
    busy_s = _NAN if busy_pct is None else busy_pct / 100 * logical * whole_s
    busy = float(np.clip((busy_s - used.host_s) / seconds, 0.0, logical))
    worker_s = rank.batch_cpu_s
    workers = worker_s / rank.iter_s if rank.iter_s else _NAN
    if aside_s and not np.isnan(worker_s) and not np.isnan(used.workers_s):
        # batches made while training stood still were not made in these seconds
        workers = max(worker_s * iterations - used.workers_s, 0.0) / seconds
    cores = process_s / seconds
    external = ExternalCores(_known(busy - cores - workers))
    if rank.run.host.ranks > 1:
        # what is the other ranks' stands in their own evidence
        external = find_external_cores(rank, others)
    return TrainingCpu(
        main_s=_known(main_s / iterations),
        main_delay_s=_known(delay_s / iterations),
        process_cores=_known(cores),
        external_cores=external.cores,
        external_unknown=external.why_unknown,
        unknown=_UNKNOWN if np.isnan(main_s / iterations) else None,
    )


class ExternalCores(NamedTuple):
    """Number of a host's cores that programs other than the training used."""

    cores: float | None
    why_unknown: Text | None = None
    """Reason why the number of cores that other programs used is unknown."""


def find_external_cores(
    rank: CpuEvidence, others: Sequence[CpuEvidence]
) -> ExternalCores:
    """Computes how many cores other programs used, on a host with several ranks.

    The busy share of the host less what each rank, its loader's workers and those of
    its validations used, over the time in which all of them recorded intervals.

    Args:
        rank: One of the ranks.
        others: The other ranks of the run that were read, on any host.
    """
    host, expected = rank.run.hostname, rank.run.host.ranks
    # evidence without a name of the host is of one host, if all ranks are on it
    is_named = host is not None or rank.run.world_size == expected
    same = [other for other in others if is_named and other.run.hostname == host]
    ranks = [rank, *same]
    if len(ranks) != expected:
        why = phrase(
            'what other programs used needs the evidence of all {expected_ranks} on '
            'the host, and {readable_ranks:d} can be read together',
            expected_ranks=expected,
            readable_ranks=len(ranks),
        )
        return ExternalCores(None, why)
    spans = [_IntervalTimes.of(rank) for rank in ranks]
    begin_s = max(span.begins_s.min(initial=np.inf) for span in spans)
    end_s = min(span.ends_s.max(initial=-np.inf) for span in spans)
    busy, used = list[float](), 0.0
    for rank, span in zip(ranks, spans):
        # one that reaches out by less than half of it is inside
        middles_s = (span.begins_s + span.ends_s) / 2
        shared = rank.steady.where((middles_s >= begin_s) & (middles_s <= end_s))
        if not len(shared):
            why = phrase('the ranks on the host were not measured at the same time')
            return ExternalCores(None, why)
        busy_pct = average(shared.column('system_cpu_pct'), shared.column('duration_s'))
        if busy_pct is not None:
            busy.append(busy_pct / 100 * (rank.run.host.logical_cpus or _NAN))
        used += _used_cores(rank, shared)
    if not busy or np.isnan(used):
        why = phrase(
            'the CPU of a rank, of its workers or of the host was not recorded'
        )
        return ExternalCores(None, why)
    return ExternalCores(_known(float(np.mean(busy)) - used))


class _IntervalTimes(NamedTuple):
    """Start and end Unix times, in seconds, of a rank's steady log intervals."""

    begins_s: Column
    ends_s: Column

    @classmethod
    def of(cls, rank: CpuEvidence) -> _IntervalTimes:
        ends_s = rank.run.started_unix_s + rank.steady.column('elapsed_s')
        return cls(ends_s - rank.steady.column('duration_s'), ends_s)


def _used_cores(rank: CpuEvidence, some: Intervals) -> float:
    """Computes the mean number of cores a rank used in intervals; NaN if unknown."""
    cpu_s = float(some.column('process_cpu_s').sum())
    cpu_s += count_all(some.column('iterations')) * rank.batch_cpu_s
    validations_s = total(some.column('ledger_s', 'validation'))
    if validations_s > 0:
        measured = [_EventCpu.of(validation) for validation in rank.validations]
        own_s = _read(measured, 'own_workers_s').sum()
        wall_s = _read(measured, 'wall_s').sum()
        cpu_s += float(own_s / wall_s if wall_s > 0 else _NAN) * validations_s
    return cpu_s / (total(some.column('duration_s')) or _NAN)


def _known(figure: float) -> float | None:
    return None if np.isnan(figure) else max(figure, 0.0)


class _EventCpu(NamedTuple):
    """CPU seconds of process, workers and other programs in one save or validation."""

    wall_s: float
    process_s: float | None
    main_delay_s: float | None
    workers_s: float | None
    """CPU seconds of the train loader's workers in one save or validation."""
    own_workers_s: float | None
    """CPU seconds of the validation loader's workers in one save or validation."""
    other_s: float | None
    """CPU seconds of other programs in one save or validation."""

    @classmethod
    def of(cls, event: SaveRecord | ValidationRecord) -> _EventCpu:
        if isinstance(event, SaveRecord):
            return cls(
                wall_s=event.wall_s,
                process_s=event.cpu_s,
                main_delay_s=event.run_delay_s,
                workers_s=event.workers_cpu_s,
                own_workers_s=0.0,
                other_s=event.other_cpu_s,
            )
        own_workers_s = 0.0 if event.loader.num_workers == 0 else None
        if event.workers is not None and event.workers.count:
            own_workers_s = event.workers.cpu_s
        return cls(
            wall_s=event.wall_s,
            process_s=event.whole_cpu_s,
            main_delay_s=event.run_delay_s,
            workers_s=event.train_workers_cpu_s,
            own_workers_s=own_workers_s,
            other_s=event.other_cpu_s,
        )


def _read(measured: Sequence[_EventCpu], name: str) -> Column:
    """Reads a field of each save or validation as an array; NaN is unknown."""
    return np.array([getattr(cpu, name) for cpu in measured], dtype=np.float64)


def _use_at_rate(
    events: Sequence[SaveRecord | ValidationRecord], seconds: float
) -> CpuUse:
    """Scales CPU seconds of timed saves or validations to a duration of ``seconds``."""
    if seconds <= 0.0:
        return CpuUse()
    measured = [_EventCpu.of(event) for event in events]
    wall_s = _read(measured, 'wall_s')
    process_s, workers_s = _read(measured, 'process_s'), _read(measured, 'workers_s')
    own_s, other_s = _read(measured, 'own_workers_s'), _read(measured, 'other_s')

    def in_seconds(used_s: Column) -> float:
        known_s = total(wall_s[~np.isnan(used_s)])
        return total(used_s) / known_s * seconds if known_s > 0 else _NAN

    return CpuUse(
        process_s=in_seconds(process_s),
        main_delay_s=in_seconds(_read(measured, 'main_delay_s')),
        workers_s=in_seconds(workers_s),
        host_s=in_seconds(process_s + workers_s + own_s + other_s),
    )


def _start_cpu_s(some: Intervals) -> float:
    """Estimates the CPU seconds of all starts of workers within some log intervals.

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
    """Number of threads of the loader workers, their CPU time and core waits."""

    workers: int
    threads: int
    """Largest number of threads that one worker had, PyTorch's own included."""
    cores: float
    """Number of cores that this rank may use."""
    cpu_s: float
    """CPU seconds of a worker per batch, over all its threads."""
    delay_s: float
    """Seconds per batch that a worker's main thread waited for a core."""
    share: float | None
    """Share (0 to 1) of a worker's CPU time outside its main and batch-sending threads.

    ``None`` where the sending threads were not measured.
    """
    opencv: int | None
    """Number of threads that OpenCV uses in a worker, as OpenCV reports."""

    @property
    def is_crowd(self) -> bool:
        """True if worker threads outnumber the cores and have to wait for a core."""
        waits = self.delay_s / (self.cpu_s + self.delay_s)
        return (
            self.threads > thresholds.OWN_THREADS
            and self.workers * self.threads > self.cores
            and waits >= thresholds.RUN_DELAY_PROBLEM
        )

    @property
    def is_thrash(self) -> bool:
        """True if worker threads compete for cores and waste a notable share of CPU."""
        if self.share is None or self.share < thresholds.THREADS_NOTICE:
            return False
        return self.is_crowd
