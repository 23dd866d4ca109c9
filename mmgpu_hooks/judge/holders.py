"""Finds what holds the host's memory, and how many workers would have fitted.

A run's memory records are put side by side with those of its other ranks on the host;
what they do not explain of the memory in use belongs to other programs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from mmgpu_hooks.judge.columns import Column
from mmgpu_hooks.judge.memory import are_workers_kept, count_left
from mmgpu_hooks.judge.recorded import RecordedRun
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.recorded import MemoryRecord
from mmgpu_hooks.schema.text import Text, listed, phrase

SAFE_MEMORY_SHARE = 0.95
"""Largest share (0 to 1) of host memory in use for a safe number of workers."""
MEMORY_MARGIN = 0.2
"""Share (0 to 1) added to the measured memory peak when asking SLURM for memory."""

_GIB, _MIB = 2**30, 2**20
_SHOWN_SHARE = 0.005
"""Smallest share (0 to 1) of host memory at which a process is named as holder."""
_LEAST_READINGS, _LEAST_GAIN, _LEAST_FIT = 5, 0.05, 0.8
"""Number of readings, relative gain and R squared that memory growth needs."""
_COPIES = 1.2
"""Largest ratio of workers' memory growth to object size explained by copying.

A multiple of the size of the objects.
"""
_MOST_LEAKED = 0.95
"""Largest share (0 to 1) of the workers' memory that counts as leaked.

Workers hold something from the start.
"""
_DROP = 0.2
"""Smallest relative fall of the workers' memory that indicates ended workers."""


_NOTHING = Text('')

_Growing = Literal['process', 'workers']


class Holder(NamedTuple):
    """Process, or group of processes, that holds memory of the host."""

    name: Text
    """Name, for a sentence, of processes that hold memory, such as ``8 workers``."""
    bytes: int
    note: Text = _NOTHING
    """Remark, for a sentence, on processes that hold memory, such as ``5.1 each``."""


class Holding(NamedTuple):
    """Number of workers with which the host's memory would have sufficed."""

    workers: int
    """Number of workers per rank with which the host's memory would have sufficed.

    No more than the run had.
    """
    ends_workers: bool = False
    """True if memory would have sufficed only if workers ended with each epoch."""


@dataclass(frozen=True)
class MemoryShares:
    """Holders of the host's or control group's memory, with the bytes of each."""

    record: MemoryRecord
    """Memory record of the evidence file that ``holders`` was computed from."""
    holders: tuple[Holder, ...]
    """Holders of the host's memory, largest first, other programs last."""
    holding: Holding | None
    """Safe number of workers for the host's memory; ``None`` if no change would help.

    ``None`` where no other number would have helped, or none was needed.
    """
    growing: _Growing | None
    """Processes whose growth fewer workers would not stop; ``None`` without such."""

    @property
    def shares(self) -> Text:
        """Text on what holds host memory: ``62 GiB: 8 workers 41 (5.1 each), ...``."""
        holders = self._list_holders()
        if self.growing == 'process':
            return phrase(
                '{holders}; no number of workers would have held: the training process '
                'grows',
                holders=holders,
            )
        if self.growing == 'workers':
            return phrase(
                '{holders}; no number of workers would have held: the workers grow',
                holders=holders,
            )
        if self.holding is None:
            return holders
        if self.holding.ends_workers:
            return phrase(
                '{holders}; with {workers} and persistent_workers=False it would have '
                'held',
                self.holding,
                holders=holders,
            )
        return phrase(
            '{holders}; with {workers} it would have held',
            self.holding,
            holders=holders,
        )

    @property
    def sentence(self) -> Text:
        """Sentence on what holds host memory: ``of 62 GiB: 8 workers 41, ...``."""
        return phrase('of {shares}', shares=self.shares)

    def _list_holders(self) -> Text:
        record, unit = self.record, _choose_unit(self.record.total_bytes)
        whole = unit.phrase_with_name(record.total_bytes)
        if record.bound == 'group':
            whole = phrase('{whole} of its control group', whole=whole)
        holders = tuple(
            phrase(
                '{name} {size} ({note})',
                name=holder.name,
                size=unit.phrase(holder.bytes),
                note=holder.note,
            )
            if holder.note
            else phrase(
                '{name} {size}', name=holder.name, size=unit.phrase(holder.bytes)
            )
            for holder in self.holders
        )
        if record.is_pss:
            return phrase('{whole}: {holders}', whole=whole, holders=holders)
        return phrase(
            '{whole}: {holders} (pages that processes share count in each)',
            whole=whole,
            holders=holders,
        )


class _Unit(NamedTuple):
    name: str
    bytes: int

    def phrase(self, size: float) -> str:
        """Writes a size in bytes as a number of GiB or MiB, without the unit's name."""
        scaled = size / self.bytes
        return f'{scaled:.0f}' if scaled >= 9.95 or not scaled else f'{scaled:.1f}'

    def phrase_with_name(self, size: float) -> str:
        """Writes a size in bytes with the name of its unit: ``62 GiB``."""
        return f'{self.phrase(size)} {self.name}'


def _choose_unit(whole: float) -> _Unit:
    return _Unit('GiB', _GIB) if whole >= 4 * _GIB else _Unit('MiB', _MIB)


def was_low(run: Run) -> bool:
    """True if the host's memory was nearly full during a run."""
    return any(record.is_low for record in run.evidence.memory)


def describe_memory(run: Run) -> Text | None:
    """Describes the holders of a run's memory in a sentence; ``None`` if never read."""
    shares = find_shares(run)
    return None if shares is None else shares.sentence


def find_shares(run: Run) -> MemoryShares | None:
    """Finds the bytes of host memory that each kind of process held at the peak of use.

    Args:
        run: One rank's, with its other ranks where they were read.

    Returns:
        ``None`` where it was never read.
    """
    worst = find_worst(run.evidence.memory)
    if worst is None:
        return None
    ranks = _list_ranks(run, worst)
    holders = list(_list_holders(run, worst, ranks))
    holders.sort(key=lambda holder: -holder.bytes)
    known = sum(holder.bytes for holder in holders)
    others = max(worst.used_bytes - known, 0)
    unread = max(run.meta.host.ranks - len(ranks), 0)
    name = phrase('other programs')
    if unread:
        name = phrase('other programs and {ranks} of this training', ranks=unread)
    shown = [*holders, Holder(name, others)]
    least = _SHOWN_SHARE * worst.total_bytes
    outlook = _find_outlook(run, worst, ranks) if worst.is_low else _Outlook()
    return MemoryShares(
        record=worst,
        holders=tuple(holder for holder in shown if holder.bytes >= least),
        holding=outlook.holding,
        growing=outlook.growing,
    )


def describe_start_memory(ranks: Sequence[MemoryRecord]) -> Text:
    """Describes in a sentence what held memory before the ranks' train loops began."""
    first, unit = ranks[0], _choose_unit(ranks[0].total_bytes)
    held = sum(rank.process_bytes or 0 for rank in ranks)
    note, name = phrase('building data set and model'), phrase('training process')
    if len(ranks) > 1:
        each = unit.phrase(held / len(ranks))
        note = phrase('{each} each, building data set and model', each=each)
        name = phrase('{processes:d} training processes', processes=len(ranks))
    shm = first.shm_bytes or 0
    holders = [
        Holder(name, held, note),
        Holder(Text('/dev/shm'), shm),
        Holder(phrase('other programs'), max(first.used_bytes - held - shm, 0)),
    ]
    least = _SHOWN_SHARE * first.total_bytes
    shown = tuple(holder for holder in holders if holder.bytes >= least)
    return MemoryShares(first, shown, None, None).sentence


def find_worst(records: Sequence[MemoryRecord]) -> MemoryRecord | None:
    """Finds the record of the fullest memory; records marked low-memory come first."""
    low = [record for record in records if record.is_low]
    # once a process was killed, its memory is free, or of no known program
    return max(
        low or records,
        key=lambda record: record.used_bytes / max(record.total_bytes, 1),
        default=None,
    )


def _list_ranks(run: Run, worst: MemoryRecord) -> list[MemoryRecord]:
    """Lists the memory records of a host's ranks nearest in time to ``worst``."""
    at_s = run.meta.started_unix_s + worst.elapsed_s

    def when(other: RecordedRun, record: MemoryRecord) -> float:
        return abs(other.meta.started_unix_s + record.elapsed_s - at_s)

    ranks = [worst]
    for other in run.other_ranks:
        records = other.evidence.memory
        if records and other.meta.hostname == run.meta.hostname:
            ranks.append(min(records, key=lambda record: when(other, record)))
    return ranks


def _list_holders(
    run: Run, worst: MemoryRecord, ranks: Sequence[MemoryRecord]
) -> Iterator[Holder]:
    unit = _choose_unit(worst.total_bytes)
    workers = sum(rank.workers for rank in ranks)
    if workers:
        size, notes = sum(rank.worker_bytes or 0 for rank in ranks), list[Text]()
        if workers > 1:
            notes.append(phrase('{each} each', each=unit.phrase(size / workers)))
        grows = _find_worker_growth(run)
        if grows is not None:
            rate = 60 * grows.bytes_per_s / max(worst.workers, 1)
            notes.append(_phrase_rate(rate))
        yield Holder(phrase('{workers}', workers=workers), size, listed(notes))
    validating = sum(rank.validation_workers for rank in ranks)
    if validating:
        size = sum(rank.validation_worker_bytes or 0 for rank in ranks)
        if validating > 1:
            name = phrase('{validating} validation workers', validating=validating)
            each = phrase('{each} each', each=unit.phrase(size / validating))
            yield Holder(name, size, each)
        else:
            yield Holder(phrase('1 validation worker'), size)
    yield from _list_process_holders(run, worst, ranks)


def _list_process_holders(
    run: Run, worst: MemoryRecord, ranks: Sequence[MemoryRecord]
) -> Iterator[Holder]:
    """Yields the memory of training processes, metric results and shared memory."""
    unit = _choose_unit(worst.total_bytes)
    results = sum(rank.result_bytes or 0 for rank in ranks)
    processes = sum(rank.process_bytes or 0 for rank in ranks)
    results = min(results, processes)
    name, notes = phrase('training process'), list[Text]()
    if len(ranks) > 1:
        name = phrase('{processes:d} training processes', processes=len(ranks))
        notes.append(phrase('{each} each', each=unit.phrase(processes / len(ranks))))
    parsed = run.meta.dataset_bytes or 0
    if parsed >= _SHOWN_SHARE * worst.total_bytes:
        size = unit.phrase(parsed)
        if len(ranks) > 1:
            notes.append(
                phrase('{size} of it the data set, parsed by each rank', size=size)
            )
        else:
            notes.append(phrase('{size} of it the data set', size=size))
    grows = _find_process_growth(run)
    if grows is not None:
        notes.append(_phrase_rate(60 * grows.bytes_per_s))
    yield Holder(name, processes - results, listed(notes))
    if worst.shm_bytes:
        yield Holder(Text('/dev/shm'), worst.shm_bytes)
    if results:
        named = next((rank.result_name for rank in ranks if rank.result_name), None)
        metric = (named or 'metrics').partition('.')[0]
        yield Holder(phrase('results of {metric}', metric=metric), results)


def _phrase_rate(bytes_per_minute: float) -> Text:
    unit = _Unit('GiB', _GIB) if bytes_per_minute >= _GIB else _Unit('MiB', _MIB)
    return phrase(
        'growing {size} a minute', size=unit.phrase_with_name(bytes_per_minute)
    )


class _Growth(NamedTuple):
    """Steady growth, in bytes, of processes' memory until the last reading."""

    bytes_per_s: float
    gained_bytes: float
    """Bytes of memory gained from the first reading of the growth to the last."""


def _find_worker_growth(run: Run) -> _Growth | None:
    """Finds steady growth in bytes of train workers' memory since their last start."""
    return _find_growth(run, 'worker_own_bytes', 'worker_bytes')


def _find_process_growth(run: Run) -> _Growth | None:
    return _find_growth(run, 'process_own_bytes', 'process_bytes')


def _find_growth(run: Run, field: str, recorded: str) -> _Growth | None:
    """Fits the growth of memory in bytes since its last fall, by least squares.

    Intervals are read more often than who holds memory.
    """
    read = run.every.having(field)
    times_s, sizes = read.column('elapsed_s'), read.column(field)
    if len(times_s) < _LEAST_READINGS:
        records = [
            record
            for record in run.evidence.memory
            if record.phase == 'train' and getattr(record, recorded)
        ]
        times_s = np.array([record.elapsed_s for record in records], np.float64)
        sizes = np.array([getattr(r, recorded) for r in records], np.float64)
    worst = find_worst(run.evidence.memory)
    if worst is not None:
        # one that was killed after that holds nothing
        before = times_s <= worst.elapsed_s
        times_s, sizes = times_s[before], sizes[before]
    falls = np.flatnonzero(sizes[1:] < (1 - _DROP) * sizes[:-1])
    begin = int(falls[-1]) + 1 if len(falls) else 0
    return _fit(times_s[begin:], sizes[begin:])


def _fit(times_s: Column, sizes: Column) -> _Growth | None:
    if len(times_s) < _LEAST_READINGS or np.ptp(times_s) <= 0:
        return None
    whole_s = float(np.ptp(times_s))
    # the first third holds what fills once: caches, pools
    skipped = len(times_s) // 3 if len(times_s) >= 3 * _LEAST_READINGS else 1
    times_s, sizes = times_s[skipped:], sizes[skipped:]
    if len(times_s) < _LEAST_READINGS - 1 or np.ptp(sizes) <= 0:
        return None
    slope = float(np.polyfit(times_s - times_s[0], sizes, 1)[0])
    fit = float(np.corrcoef(times_s, sizes)[0, 1]) ** 2
    gained = slope * float(np.ptp(times_s))
    if slope <= 0 or fit < _LEAST_FIT or gained < _LEAST_GAIN * float(sizes[-1]):
        return None
    return _Growth(slope, slope * whole_s)


class _Outlook(NamedTuple):
    """Number of workers that would have fitted into memory, or what grows anyway."""

    holding: Holding | None = None
    growing: _Growing | None = None


class _WorkerCost(NamedTuple):
    """Bytes of memory of all ranks' train loader workers on a host, and what leaks."""

    each_bytes: float
    """Bytes of memory that one worker holds, excluding leaks by loaded samples."""
    leaked_bytes: float
    """Bytes that loaded samples leaked so far, independent of the number of workers."""
    bytes_per_s: float
    """Bytes per second by which ``leaked_bytes`` grows."""


def _find_outlook(
    run: Run, worst: MemoryRecord, ranks: Sequence[MemoryRecord]
) -> _Outlook:
    """Finds the number of workers for which memory would have sufficed.

    It counts until training ends, or until an epoch does that ends the workers.
    """
    held = sum(rank.worker_bytes or 0 for rank in ranks)
    process, left_s = _find_process_growth(run), _find_left_s(run)
    # it went on to take what was left
    steady = float(max(worst.total_bytes, worst.used_bytes) - held)
    if process is not None:
        steady += process.bytes_per_s * left_s.training * len(ranks)
    budget = SAFE_MEMORY_SHARE * worst.total_bytes - steady
    if process is not None and budget < 0:
        return _Outlook(growing='process')
    if not worst.workers or not held:
        return _Outlook()
    cost, kept = _find_worker_cost(run, ranks), are_workers_kept(run)
    until_s = left_s.training if kept else left_s.epoch
    leaks = [(cost.leaked_bytes + cost.bytes_per_s * until_s, False)]
    if cost.bytes_per_s and kept and run.meta.loop == 'epoch':
        leaks.append((cost.bytes_per_s * left_s.whole_epoch, True))
    for leak, ends_workers in leaks:
        fits = (budget - leak) / cost.each_bytes / len(ranks)
        if fits >= worst.workers and not ends_workers:
            return _Outlook()
        # without workers samples leave the same in the training process
        if fits >= (1 if leak else 0):
            return _Outlook(Holding(min(int(fits), worst.workers), ends_workers))
    if cost.bytes_per_s:
        return _Outlook(growing='workers')
    return _Outlook()


def _find_worker_cost(run: Run, ranks: Sequence[MemoryRecord]) -> _WorkerCost:
    """Finds the bytes that each worker holds, and the bytes that samples leaked.

    What leaks with each sample is the same with fewer workers, which load as many. What
    they copy of the data set as they read, each of them does.
    """
    held = sum(rank.worker_bytes or 0 for rank in ranks)
    count = sum(rank.workers for rank in ranks)
    growth = _find_worker_growth(run)
    if growth is None:
        return _WorkerCost(held / count, 0.0, 0.0)
    workers, objects = max(ranks[0].workers, 1), run.meta.loader.object_bytes or 0
    # an edited file may say anything
    leaked = min(growth.gained_bytes * len(ranks), _MOST_LEAKED * held)
    each = max((held - leaked) / count, 1.0)
    if growth.gained_bytes <= _COPIES * workers * objects:
        return _WorkerCost(max(held / count, each + objects), 0.0, 0.0)
    return _WorkerCost(each, leaked, growth.bytes_per_s * len(ranks))


class _Left(NamedTuple):
    """Seconds from the last log interval to the end of training and of its epoch."""

    training: float
    epoch: float
    whole_epoch: float
    """Seconds that each epoch takes, from its first iteration to its last."""


def _find_left_s(run: Run) -> _Left:
    if not run.intervals or not run.figures.iterations:
        return _Left(math.inf, math.inf, math.inf)
    each_s = run.intervals[-1].elapsed_s / run.figures.iterations
    left, batches = count_left(run), run.meta.loader.batches_per_epoch
    epoch = whole = math.inf
    if batches:
        done = run.intervals[-1].iteration % batches
        epoch, whole = each_s * (batches - done), each_s * batches
    return _Left(math.inf if left is None else each_s * left, epoch, whole)


def find_slurm_memory(run: Run) -> int | None:
    """Computes the GiB of memory to ask SLURM for: the highest use plus a fifth.

    Never less than a kill was seen at. Only a run that validated has seen its most.

    Returns:
        ``None`` outside of SLURM, and where validation did not run.
    """
    host, records = run.meta.host, run.evidence.memory
    is_slurm = host.slurm_cpus or host.slurm_bound_cpus or host.slurm_memory_bytes
    if not is_slurm or not run.validations or not records:
        return None
    most = max(_sum_own(_list_ranks(run, record)) for record in records)
    limit, kills = host.cgroup_memory_bytes, run.meta.oom_kills
    last = run.end.oom_kills if run.end else None
    was_killed = kills is not None and last is not None and last > kills
    was_killed |= run.end is None and records[-1].is_low
    if was_killed and limit:
        most = max(most, limit)
    return math.ceil((1 + MEMORY_MARGIN) * most / _GIB)


def _sum_own(ranks: Sequence[MemoryRecord]) -> int:
    """Sums up the memory bytes of a training's ranks, or of their control group."""
    first = ranks[0]
    own = sum(
        (rank.process_bytes or 0)
        + (rank.worker_bytes or 0)
        + (rank.validation_worker_bytes or 0)
        for rank in ranks
    )
    own += first.shm_bytes or 0
    return max(own, first.used_bytes) if first.bound == 'group' else own
