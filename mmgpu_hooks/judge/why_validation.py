"""Adds to a diagnosis in which part a run's validation hung or ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mmgpu_hooks.judge.validation_parts import find_unfinished, phrase_unfinished
from mmgpu_hooks.schema.judged import Proof, Why
from mmgpu_hooks.schema.run import RunEvidence
from mmgpu_hooks.schema.text import phrase


def add_validation(why: Why, ranks: Sequence[RunEvidence]) -> Why:
    """Adds to a diagnosis in which part each rank's unfinished validation hung.

    Args:
        why: What is known.
        ranks: Evidence of the run's ranks.
    """
    if why.state == 'completed':
        return why
    proof = list(why.proof)
    for rank in ranks:
        record = find_unfinished(rank)
        if record is not None:
            stood = phrase_unfinished(record)
            if rank.run.world_size > 1:
                stood = phrase('rank {rank}: {stood}', rank.run, stood=stood)
            proof.append(Proof('evidence', None, stood))
    return replace(why, proof=tuple(proof))
