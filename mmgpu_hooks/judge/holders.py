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
"""Largest used share (0 to 1) of host memory at which a number of workers is safe."""
MEMORY_MARGIN = 0.2
"""Share (0 to 1) added to the measured memory peak when asking SLURM for memory."""

_GIB, _MIB = 2**30, 2**20
_SHOWN_SHARE = 0.005
"""Smallest share (0 to 1) of host memory that a process must hold to be named."""
_LEAST_READINGS, _LEAST_GAIN, _LEAST_FIT = 5, 0.05, 0.8
"""Least number of readings, relative gain and R squared for memory growth to count."""
_LEAST_RECENT_FIT = 0.95
"""Least R squared of memory growth that only the newest readings show.

A bend in them would make the rate too small."""
_COPIES = 1.2
"""Largest ratio of workers' memory growth to dataset bytes that counts as copying.

A multiple of the size of the objects.
"""
_MOST_LEAKED = 0.95
"""Largest share (0 to 1) of the workers' memory that counts as leaked.

Workers hold something from the start.
"""
_ALIKE = 1.25
"""Largest ratio of two processes' memory at which the two are reported as equal."""
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
    """Processes whose memory grows however few the workers; ``None`` if none do."""
    is_growing: bool = False
    """True if a training process's or worker's memory grew until the last reading."""

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
    """Describes what held host memory in a run; ``None`` if memory was never read."""
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
    others = max(worst.used_bytes - sum(holder.bytes for holder in holders), 0)
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
        is_growing=any(
            rank.find_worker_growth() or _phrase_growth(rank, _choose_unit(0))
            for rank in ranks
        ),
    )


def describe_start_memory(ranks: Sequence[MemoryRecord]) -> Text:
    """Describes in a sentence what held memory before the ranks' train loops began."""
    first, unit = ranks[0], _choose_unit(ranks[0].total_bytes)
    sizes = sorted(rank.process_bytes or 0 for rank in ranks)
    held, low, high = sum(sizes), sizes[0], sizes[-1]
    note, name = phrase('building data set and model'), phrase('training process')
    if len(ranks) > 1:
        each = phrase('{each} each', each=unit.phrase(held / len(ranks)))
        if high > _ALIKE * low:
            facts = {'low': unit.phrase(low), 'high': unit.phrase(high)}
            each = phrase('{low} to {high} each', **facts)
        note = phrase('{each}, building data set and model', each=each)
        name = phrase('{processes:d} training processes', processes=len(ranks))
    shm = first.shm_bytes or 0
    holders = [
        Holder(name, held, note),
        Holder(_name_shared(first), shm),
        Holder(phrase('other programs'), max(first.used_bytes - held - shm, 0)),
    ]
    least = _SHOWN_SHARE * first.total_bytes
    shown = tuple(holder for holder in holders if holder.bytes >= least)
    return MemoryShares(first, shown, None, None).sentence


def find_worst(records: Sequence[MemoryRecord]) -> MemoryRecord | None:
    """Finds the record of the fullest memory, of those marked low-memory if any are."""
    low = [record for record in records if record.is_low]
    # once a process was killed, its memory is free, or of no known program
    return max(
        low or records,
        key=lambda record: record.used_bytes / max(record.total_bytes, 1),
        default=None,
    )


class _Rise(NamedTuple):
    """Bytes of a process's memory in its newest readings and in earlier ones."""

    before_bytes: float
    now_bytes: float
    passed_s: float
    """Seconds over which the newest memory readings were taken."""

    @property
    def is_settled(self) -> bool:
        """True if the newest memory readings are at most 5 % above the earlier ones."""
        return self.now_bytes <= (1 + _LEAST_GAIN) * self.before_bytes


class _RankMemory(NamedTuple):
    """Memory record and run of one rank, with the time after which data are ignored."""

    run: RecordedRun
    record: MemoryRecord
    until_s: float
    """Seconds from the start of the rank's train loop after which readings are ignored.

    A process that was killed after that holds nothing."""

    def find_worker_growth(self) -> _Growth | None:
        """Finds growth of the workers' memory since their last start."""
        return _find_growth(*self._read_sizes('worker_own_bytes', 'worker_bytes'))

    def find_process_growth(self) -> _Growth | None:
        """Finds growth of the training process's memory."""
        return _find_growth(*self._read_sizes('process_own_bytes', 'process_bytes'))

    def find_process_rise(self) -> _Rise | None:
        """Finds by how much the training process's memory rose in its newest readings.

        Returns:
            ``None`` where too few were read to say.
        """
        times_s, sizes = self._read_sizes('process_own_bytes', 'process_bytes')
        # shared pages count there in part, so only more than before says something
        sizes = np.append(sizes, self.record.process_bytes or 0)
        cut = len(sizes) - max(len(sizes) // 3, 1)
        if cut < _LEAST_READINGS - 1:
            return None
        before, now = float(sizes[:cut].max()), float(sizes[cut:].max())
        return _Rise(before, now, self.until_s - float(times_s[cut - 1]))

    def count_shared(self) -> float:
        """Counts the bytes of shared pages that the record attributes to each worker.

        They are the training process's own, and its workers' by fork. With fewer
        workers the others count more of them, so no worker adds its part.
        """
        forked = self.record.workers + self.record.validation_workers
        read = self.run.every.having('process_own_bytes')
        before = read.column('elapsed_s') <= self.until_s
        if not self.record.is_pss or not forked or not before.any():
            return 0.0
        own_bytes = float(read.column('process_own_bytes')[before][-1])
        return max(own_bytes - (self.record.process_bytes or 0), 0.0) / forked

    def _read_sizes(self, field: str, recorded: str) -> tuple[Column, Column]:
        """Reads times (s) and bytes of one memory field from the rank's records."""
        read = self.run.every.having(field)
        times_s, sizes = read.column('elapsed_s'), read.column(field)
        if len(times_s) < _LEAST_READINGS:
            records = [
                record
                for record in self.run.evidence.memory
                if record.phase == 'train' and getattr(record, recorded)
            ]
            times_s = np.array([record.elapsed_s for record in records], np.float64)
            sizes = np.array([getattr(r, recorded) for r in records], np.float64)
        before = times_s <= self.until_s
        return times_s[before], sizes[before]


def _list_ranks(run: RecordedRun, worst: MemoryRecord) -> list[_RankMemory]:
    """Lists a host's ranks with their memory records nearest in time to a given one."""
    at_s = run.meta.started_unix_s + worst.elapsed_s
    ranks = [_RankMemory(run, worst, worst.elapsed_s)]
    for other in run.other_ranks:
        records = other.evidence.memory
        if records and other.meta.hostname == run.meta.hostname:
            until_s = at_s - other.meta.started_unix_s
            nearest = min(records, key=lambda record: abs(record.elapsed_s - until_s))
            ranks.append(_RankMemory(other, nearest, until_s))
    return ranks


def _list_holders(
    run: Run, worst: MemoryRecord, ranks: Sequence[_RankMemory]
) -> Iterator[Holder]:
    unit, records = _choose_unit(worst.total_bytes), [rank.record for rank in ranks]
    workers = sum(record.workers for record in records)
    if workers:
        size = sum(record.worker_bytes or 0 for record in records)
        notes = _list_worker_notes(ranks, workers, size, unit)
        yield Holder(phrase('{workers}', workers=workers), size, listed(notes))
    validating = sum(record.validation_workers for record in records)
    if validating:
        size = sum(record.validation_worker_bytes or 0 for record in records)
        if validating > 1:
            name = phrase('{validating} validation workers', validating=validating)
            each = phrase('{each} each', each=unit.phrase(size / validating))
            yield Holder(name, size, each)
        else:
            yield Holder(phrase('1 validation worker'), size)
    yield from _list_process_holders(run, worst, ranks)
    children = sum(record.child_bytes or 0 for record in records)
    if children:
        count = sum(record.children for record in records)
        started = phrase('1 program that training started')
        if count > 1:
            started = phrase('{count:d} programs that training started', count=count)
        yield Holder(started, children)


def _list_worker_notes(
    ranks: Sequence[_RankMemory], workers: int, size: int, unit: _Unit
) -> list[Text]:
    """Lists remarks on train workers' memory: how much each holds, and its growth."""
    notes, records = list[Text](), [rank.record for rank in ranks]
    largest = max(record.largest_worker_bytes or 0 for record in records)
    if workers > 1:
        rest = (size - largest) / (workers - 1)
        if largest > _ALIKE * rest:
            notes.append(
                phrase(
                    'the largest {size}, the others {each} on average',
                    size=unit.phrase(largest),
                    each=unit.phrase(rest),
                )
            )
        else:
            notes.append(phrase('{each} each', each=unit.phrase(size / workers)))
    growths = {rank: rank.find_worker_growth() for rank in ranks}
    rate = sum(growth.bytes_per_s for growth in growths.values() if growth is not None)
    if rate:
        each_rate = rate / sum(
            max(rank.record.workers, 1) for rank, found in growths.items() if found
        )
        notes.append(_phrase_rate(60 * each_rate))
    return notes


def _list_process_holders(
    run: Run, worst: MemoryRecord, ranks: Sequence[_RankMemory]
) -> Iterator[Holder]:
    """Yields the memory of training processes, metric results and shared memory."""
    unit, records = _choose_unit(worst.total_bytes), [rank.record for rank in ranks]
    results = sum(record.result_bytes or 0 for record in records)
    processes = sum(record.process_bytes or 0 for record in records)
    results = min(results, processes)
    name, notes = phrase('training process'), list[Text]()
    if len(ranks) > 1:
        name = phrase('{processes:d} training processes', processes=len(ranks))
        notes.append(_phrase_each(ranks, unit))
    parsed = run.meta.dataset_bytes or 0
    if parsed >= _SHOWN_SHARE * worst.total_bytes:
        size = unit.phrase(parsed)
        if len(ranks) > 1:
            notes.append(
                phrase('{size} of it the data set, parsed by each rank', size=size)
            )
        else:
            notes.append(phrase('{size} of it the data set', size=size))
    rates = [found.bytes_per_s for r in ranks if (found := r.find_process_growth())]
    if len(rates) == len(ranks):
        notes.append(_phrase_rate(60 * sum(rates) / len(rates)))
    else:
        for rank in ranks:
            growing = _phrase_growth(rank, unit)
            if growing and len(ranks) > 1:
                number = rank.run.meta.rank
                growing = phrase('rank {rank} {growing}', rank=number, growing=growing)
            notes += [growing] if growing else []
    yield Holder(name, processes - results, listed(notes))
    if worst.shm_bytes:
        yield Holder(_name_shared(worst), worst.shm_bytes)
    if results:
        named = next((r.result_name for r in records if r.result_name), None)
        metric = (named or 'metrics').partition('.')[0]
        yield Holder(phrase('results of {metric}', metric=metric), results)


def _name_shared(record: MemoryRecord) -> Text:
    if record.bound == 'group':
        # the kernel counts them together there
        return phrase('shared memory (/dev/shm and any other tmpfs)')
    return Text('/dev/shm')


def _phrase_growth(rank: _RankMemory, unit: _Unit) -> Text | None:
    """Phrases how a training process's memory last grew; ``None`` if it did not."""
    growth, rise = rank.find_process_growth(), rank.find_process_rise()
    if growth is not None:
        return _phrase_rate(60 * growth.bytes_per_s)
    if rise is None or rise.is_settled:
        return None
    return phrase(
        'up from at most {size} within {passed_s:.0f} s',
        size=unit.phrase(rise.before_bytes),
        passed_s=rise.passed_s,
    )


def _phrase_each(ranks: Sequence[_RankMemory], unit: _Unit) -> Text:
    """Phrases how much memory each training process holds, naming one that differs."""
    sizes = {
        rank.run.meta.rank: (rank.record.process_bytes or 0)
        - (rank.record.result_bytes or 0)
        for rank in ranks
    }
    ordered = sorted(sizes, key=lambda number: sizes[number])
    low, high = sizes[ordered[0]], sizes[ordered[-1]]
    if high <= _ALIKE * low:
        each = sum(sizes.values()) / len(sizes)
        return phrase('{each} each', each=unit.phrase(each))
    for odd, rest in ((ordered[-1], ordered[:-1]), (ordered[0], ordered[1:])):
        if sizes[rest[-1]] <= _ALIKE * sizes[rest[0]]:
            each = sum(sizes[number] for number in rest) / len(rest)
            facts = {
                'rank': odd,
                'size': unit.phrase(sizes[odd]),
                'each': unit.phrase(each),
            }
            if len(rest) > 1:
                return phrase('rank {rank} {size}, the others {each} each', **facts)
            return phrase(
                'rank {rank} {size}, rank {other} {each}', other=rest[0], **facts
            )
    return phrase(
        '{low} to {high} each, most on rank {rank}',
        low=unit.phrase(low),
        high=unit.phrase(high),
        rank=ordered[-1],
    )


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
    is_recent: bool = False
    """True if only the newest readings grow, so that what comes next is unknown."""


def _find_growth(times_s: Column, sizes: Column) -> _Growth | None:
    """Fits the growth of memory in bytes since its last fall, by least squares.

    What began to grow late is no line over all readings: then the newest third counts,
    and of that the newest third again.
    """
    falls = np.flatnonzero(sizes[1:] < (1 - _DROP) * sizes[:-1])
    begin = int(falls[-1]) + 1 if len(falls) else 0
    times_s, sizes = times_s[begin:], sizes[begin:]
    found = _fit(times_s, sizes)
    while found is None and len(times_s) >= 3 * _LEAST_READINGS:
        cut = len(times_s) - len(times_s) // 3
        times_s, sizes = times_s[cut:], sizes[cut:]
        found = _fit_line(times_s, sizes, float(np.ptp(times_s)), _LEAST_RECENT_FIT)
        found = found and found._replace(is_recent=True)
    return found


def _fit(times_s: Column, sizes: Column) -> _Growth | None:
    if len(times_s) < _LEAST_READINGS:
        return None
    # the first third holds what fills once: caches, pools
    skipped = len(times_s) // 3 if len(times_s) >= 3 * _LEAST_READINGS else 1
    return _fit_line(times_s[skipped:], sizes[skipped:], float(np.ptp(times_s)))


def _fit_line(
    times_s: Column, sizes: Column, whole_s: float, least_fit: float = _LEAST_FIT
) -> _Growth | None:
    is_flat = np.ptp(times_s) <= 0 or np.ptp(sizes) <= 0
    if len(times_s) < _LEAST_READINGS - 1 or is_flat:
        return None
    slope = float(np.polyfit(times_s - times_s[0], sizes, 1)[0])
    fit = float(np.corrcoef(times_s, sizes)[0, 1]) ** 2
    gained = slope * float(np.ptp(times_s))
    if slope <= 0 or fit < least_fit or gained < _LEAST_GAIN * float(sizes[-1]):
        return None
    return _Growth(slope, slope * whole_s)


class _Outlook(NamedTuple):
    """Safe number of workers for host memory, or which processes outgrow it anyway."""

    holding: Holding | None = None
    growing: _Growing | None = None


class _WorkerCost(NamedTuple):
    """Bytes that each train loader worker adds to host memory, and bytes that leak."""

    each_bytes: float
    """Bytes of memory that one worker adds, excluding leaks by loaded samples."""
    leaked_bytes: float
    """Bytes that loaded samples leaked so far, independent of the number of workers."""
    bytes_per_s: float
    """Bytes per second by which memory leaked by loaded samples grows."""


def _find_outlook(
    run: Run, worst: MemoryRecord, ranks: Sequence[_RankMemory]
) -> _Outlook:
    """Finds the number of workers for which memory would have sufficed.

    It counts until training ends, or until an epoch does that ends the workers. Nothing
    is said where something else rose at the end, or may have: how far is unknown.
    """
    added = _count_added(ranks)
    left_s = _find_left_s(run)
    growths = [rank.find_process_growth() for rank in ranks]
    # it went on to take what was left
    steady = max(worst.total_bytes, worst.used_bytes) - added
    grown = sum(growth.bytes_per_s for growth in growths if growth is not None)
    if grown:
        steady += grown * left_s.training
    budget = SAFE_MEMORY_SHARE * worst.total_bytes - steady
    if any(growth is not None and growth.is_recent for growth in growths):
        return _Outlook()
    if grown and budget < 0:
        return _Outlook(growing='process')
    rises = [
        rank.find_process_rise()
        for rank, growth in zip(ranks, growths)
        if growth is None
    ]
    is_unsettled = any(rise is None or not rise.is_settled for rise in rises)
    if not worst.workers or not added or is_unsettled or _have_others_grown(ranks):
        return _Outlook()
    cost, kept = _find_worker_cost(run, ranks), are_workers_kept(run)
    if cost is None:
        return _Outlook()
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


def _have_others_grown(ranks: Sequence[_RankMemory]) -> bool:
    """True if memory that no known process holds grew, or may have, during training."""
    first = ranks[0]
    since = [next(_list_trained(rank.run), rank.record) for rank in ranks]
    now = [rank.record for rank in ranks]
    if since[0] is now[0]:
        return True
    grown = _count_unknown(now) - _count_unknown(since)
    return grown > _LEAST_GAIN * first.record.total_bytes


def _list_trained(run: RecordedRun) -> Iterator[MemoryRecord]:
    for record in run.evidence.memory:
        if record.phase == 'train' and record.workers:
            yield record


def _count_unknown(ranks: Sequence[MemoryRecord]) -> int:
    """Counts the bytes in use that no training process and no worker holds."""
    known = sum(
        (record.process_bytes or 0)
        + (record.worker_bytes or 0)
        + (record.validation_worker_bytes or 0)
        for record in ranks
    )
    return max(ranks[0].used_bytes - known, 0)


def _count_added(ranks: Sequence[_RankMemory]) -> float:
    """Counts the bytes of train loader workers' memory that no other process shares."""
    added = 0.0
    for rank in ranks:
        shared = rank.record.workers * rank.count_shared()
        added += max((rank.record.worker_bytes or 0) - shared, 0.0)
    return added


def _find_worker_cost(run: Run, ranks: Sequence[_RankMemory]) -> _WorkerCost | None:
    """Finds the bytes that each worker holds, and the bytes that loaded samples leaked.

    What leaks with each sample is the same with fewer workers, which load as many. What
    they copy of the data set as they read, each of them does.

    Returns:
        ``None`` where the workers began to grow late, so that what comes is unknown.
    """
    added = _count_added(ranks)
    count = sum(rank.record.workers for rank in ranks)
    growths = [rank.find_worker_growth() for rank in ranks]
    found = [growth for growth in growths if growth is not None]
    if any(growth.is_recent for growth in found):
        return None
    if not found:
        return _WorkerCost(added / count, 0.0, 0.0)
    objects = run.meta.loader.object_bytes or 0
    gained = sum(growth.gained_bytes for growth in found)
    # an edited file may say anything
    leaked = min(gained, _MOST_LEAKED * added)
    each = max((added - leaked) / count, 1.0)
    if gained <= _COPIES * count * objects:
        return _WorkerCost(max(added / count, each + objects), 0.0, 0.0)
    rate = sum(growth.bytes_per_s for growth in found)
    return _WorkerCost(each, leaked, rate)


class _Left(NamedTuple):
    """Seconds from the last log interval to the ends of the training and the epoch."""

    training: float
    epoch: float
    whole_epoch: float
    """Seconds that each epoch takes, from its first iteration to its last."""


def _find_left_s(run: Run) -> _Left:
    if not run.intervals or not run.figures.iterations:
        return _Left(math.inf, math.inf, math.inf)
    last, since = run.intervals[-1], run.intervals[len(run.intervals) // 3]
    each_s = last.elapsed_s / run.figures.iterations
    if last.iteration > since.iteration:
        # as fast as in the stretch over which growth is fitted
        passed_s = last.elapsed_s - since.elapsed_s
        each_s = passed_s / (last.iteration - since.iteration)
    left, batches = count_left(run), run.meta.loader.batches_per_epoch
    epoch = whole = math.inf
    if batches:
        done = last.iteration % batches
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
    most = max(
        _sum_own([rank.record for rank in _list_ranks(run, record)])
        for record in records
    )
    limit = host.cgroup_memory_bytes
    if limit and run.evidence.was_killed_for_memory:
        most = max(most, limit)
    return math.ceil((1 + MEMORY_MARGIN) * most / _GIB)


def _sum_own(ranks: Sequence[MemoryRecord]) -> int:
    """Sums up the memory bytes of a training's ranks, or of their control group."""
    first = ranks[0]
    own = sum(
        (rank.process_bytes or 0)
        + (rank.worker_bytes or 0)
        + (rank.validation_worker_bytes or 0)
        + (rank.child_bytes or 0)
        for rank in ranks
    )
    own += first.shm_bytes or 0
    return max(own, first.used_bytes) if first.bound == 'group' else own
