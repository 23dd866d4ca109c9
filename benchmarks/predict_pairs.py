"""Predicts every setting from two trainings together, and from each of them alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.predict_judge import Case, Trial, predict_cases
from mmgpu_hooks.diagnosis.workload import fit_workload
from mmgpu_hooks.schema import LoaderWorkload


@dataclass(frozen=True)
class PairCases:
    """The same predictions, made in two ways."""

    together: tuple[Case, ...]
    """From two trainings."""
    alone: tuple[Case, ...]
    """From each of the two: twice as many."""


def judge_pairs(trials: Sequence[Trial], seed: int = 1) -> PairCases:
    """Pair each training of a pipeline with one other, and predict the rest.

    Args:
        trials: All trainings.
        seed: Of who is paired with whom.
    """
    by_pipeline: dict[str, list[tuple[Trial, LoaderWorkload]]] = {}
    for trial in trials:
        workload = fit_workload(trial.summary)
        if isinstance(workload, LoaderWorkload):
            told = by_pipeline.setdefault(trial.pipeline.name, [])
            told.append((trial, workload))
    draw = random.Random(seed)
    together: list[Case] = []
    alone: list[Case] = []
    for same in by_pipeline.values():
        draw.shuffle(same)
        if len(same) < 3:
            continue
        for first, second in zip(same, [*same[1:], same[0]]):
            others = [trial for trial, _ in same if trial not in (first[0], second[0])]
            pooled = replace(first[1], others=(second[1],))
            together += predict_cases(first[0], pooled, others)
            alone += predict_cases(*first, others)
            alone += predict_cases(*second, others)
    return PairCases(tuple(together), tuple(alone))
