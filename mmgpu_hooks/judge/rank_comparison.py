"""Finds the rank that the others wait for.

In synchronous data-parallel training every rank takes the same time per iteration: who
is done early waits for the slowest inside its step, where the gradients are exchanged.
So the slowest rank is not the one with the longest step but the one that does most
outside it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mmgpu_hooks.judge.columns import Column, Intervals, Mask, filled, total
from mmgpu_hooks.judge.figures import MIN_CALM, GpuFigures, gpu_figures
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import CardImbalance, RankRow, RanksSummary
from mmgpu_hooks.schema.parts import PARTS

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
    'startup': 'starts workers',
    'hooks': 'is in hooks',
    'checkpoint_save': 'saves checkpoints',
}
"""What no other rank holds up, and what a rank does in it."""

Key = tuple[int, int]
"""An interval: its last iteration and how many it has."""


def find_common(ranks: Iterable[Run]) -> list[Key]:
    """The steady intervals that all ranks have, in order."""
    common: set[Key] | None = None
    for rank in ranks:
        keys = _keys(rank.steady)
        common = set(keys) if common is None else common.intersection(keys)
    return sorted(common or ())


def compare_ranks(
    ranks: Mapping[int, Run], common: Sequence[Key], world: int, notes: Sequence[str]
) -> RanksSummary:
    """Find the rank that the others wait for.

    Args:
        ranks: Of one run, by rank.
        common: Which of their steady intervals all have, in order.
        world: Ranks of the run, those without evidence too.
        notes: Passed on.
    """
    iterations = sum(count for _, count in common)
    shared = {number: _take(rank.steady, common) for number, rank in ranks.items()}
    plain = _plain_training(list(shared.values()))
    gpus = {number: gpu_figures(some.where(plain)) for number, some in shared.items()}
    imbalance = _compare_cards(gpus)
    rows = [
        _row(rank, shared[number], gpus[number])
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
            imbalance=imbalance,
            notes=tuple(notes),
        )
    slowest = max(rows, key=lambda row: row.own_s)
    others = [row for row in rows if row is not slowest]
    lost_s = slowest.own_s - statistics.median(row.own_s for row in others)
    noise_s = _noise(shared, slowest.rank)
    wholes = [total(one.column('duration_s')) / iterations for one in shared.values()]
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
        imbalance=imbalance,
        notes=tuple(notes),
    )


def _keys(intervals: Intervals) -> list[Key]:
    ends = intervals.column('iteration').tolist()
    counts = intervals.column('iterations').tolist()
    return [(int(end), int(count)) for end, count in zip(ends, counts)]


def _take(intervals: Intervals, common: Sequence[Key]) -> Intervals:
    """The common intervals of one rank; the last of those with the same key."""
    rows = {key: row for row, key in enumerate(_keys(intervals))}
    return intervals.take([rows[key] for key in common])


def _plain_training(ranks: Sequence[Intervals]) -> Mask:
    """Where no rank validates or saves; everywhere, where that is too rare.

    A GPU that waits for another rank's save is not to be compared with that one's.
    """
    calm = np.all([one.calm() for one in ranks], axis=0)
    return calm if calm.sum() >= MIN_CALM else np.ones_like(calm)


def _row(rank: Run, shared: Intervals, gpu: GpuFigures | None) -> RankRow:
    iterations = total(shared.column('iterations'))
    parts = {part: total(_seconds(shared, part)) / iterations for part in PARTS}
    return RankRow(
        rank=rank.run.rank,
        data_wait_s=parts['data_wait'],
        startup_s=parts['startup'],
        hooks_s=parts['hooks'],
        save_s=parts['checkpoint_save'],
        own_s=math.fsum([parts[part] for part in _OWN_PARTS]),
        step_s=parts['step'],
        last_iteration=rank.intervals[-1].iteration,
        is_over=rank.end is not None,
        gpu_util_pct=gpu.util_pct if gpu else None,
    )


def _seconds(intervals: Intervals, part: str) -> Column:
    """Of each interval."""
    seconds = filled(intervals.column('ledger_s', part))
    if part == 'hooks':
        for name in _WAITING_HOOKS:
            waited_s = filled(intervals.column('hooks_s', name))
            seconds = np.maximum(seconds - waited_s, 0.0)
    return seconds


def _noise(shared: Mapping[int, Intervals], slowest: int) -> float:
    """What the slowest's lead must exceed, in seconds per iteration.

    Three standard errors of its mean lead in waits and hooks over the common intervals,
    and at least a hundredth of an iteration. Saves and starts are few and large: they
    are what they are, and no noise.
    """
    counts = shared[slowest].column('iterations')
    varying = {
        number: (_seconds(one, 'data_wait') + _seconds(one, 'hooks')) / counts
        for number, one in shared.items()
    }
    own_s = varying.pop(slowest)
    leads = own_s - np.median(list(varying.values()), axis=0)
    step_s = _seconds(shared[slowest], 'step') / counts
    error_s = float(leads.std(ddof=1)) / math.sqrt(len(leads))
    return max(3 * error_s, NOISE_SHARE * float((own_s + step_s).mean()))


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


def _compare_cards(
    gpus: Mapping[int, GpuFigures | None],
) -> tuple[CardImbalance, ...]:
    """The ranks' own cards over the common intervals, if two of them are known."""
    known = {n: gpu for n, gpu in gpus.items() if gpu and gpu.util_pct is not None}
    if len(known) < 2:
        return ()
    utils = {number: gpu.util_pct or 0.0 for number, gpu in known.items()}
    clocks = {
        number: gpu.sm_clock_mhz
        for number, gpu in known.items()
        if gpu.sm_clock_mhz is not None
    }
    least, most = min(utils, key=utils.__getitem__), max(utils, key=utils.__getitem__)
    slow = None
    if len(clocks) == len(known):
        slow = min(clocks, key=clocks.__getitem__)
    return (
        CardImbalance(
            cards=len(known),
            samples=sum(gpu.samples for gpu in known.values()),
            util_min_pct=utils[least],
            util_max_pct=utils[most],
            least_rank=least,
            most_rank=most,
            clock_min_mhz=None if slow is None else clocks[slow],
            clock_max_mhz=None if slow is None else max(clocks.values()),
            slow_clock_rank=slow,
        ),
    )


def _ms(seconds: float) -> str:
    return f'{1000 * seconds:.1f} ms' if seconds < 1 else f'{seconds:.2f} s'
