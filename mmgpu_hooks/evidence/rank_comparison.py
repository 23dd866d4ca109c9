"""Finds the rank that the others wait for.

In synchronous data-parallel training every rank takes the same time per iteration: who
is done early waits for the slowest inside its step, where the gradients are exchanged.
So the slowest rank is not the one with the longest step but the one that does most
outside it.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Iterable, Mapping, Sequence
from operator import truediv

from mmgpu_hooks.evidence.interval_table import IntervalTable
from mmgpu_hooks.evidence.ledger_parts import PARTS
from mmgpu_hooks.evidence.summary_gpu import (
    MIN_CALM,
    fold_cards,
    fold_gpu,
    fold_imbalance,
    uuids_of_run,
)
from mmgpu_hooks.evidence.weights import calm_mask, total
from mmgpu_hooks.schema import (
    CardImbalance,
    GpuWindow,
    RankRow,
    RanksSummary,
    RunEvidence,
)

MIN_INTERVALS = 3
"""Fewer do not show how much a rank varies by itself."""

NOISE_SHARE = 0.01
"""Of an iteration: what ranks differ by below is none, however steadily they do."""

IN_STEP_SHARE = 0.05
"""By how much the wall clock per iteration may differ between ranks in step."""

_WAITING_HOOKS = ('SyncBuffersHook',)
"""Hooks that talk to all ranks: the others wait for the slowest in there."""

_OWN_PARTS = {
    'data_wait': 'waits for data',
    'worker_startup': 'starts workers',
    'hooks': 'is in hooks',
    'checkpoint_save': 'saves checkpoints',
}
"""What no other rank holds up, and what a rank does in it."""

Key = tuple[int, int]
"""An interval: its last iteration and how many it has."""


def find_common(tables: Iterable[IntervalTable]) -> list[Key]:
    """The intervals that all ranks have, in order."""
    common: set[Key] | None = None
    for table in tables:
        keys = _keys(table)
        common = set(keys) if common is None else common.intersection(keys)
    return sorted(common or ())


def compare_ranks(
    ranks: Mapping[int, RunEvidence],
    steady: Mapping[int, IntervalTable],
    common: Sequence[Key],
    world: int,
    notes: Sequence[str],
) -> RanksSummary:
    """Find the rank that the others wait for.

    Args:
        ranks: Evidence of one run, by rank.
        steady: The steady intervals of each.
        common: Which of them all ranks have, in order.
        world: Ranks of the run, those without evidence too.
        notes: Passed on.
    """
    iterations = sum(count for _, count in common)
    tables = {number: _take(table, common) for number, table in steady.items()}
    plain = _plain_training(list(tables.values()))
    rows = [
        _row(rank, tables[number], fold_gpu(tables[number].where(plain)))
        for number, rank in ranks.items()
        if common
    ]
    if len(rows) < 2 or len(common) < MIN_INTERVALS:
        return RanksSummary(
            world,
            f'The slowest rank cannot be told: {len(rows)} rank(s) have '
            f'{len(common)} interval(s) in common beside the warm-up, needed '
            f'{MIN_INTERVALS} of at least 2 ranks.',
            rows=tuple(rows),
            iterations=iterations,
            first_iteration=common[0][0] - common[0][1] + 1 if common else None,
            last_iteration=common[-1][0] if common else None,
            imbalance=_imbalance(ranks, steady),
            notes=tuple(notes),
        )
    slowest = max(rows, key=lambda row: row.own_s)
    others = [row for row in rows if row is not slowest]
    lost_s = slowest.own_s - statistics.median(row.own_s for row in others)
    noise_s = _noise(tables, slowest.rank)
    wholes = [
        total(table.floats('duration_s')) / iterations for table in tables.values()
    ]
    part = None
    if max(wholes) - min(wholes) > IN_STEP_SHARE * max(wholes):
        why = (
            'The slowest rank cannot be told: the ranks do not wait for each other: '
            f'{_ms(min(wholes))} to {_ms(max(wholes))} pass per iteration (mean of '
            f'{iterations}).'
        )
    elif lost_s <= noise_s:
        why = (
            f'No rank holds the others up outside the step: the one that does most '
            f'there (rank {slowest.rank}) is {_ms(lost_s)} per iteration above the '
            f'median of the others, within the noise of {_ms(noise_s)} ({iterations} '
            'iterations). A slower card would not show here.'
        )
    else:
        part, why = _reason(slowest, others, lost_s, iterations)
    return RanksSummary(
        world,
        why,
        rows=tuple(rows),
        iterations=iterations,
        first_iteration=common[0][0] - common[0][1] + 1,
        last_iteration=common[-1][0],
        slowest=slowest.rank if part else None,
        part=part,
        lost_s=lost_s if part else None,
        noise_s=noise_s,
        imbalance=_imbalance(ranks, steady),
        notes=tuple(notes),
    )


def _keys(table: IntervalTable) -> Iterable[Key]:
    iterations = table.ints('iterations').filled()
    return zip(table.ints('iteration').filled(), iterations)


def _take(table: IntervalTable, common: Sequence[Key]) -> IntervalTable:
    """The common intervals of one rank; the last of those with the same key."""
    rows = {key: row for row, key in enumerate(_keys(table))}
    return table.take(array('Q', map(rows.__getitem__, common)))


def _plain_training(tables: Sequence[IntervalTable]) -> Sequence[bool]:
    """Where no rank validates or saves; everywhere, where that is too rare.

    A GPU that waits for another rank's save is not to be compared with that one's.
    """
    calm = list(map(all, zip(*map(calm_mask, tables))))
    return calm if sum(calm) >= MIN_CALM else [True] * len(calm)


def _row(rank: RunEvidence, table: IntervalTable, gpu: GpuWindow | None) -> RankRow:
    iterations = total(table.ints('iterations'))
    parts = {part: math.fsum(_seconds(table, part)) / iterations for part in PARTS}
    return RankRow(
        rank=rank.run.rank,
        data_wait_s=parts['data_wait'],
        startup_s=parts['worker_startup'],
        hooks_s=parts['hooks'],
        save_s=parts['checkpoint_save'],
        own_s=math.fsum([parts[part] for part in _OWN_PARTS]),
        step_s=parts['step'],
        last_iteration=rank.intervals[-1].iteration,
        is_over=rank.end is not None,
        gpu_util_pct=gpu.util_pct if gpu else None,
    )


def _seconds(table: IntervalTable, part: str) -> Sequence[float]:
    """Of each interval."""
    seconds = table.floats('ledger_s', part).filled()
    if part == 'hooks':
        for name in _WAITING_HOOKS:
            waited_s = table.floats('hooks_s', name).filled()
            seconds = [max(s - w, 0.0) for s, w in zip(seconds, waited_s)]
    return seconds


def _noise(tables: Mapping[int, IntervalTable], slowest: int) -> float:
    """What the slowest's lead must exceed, in seconds per iteration.

    Three standard errors of its mean lead in waits and hooks over the common intervals,
    and at least a hundredth of an iteration. Saves and starts are few and large: they
    are what they are, and no noise.
    """
    counts = tables[slowest].ints('iterations').filled()
    varying = {
        number: [
            (wait_s + hooks_s) / count
            for wait_s, hooks_s, count in zip(
                _seconds(table, 'data_wait'), _seconds(table, 'hooks'), counts
            )
        ]
        for number, table in tables.items()
    }
    own_s = varying.pop(slowest)
    leads = [
        mine_s - statistics.median(others_s)
        for mine_s, others_s in zip(own_s, zip(*varying.values()))
    ]
    step_s = math.fsum(map(truediv, _seconds(tables[slowest], 'step'), counts))
    error_s = _deviation(leads) / math.sqrt(len(leads))
    whole_s = (math.fsum(own_s) + step_s) / len(leads)
    return max(3 * error_s, NOISE_SHARE * whole_s)


def _deviation(values: Sequence[float]) -> float:
    """Standard deviation of a sample; `statistics.stdev` takes fractions, and long."""
    mean = math.fsum(values) / len(values)
    squares = math.fsum([(value - mean) ** 2 for value in values])
    return math.sqrt(squares / (len(values) - 1))


def _reason(
    slowest: RankRow, others: Sequence[RankRow], lost_s: float, iterations: int
) -> tuple[str, str]:
    """The part in which the slowest exceeds the others most, and a sentence."""
    mine = _own_parts(slowest)
    theirs = {
        part: statistics.median(_own_parts(row)[part] for row in others)
        for part in _OWN_PARTS
    }
    part = max(_OWN_PARTS, key=lambda name: mine[name] - theirs[name])
    more_s = mine[part] - theirs[part]
    median = (
        'the other' if len(others) == 1 else f'the median of the {len(others)} others'
    )
    return part, (
        f'Rank {slowest.rank} is the slowest and costs every rank {_ms(lost_s)} per '
        f'iteration: it {_OWN_PARTS[part]} {_ms(mine[part])}, {_ms(more_s)} more than '
        f'{median} (mean of {iterations} iterations).'
    )


def _own_parts(row: RankRow) -> dict[str, float]:
    return dict(
        zip(_OWN_PARTS, (row.data_wait_s, row.startup_s, row.hooks_s, row.save_s))
    )


def _imbalance(
    ranks: Mapping[int, RunEvidence], steady: Mapping[int, IntervalTable]
) -> tuple[CardImbalance, ...]:
    """The cards of each host whose first rank recorded them."""
    uuids = {rank.run.gpu.uuid for rank in ranks.values() if rank.run.gpu}
    compared = []
    for number, rank in ranks.items():
        cards = fold_cards(steady[number])
        found = fold_imbalance(cards, uuids | uuids_of_run(rank.run, cards))
        if found is not None:
            compared.append(found)
    return tuple(compared)


def _ms(seconds: float) -> str:
    return f'{1000 * seconds:.1f} ms' if seconds < 1 else f'{seconds:.2f} s'
