"""Adds NCCL's flight recorder data to a diagnosis of waiting ranks; no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mmgpu_hooks.schema.judged import FlightRecord, Proof, Why
from mmgpu_hooks.schema.text import Text, phrase, sentences

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
"""Causes of a failure or hang in which a collective may never have ended."""


def add_flight_record(why: Why, record: FlightRecord) -> Why:
    """Adds to a diagnosis the unfinished collective and the rank that never began it.

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
        behind = phrase(
            "Rank {rank} is behind, by NCCL's flight recorder.", rank=culprits[0]
        )
        said = sentences(why.sentence, behind)
        why = replace(why, rank=culprits[0], sentence=said)
    return replace(
        why, proof=(*proof, *why.proof) if is_first else (*why.proof, *proof)
    )


def describe(record: FlightRecord) -> list[Text]:
    """Says which ranks are not in NCCL's unfinished collective, or call another."""
    where = phrase('{name} {number} of {group}', record)
    said = []
    if record.behind:
        said.append(
            phrase(
                '{who} never began {where}, the others wait in it',
                who=_name(record.behind),
                where=where,
            )
        )
    for name in sorted(set(record.others.values())):
        who = _name(rank for rank, its in record.others.items() if its == name)
        if name == record.name:
            said.append(
                phrase('{who} began {where} with other sizes', who=who, where=where)
            )
        else:
            said.append(
                phrase(
                    '{who} began {name} where others began {where}',
                    who=who,
                    name=name,
                    where=where,
                )
            )
    if record.without_dump:
        said.append(phrase('{who} left no dump', who=_name(record.without_dump)))
    if record.calls:
        said.append(phrase('the others began it at {call}', call=record.calls[0]))
    return said


def _name(ranks: Iterable[int]) -> Text:
    numbers = tuple(sorted(ranks))
    if len(numbers) == 1:
        return phrase('rank {rank}', rank=numbers[0])
    return phrase('ranks {listed:,}', listed=numbers)
