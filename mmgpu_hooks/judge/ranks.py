"""Compares the ranks of one training run and finds the slowest rank.

In synchronous data-parallel training every rank takes the same time per iteration: who
is done early waits for the slowest inside its step, where the gradients are exchanged.
So the slowest rank is not the one with the longest step but the one that does most
outside it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mmgpu_hooks.judge.columns import Column, Intervals, count_all, filled, total
from mmgpu_hooks.judge.figures import summarize_gpu
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.recorded import RunRecord
from mmgpu_hooks.schema.run import RankRow, RanksSummary, read_other_ranks
from mmgpu_hooks.schema.text import Text, phrase, quoted

MIN_INTERVALS = 3
"""Least number of log intervals common to all ranks for a comparison of the ranks."""

NOISE_SHARE = 0.01
"""Share (0 to 1) of an iteration's time below which a difference of ranks is noise."""

IN_STEP_SHARE = 0.05
"""Largest relative difference in iteration time between ranks that train in step."""

START_TOLERANCE_S = 300.0
"""Largest difference, in seconds, of start times of ranks that count as one run.

Datasets take time, and hosts' clocks differ.
"""

_WAITING_HOOK = 'SyncBuffersHook'
"""Name of the MMEngine hook in which all ranks wait for the slowest one."""


class _OwnPart(NamedTuple):
    """Part of a rank's time, such as data wait, that other ranks cannot lengthen."""

    field: str
    """Name of the `RankRow` field with the seconds that a rank spent in the part."""
    does: Text
    """Verb phrase for a rank that spends time in the part: ``waits for data``."""


_OWN_PARTS = {
    'data_wait': _OwnPart('data_wait_s', phrase('waits for data')),
    'startup': _OwnPart('startup_s', phrase('starts workers')),
    'hooks': _OwnPart('hooks_s', phrase('is in hooks')),
    'checkpoint_save': _OwnPart('save_s', phrase('saves checkpoints')),
}


_APART = phrase(
    'The ranks train apart: the model is not wrapped for data-parallel training, so no '
    'gradients are exchanged and no rank waits for another. Start the training with '
    '"--launcher pytorch".'
)


def compare_ranks(
    first: Run, others: Sequence[Run], notes: Sequence[str] = ()
) -> RanksSummary | None:
    """Finds the rank that the others wait for, over the intervals that all recorded.

    Args:
        first: The rank whose run it is, usually rank 0.
        others: What was found beside it; files of another run are left out.
        notes: What to say besides, such as files that could not be read.

    Returns:
        ``None`` for a run of a single rank.
    """
    world = first.meta.world_size
    if world <= 1:
        return None
    said: list[str] = [*notes]
    ranks = {first.meta.rank: first}
    for other in others:
        difference = find_difference(first.meta, other.meta)
        if difference is None and other.meta.rank in ranks:
            difference = phrase('rank {rank} is there already', other.meta)
        if difference is None:
            ranks[other.meta.rank] = other
        else:
            said.append(
                phrase(
                    '{path} is of another run ({difference}).',
                    path=str(other.path),
                    difference=difference,
                )
            )
    said += describe_missing(world, ranks)
    known = {number: rank for number, rank in sorted(ranks.items()) if rank.intervals}
    said += [
        phrase('Rank {rank} recorded no interval.', rank=number)
        for number in sorted({*ranks} - {*known})
    ]
    # ranks in step record the same intervals, but for those of one that ended early
    lasts = [rank.intervals[-1].iteration for rank in known.values()] or [0]
    if min(lasts) < max(lasts):
        said.append(
            phrase(
                'Ranks are compared up to iteration {iteration} of {last}.',
                iteration=min(lasts),
                last=max(lasts),
            )
        )
    count = min((len(rank.steady) for rank in known.values()), default=0)
    shared = {
        number: rank.steady.take(range(count))
        for number, rank in known.items()
        if count
    }
    summary = _compare(
        shared, RanksSummary(world, Text(''), notes=tuple(map(quoted, said)))
    )
    if first.meta.is_model_wrapped is not False:
        return summary
    # nobody waits for anybody, and an early end says nothing
    return replace(summary, why=_APART, slowest=None, part=None, lost_s=None)


def join_ranks(ranks: RanksSummary | None, runs: Sequence[Run]) -> list[Run]:
    """Links each compared rank's run to the runs of the other compared ranks.

    Args:
        ranks: What `compare_ranks` made of them.
        runs: All that were read.

    Returns:
        Those that were compared.
    """
    compared = {row.rank for row in ranks.rows} if ranks is not None else ()
    joined = [run for run in runs if run.meta.rank in compared]
    return [
        Run(run.evidence, [other for other in joined if other is not run])
        for run in joined
    ]


class JudgedRank(NamedTuple):
    """Rank whose measurements represent the whole run, and the comparison of ranks."""

    run: Run
    ranks: RanksSummary | None
    """Comparison of the run's ranks; ``None`` for a run of a single rank."""
    first: Run
    """Recorded run of rank 0, linked to the other ranks' runs if those were read."""


def read_ranks(first: Run, others: Sequence[Path]) -> JudgedRank:
    """Reads the evidence of a run's other ranks, and chooses the rank to be judged.

    Args:
        first: Rank 0.
        others: Evidence of the other ranks; a file that cannot be read is a note.

    Returns:
        As :func:`choose_judged`.
    """
    found, notes = read_other_ranks(others)
    runs = [first, *map(Run, found)]
    return choose_judged(compare_ranks(first, runs[1:], notes), runs)


def choose_judged(ranks: RanksSummary | None, runs: Sequence[Run]) -> JudgedRank:
    """Chooses the rank whose measurements represent the whole run.

    Args:
        ranks: What `compare_ranks` made of them.
        runs: Rank 0, then all others that were read.

    Returns:
        The rank that the others wait for, or else the one that waits most for data;
        it knows the others. The summary says which it is.
    """
    first = runs[0]
    if ranks is None or not ranks.rows:
        return JudgedRank(first, ranks, first)
    judged = ranks.slowest
    note = phrase(
        'Rank {rank} of {world_size} holds the others up and is judged.',
        ranks,
        rank=judged,
    )
    if judged is None:
        judged = max(ranks.rows, key=lambda row: row.data_wait_s).rank
        note = phrase(
            'Rank {rank} of {world_size} waits most for data and is judged.',
            ranks,
            rank=judged,
        )
    joined = {run.meta.rank: run for run in join_ranks(ranks, runs)}
    chosen = with_saves_of(joined[judged], first)
    first = joined.get(first.meta.rank, first)
    return JudgedRank(chosen, replace(ranks, notes=(note, *ranks.notes)), first)


def with_saves_of(judged: Run, first: Run) -> Run:
    """Adds rank 0's checkpoint saves, which are made for all ranks, to a rank's run.

    MMEngine saves on rank 0 alone. The others have no save of their own: they wait for
    it, in their next step, and what is booked there is moved.

    Args:
        judged: The rank whose figures are judged.
        first: Rank 0.

    Returns:
        ``judged`` itself where it saved too, or none did. Only ``ledger_s``, whose
        sum stays, and what is known of the saves differ.
    """
    figures, saves = judged.figures, first.figures.saves
    if figures.saves or not saves:
        return judged
    ledger_s = dict(figures.ledger_s)
    own_s, step_s = ledger_s.get('checkpoint_save', 0.0), ledger_s.get('step', 0.0)
    waited_s = first.figures.ledger_s.get('checkpoint_save', 0.0) - own_s
    moved_s = min(max(waited_s, 0.0), step_s)
    ledger_s.update(checkpoint_save=own_s + moved_s, step=step_s - moved_s)
    evidence = replace(
        judged.evidence,
        save_records=first.save_records,
        after_saves=first.after_saves,
    )
    figures = replace(figures, saves=saves, ledger_s=ledger_s)
    return Run(evidence, judged.other_ranks, figures=figures)


def describe_missing(world_size: int, ranks: Collection[int]) -> list[Text]:
    """Names the ranks that left no evidence file, in a sentence; empty if all did."""
    missing = tuple(str(rank) for rank in range(world_size) if rank not in ranks)
    if not missing:
        return []
    return [
        phrase(
            '{found_ranks:d} of {ranks} left evidence here; missing: {missing}.',
            found_ranks=len(ranks),
            ranks=world_size,
            missing=missing,
        )
    ]


def find_difference(run: RunRecord, other: RunRecord) -> Text | None:
    """Says why two ranks' records are of different runs; ``None`` if of the same run.

    A rank that has not begun to train is taken to be of the same run.
    """
    if run.loop is None or other.loop is None:
        return None
    # by epochs max_iters is that many times the rank's own number of batches
    planned = 'max_iters' if run.loop == 'iter' else 'max_epochs'
    for name in ('world_size', 'start_iteration', planned):
        mine, its = getattr(run, name), getattr(other, name)
        if mine != its:
            return phrase(
                '{name} {its} instead of {mine}', name=name, its=its, mine=mine
            )
    apart_s = abs(other.started_unix_s - run.started_unix_s)
    if apart_s > START_TOLERANCE_S:
        return phrase('it started {apart_s:.0f} s apart', apart_s=apart_s)
    return None


def _compare(shared: Mapping[int, Intervals], summary: RanksSummary) -> RanksSummary:
    """Completes a comparison of ranks from log intervals that all ranks recorded."""
    rows = [_row(number, intervals) for number, intervals in shared.items()]
    # of any rank: all recorded the same intervals
    first = next(iter(shared.values()), Intervals(()))
    iterations = count_all(first.column('iterations'))
    summary = replace(summary, rows=tuple(rows), iterations=iterations)
    if len(rows) < 2:
        why = phrase(
            'The slowest rank is unknown: only {known_ranks:d} of {ranks} had recorded '
            'intervals when this was read.',
            known_ranks=len(rows),
            ranks=summary.world_size,
        )
        return replace(summary, why=why)
    if len(first) < MIN_INTERVALS:
        why = phrase(
            'The slowest rank is unknown: {ranks} with {intervals} in common after the '
            'warm-up, needed {needed_intervals:d} of at least 2 ranks.',
            ranks=len(rows),
            intervals=len(first),
            needed_intervals=MIN_INTERVALS,
        )
        return replace(summary, why=why)
    slowest = max(rows, key=lambda row: row.own_s)
    others = [row for row in rows if row is not slowest]
    leads_s = {  # what the slowest spends beyond the median of the others
        field: getattr(slowest, field)
        - statistics.median(getattr(row, field) for row in others)
        for field in ('own_s', *(part.field for part in _OWN_PARTS.values()))
    }
    lost_s, noise_s = leads_s['own_s'], _noise_s(shared, slowest.rank)
    summary = replace(summary, noise_s=noise_s)
    wholes = [
        total(intervals.column('duration_s')) / iterations
        for intervals in shared.values()
    ]
    low, high = min(wholes), max(wholes)
    if high - low > IN_STEP_SHARE * high:
        why = phrase(
            'The slowest rank is unknown: the ranks do not wait for each other: '
            '{low_s} to {high_s} pass per iteration (mean of {iterations}).',
            low_s=low,
            high_s=high,
            iterations=iterations,
        )
    elif lost_s <= noise_s:
        why = phrase(
            'No rank holds the others up outside the step: the one that does most '
            'there (rank {rank}) is {lead_s} per iteration above the median of the '
            'others, within the noise of {noise_s} (mean of {iterations}). A slower '
            'card would not show here.',
            rank=slowest.rank,
            lead_s=lost_s,
            noise_s=noise_s,
            iterations=iterations,
        )
    else:
        name = max(_OWN_PARTS, key=lambda own: leads_s[_OWN_PARTS[own].field])
        part = _OWN_PARTS[name]
        why = phrase(
            'Rank {rank} is the slowest and costs every rank {lost_s} per iteration: '
            'it {does} {part_s}, {lead_s} more than the median of the other ranks '
            '(mean of {iterations}).',
            rank=slowest.rank,
            lost_s=lost_s,
            does=part.does,
            part_s=getattr(slowest, part.field),
            lead_s=leads_s[part.field],
            iterations=iterations,
        )
        summary = replace(summary, slowest=slowest.rank, part=name, lost_s=lost_s)
    return replace(summary, why=why)


def _row(number: int, shared: Intervals) -> RankRow:
    count, gpu = total(shared.column('iterations')), summarize_gpu(shared, shared)
    parts = {
        part.field: total(_seconds(shared, name)) / count
        for name, part in _OWN_PARTS.items()
    }
    return RankRow(
        rank=number,
        own_s=math.fsum(parts.values()),
        step_s=total(_seconds(shared, 'step')) / count,
        gpu_util_pct=gpu.util_pct if gpu else None,
        **parts,
    )


def _seconds(intervals: Intervals, part: str) -> Column:
    """Returns the seconds of each log interval in one part, such as the data wait."""
    seconds = filled(intervals.column('ledger_s', part))
    if part == 'hooks':
        seconds = seconds - filled(intervals.column('hooks_s', _WAITING_HOOK))
    return np.maximum(seconds, 0.0)


def _noise_s(shared: Mapping[int, Intervals], slowest: int) -> float:
    """Computes the seconds per iteration by which ranks may differ by chance.

    Three standard errors of its mean lead in waits and hooks over the common intervals,
    and at least a hundredth of an iteration. Saves and starts are few and large: they
    are what they are, and no noise.
    """
    counts = shared[slowest].column('iterations')
    varying = {
        number: (_seconds(rank, 'data_wait') + _seconds(rank, 'hooks')) / counts
        for number, rank in shared.items()
    }
    own_s = varying.pop(slowest)
    leads = own_s - np.median(list(varying.values()), axis=0)
    step_s = _seconds(shared[slowest], 'step') / counts
    error_s = float(leads.std(ddof=1)) / math.sqrt(len(leads))
    return max(3 * error_s, NOISE_SHARE * float((own_s + step_s).mean()))
