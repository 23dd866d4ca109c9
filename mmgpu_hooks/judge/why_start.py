"""Adds to a diagnosis which part of its start a failed or hung training began last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mmgpu_hooks.schema.judged import Proof, Why
from mmgpu_hooks.schema.recorded import START_PARTS, StartPartRecord
from mmgpu_hooks.schema.run import RunEvidence
from mmgpu_hooks.schema.text import Text, phrase, sentences


def describe_part(record: StartPartRecord) -> Text:
    """Describes one part of a training's start, from the record of its beginning.

    For example: ``CocoDataset began to load data/train.json, 448 MiB, 2.1 s after the
    hook was built (training data)``.
    """
    read: str = record.file or phrase('its samples')
    if record.file_bytes is not None:
        read = phrase('{file}, {file_bytes}', record, file=read)
    return phrase(
        '{data_set} began to load {read}, {elapsed_s:sum} after the hook was built '
        '({part})',
        record,
        data_set=record.data_set or phrase('the Runner'),
        read=read,
        part=START_PARTS.get(record.part, record.part),
    )


_SAY_WHERE = ('resume_refused', 'config_error', 'package_missing', 'no_gpu')
"""Causes of failure whose exception itself shows which part of the start raised it."""


def add_start_parts(why: Why, ranks: Sequence[RunEvidence]) -> Why:
    """Adds to a diagnosis which part of its start a failed training began last.

    Args:
        why: What is known by its logs, and by the ranks.
        ranks: What each rank recorded; the one that is judged is named, else the first.
    """
    known = [rank for rank in ranks if rank.start_parts]
    if not known or why.state == 'completed' or why.cause in _SAY_WHERE:
        return why
    judged = [rank for rank in known if rank.run.rank == why.rank]
    found = (judged or known)[0]
    text = describe_part(found.start_parts[-1])
    last = phrase('What began last: {text}.', text=text)
    if found.run.world_size > 1:
        last = phrase('What began last (rank {rank}): {text}.', found.run, text=text)
    proof = (*why.proof, Proof('evidence', None, text))
    return replace(why, sentence=sentences(why.sentence, last), proof=proof)
