"""Joins the ranks of one run, each of which left a file of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmgpu_hooks.judge.rank_comparison import Key, compare_ranks, find_common
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import RanksSummary, RunRecord

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
