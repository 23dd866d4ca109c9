"""Adds to a diagnosis what held the host's memory, and which settings would fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mmgpu_hooks.judge.causes import CAUSES
from mmgpu_hooks.judge.holders import (
    MemoryShares,
    describe_start_memory,
    find_shares,
    find_worst,
)
from mmgpu_hooks.judge.recorded import RecordedRun
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.judged import Proof, Why
from mmgpu_hooks.schema.recorded import MemoryRecord
from mmgpu_hooks.schema.run import RunEvidence
from mmgpu_hooks.schema.text import Text, phrase

_OF_MEMORY = 'oom_host', 'oom_cgroup', 'shm_full'
_MAY_BE_MEMORY = 'unknown', 'worker_killed', 'rank_lost', 'interrupted'
"""Causes of failures that may really be caused by low host memory."""
_PROFILE = phrase(
    'What grows shows with memray run --follow-fork tools/train.py CONFIG (pip '
    'install memray).'
)


def add_holders(why: Why, ranks: Sequence[RunEvidence]) -> Why:
    """Adds to a diagnosis what held host memory, if that may have ended the run.

    Args:
        why: What is known.
        ranks: Evidence of the run's ranks.
    """
    held = [rank for rank in ranks if rank.memory]
    if why.state == 'completed' or not held:
        return why
    # the rank that saw it last, with the others beside it
    first = max(held, key=lambda rank: (rank.memory[-1].is_low, rank is held[0]))
    is_low = first.memory[-1].is_low
    is_near = why.cause in _MAY_BE_MEMORY and is_low
    if why.cause not in _OF_MEMORY and not is_near:
        return why
    others = [RecordedRun(rank) for rank in held if rank is not first]
    shares = find_shares(Run(first, others))
    if shares is None:
        return why
    proof = (*why.proof, Proof('evidence', None, shares.sentence))
    return replace(why, proof=proof, do=(*_advise(shares), *why.do))


def _advise(shares: MemoryShares) -> list[Text]:
    if shares.holding is not None:
        settings = [f'num_workers={shares.holding.workers}']
        settings += ['persistent_workers=False'] * shares.holding.ends_workers
        return [
            phrase(
                'Train with {settings:,}: it would have held. mmgpu recommend sets it.',
                settings=tuple(settings),
            )
        ]
    return [_PROFILE] if shares.is_growing else []


def add_start(why: Why, ranks: Sequence[Sequence[MemoryRecord]]) -> Why:
    """Adds to a diagnosis what held host memory when a training failed at its start.

    Args:
        why: What is known by its logs.
        ranks: What each rank recorded.
    """
    worst = [found for records in ranks if (found := find_worst(records)) is not None]
    if not worst or why.state == 'completed':
        return why
    last = max(worst, key=lambda record: record.is_low)
    is_of_memory = why.cause in _OF_MEMORY
    if not last.is_low and not is_of_memory:
        return why
    if why.cause in (None, 'unknown'):
        cause = 'oom_cgroup' if last.bound == 'group' else 'oom_host'
        title, do = phrase('{title}.', CAUSES[cause]), CAUSES[cause].do
        why = replace(why, cause=cause, certainty='likely', sentence=title, do=do)
    text = describe_start_memory(worst)
    return replace(why, proof=(*why.proof, Proof('evidence', None, text)))
