"""Adds to why a run ended what its start was doing, where that is all it left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mmgpu_hooks.schema.figures import format_bytes, format_sum
from mmgpu_hooks.schema.judged import Proof, Why
from mmgpu_hooks.schema.recorded import START_PARTS, StartPartRecord
from mmgpu_hooks.schema.run import RunEvidence


def describe_part(record: StartPartRecord) -> str:
    """What a start began to do.

    For example: ``CocoDataset began to load data/train.json, 448 MiB, 2.1 s after the
    hook was built (training data)``.
    """
    size = '' if record.file_bytes is None else f', {format_bytes(record.file_bytes)}'
    who = record.data_set or 'the Runner'
    what = 'its samples' if record.file is None else record.file
    part = START_PARTS.get(record.part, record.part)
    return (
        f'{who} began to load {what}{size}, {format_sum(record.elapsed_s)} after the '
        f'hook was built ({part})'
    )


def add_start_parts(why: Why, ranks: Sequence[RunEvidence]) -> Why:
    """Add what a run was doing that never came to its train loop.

    Args:
        why: What is known by its logs, and by the ranks.
        ranks: What each rank recorded; the one that is judged is named, else the first.
    """
    known = [rank for rank in ranks if rank.start_parts]
    if not known or why.state == 'completed':
        return why
    judged = [rank for rank in known if rank.run.rank == why.rank]
    found = (judged or known)[0]
    text = describe_part(found.start_parts[-1])
    of_rank = f' (rank {found.run.rank})' if found.run.world_size > 1 else ''
    sentence = f'{why.sentence} What began last{of_rank}: {text}.'
    proof = (*why.proof, Proof('evidence', None, text))
    return replace(why, sentence=sentence, proof=proof)
