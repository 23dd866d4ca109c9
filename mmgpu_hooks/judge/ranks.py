"""Joins the ranks of one run and finds the one that the others wait for.

In synchronous data-parallel training every rank takes the same time per iteration: who
is done early waits for the slowest inside its step, where the gradients are exchanged.
So the slowest rank is not the one with the longest step but the one that does most
outside it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mmgpu_hooks.judge.columns import Column, Intervals, Mask, filled, total
from mmgpu_hooks.judge.figures import MIN_CALM, GpuFigures, gpu_figures
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import CardImbalance, RankRow, RanksSummary, RunRecord
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
    rows = [
        _row(rank, shared[number], gpus[number])
        for number, rank in ranks.items()
        if common
    ]
    summary = RanksSummary(
        world,
        f'The slowest rank cannot be told: {len(rows)} rank(s) have '
        f'{len(common)} interval(s) in common beside the warm-up, needed '
        f'{MIN_INTERVALS} of at least 2 ranks.',
        rows=tuple(rows),
        iterations=iterations,
        first_iteration=common[0][0] - common[0][1] + 1 if common else None,
        last_iteration=common[-1][0] if common else None,
        imbalance=_compare_cards(gpus),
        notes=tuple(notes),
    )
    if len(rows) < 2 or len(common) < MIN_INTERVALS:
        return summary
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
    return replace(
        summary,
        why=why,
        slowest=slowest.rank if part else None,
        part=part,
        lost_s=lost_s if part else None,
        noise_s=noise_s,
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
    by_util = sorted(known, key=lambda number: known[number].util_pct or 0.0)
    imbalance = CardImbalance(
        cards=len(known),
        samples=sum(gpu.samples for gpu in known.values()),
        util_min_pct=known[by_util[0]].util_pct or 0.0,
        util_max_pct=known[by_util[-1]].util_pct or 0.0,
        least_rank=by_util[0],
        most_rank=by_util[-1],
    )
    clocks = {n: gpu.sm_clock_mhz for n, gpu in known.items() if gpu.sm_clock_mhz}
    if len(clocks) < len(known):
        return (imbalance,)
    slow = min(clocks, key=clocks.__getitem__)
    return (
        replace(
            imbalance,
            clock_min_mhz=clocks[slow],
            clock_max_mhz=max(clocks.values()),
            slow_clock_rank=slow,
        ),
    )


def _ms(seconds: float) -> str:
    return f'{1000 * seconds:.1f} ms' if seconds < 1 else f'{seconds:.2f} s'


START_TOLERANCE_S = 300.0
"""Ranks start together up to building their datasets and their hosts' clocks."""


def fold_ranks(
    first: Run, others: Sequence[Run], notes: Sequence[str] = ()
) -> RanksSummary | None:
    """Compare the ranks of one run over the iterations that all of them recorded.

    Args:
        first: The rank whose run it is, usually rank 0.
        others: What was found beside it; files of another run are left out.
        notes: What to say besides, such as files that could not be read.

    Returns:
        ``None`` for a run of a single rank.
    """
    world = first.run.world_size
    if world <= 1 and not others:
        return None
    ranks, left_out = _join(first, others)
    said = [*notes, *left_out]
    missing = sorted(set(range(world)) - set(ranks))
    if missing:
        said.append(
            f'{world - len(missing)} of {world} ranks left evidence here; missing: '
            f'{_shorten(missing)}.'
        )
    if world <= 1:
        return RanksSummary(world, 'It is a run of one rank.', notes=tuple(said))
    for number in [number for number, rank in ranks.items() if not rank.intervals]:
        del ranks[number]
        said.append(f'Rank {number} recorded no interval.')
    common = find_common(ranks.values())
    said += _cut_short(ranks, common)
    return compare_ranks(ranks, common, world, said)


def find_slowest(ranks: RanksSummary | None, runs: Sequence[Run]) -> Run | None:
    """The rank that the others wait for; ``None`` without one.

    Where only its newest part was read, it is to be read in full before it is judged:
    sums and epoch starts of a part are not the run's, and its first interval is no
    warm-up.
    """
    if ranks is None or ranks.slowest is None:
        return None
    return next(rank for rank in runs if rank.run.rank == ranks.slowest)


def with_saves_of(judged: Run, first: Run) -> Run:
    """A rank's run with the saves of the rank that makes them for all.

    MMEngine saves on rank 0 alone. The others have no save of their own: they wait for
    it, in their next step, and what is booked there is moved.

    Args:
        judged: The rank whose figures are judged.
        first: Rank 0.

    Returns:
        ``judged`` itself where it saved too, or nobody did. Only ``ledger_s``, whose
        sum stays, and what is known of the saves differ.
    """
    if judged.saves or not first.saves:
        return judged
    ledger_s = dict(judged.ledger_s)
    own_s, step_s = ledger_s.get('checkpoint_save', 0.0), ledger_s.get('step', 0.0)
    waited_s = first.ledger_s.get('checkpoint_save', 0.0) - own_s
    moved_s = min(max(waited_s, 0.0), step_s)
    ledger_s.update(checkpoint_save=own_s + moved_s, step=step_s - moved_s)
    return judged.altered(
        saves=first.saves,
        ledger_s=ledger_s,
        save_records=first.save_records,
        save_aftermaths=first.save_aftermaths,
    )


def _join(first: Run, others: Sequence[Run]) -> tuple[dict[int, Run], list[str]]:
    ranks = {first.run.rank: first}
    left_out = []
    for other in others:
        difference = _difference(first.run, other.run)
        if difference is None and other.run.rank in ranks:
            difference = f'rank {other.run.rank} is there already'
        if difference is None:
            ranks[other.run.rank] = other
        else:
            left_out.append(f'{other.path} is of another run ({difference}).')
    return dict(sorted(ranks.items())), left_out


def _difference(run: RunRecord, other: RunRecord) -> str | None:
    """Why two records are not of the same run; ``None`` when they are."""
    for name in ('world_size', 'start_iteration', 'loop', 'max_epochs', 'max_iters'):
        mine, its = getattr(run, name), getattr(other, name)
        if mine != its:
            return f'{name} {its} instead of {mine}'
    if other.rank >= other.world_size:
        return f'rank {other.rank} of {other.world_size}'
    apart_s = abs(other.started_unix_s - run.started_unix_s)
    if apart_s > START_TOLERANCE_S:
        return f'it started {apart_s:.0f} s apart'
    return None


def _cut_short(ranks: Mapping[int, Run], common: Sequence[Key]) -> list[str]:
    """What to say of files that end before the others, or have no end yet."""
    last = {number: rank.intervals[-1].iteration for number, rank in ranks.items()}
    if not common or common[-1][0] == max(last.values()):
        return []
    behind = [number for number, end in last.items() if end < max(last.values())]
    return [
        f'Ranks are compared up to iteration {common[-1][0]} of {max(last.values())}: '
        f'the files of rank {_shorten(behind)} end there.'
    ]


def _shorten(ranks: Sequence[int]) -> str:
    """``1-3, 6``."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ', '.join(f'{a}-{b}' if b > a else f'{a}' for a, b in spans)
