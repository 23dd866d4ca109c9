"""Adds to why ranks wait for one another what NCCL's flight recorder shows. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mmgpu_hooks.schema.judged import FlightRecord, Proof, Why

_OF_RANKS = (
    'rank_waits',
    'rank_lost',
    'rank_never_came',
    'uneven_inputs',
    'work_on_one_rank',
    'worker_stuck',
    'worker_deadlock',
    'storage_stalled',
    'unknown',
)
"""Causes that a collective may stand behind which was never ended."""


def add_flight_record(why: Why, record: FlightRecord) -> Why:
    """Add the collective in which ranks do not meet, and the rank that is behind.

    Args:
        why: What is known.
        record: Of the run's ranks.
    """
    if why.state == 'completed' or why.cause not in _OF_RANKS:
        return why
    proof = [Proof('flight recorder', None, text) for text in describe(record)]
    culprits = record.behind or tuple(record.others)
    is_first = why.rank is None and len(culprits) == 1
    if is_first:
        said = f" Rank {culprits[0]} is behind, by NCCL's flight recorder."
        why = replace(why, rank=culprits[0], sentence=why.sentence + said)
    return replace(
        why, proof=(*proof, *why.proof) if is_first else (*why.proof, *proof)
    )


def describe(record: FlightRecord) -> list[str]:
    """Say which ranks are not in a collective, and where the others are."""
    where = f'{record.name} {record.number} of {record.group}'
    said = []
    if record.behind:
        waiting = 'the others wait in it'
        said.append(f'{_name(record.behind)} never began {where}, {waiting}')
    for name in sorted(set(record.others.values())):
        ranks = _name(rank for rank, its in record.others.items() if its == name)
        if name == record.name:
            said.append(f'{ranks} began {where} with other sizes')
        else:
            said.append(f'{ranks} began {name} where others began {where}')
    if record.without_dump:
        said.append(f'{_name(record.without_dump)} left no dump')
    if record.calls:
        said.append(f'the others began it at {record.calls[0]}')
    return said


def _name(ranks: Iterable[int]) -> str:
    numbers = sorted(ranks)
    word = 'rank' if len(numbers) == 1 else 'ranks'
    return f'{word} {", ".join(map(str, numbers))}'
