"""Cuts a run whose pipeline or step changed midway, and keeps its last long part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mmgpu_hooks.judge.columns import Column
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.thresholds import MIN_ITERATIONS
from mmgpu_hooks.model.segments import find_last_change

NEWEST = 1000
"""Intervals that are looked at: of 10,000 iterations and more, further ones would not
make a prediction surer."""


def cut_segment(run: Run) -> tuple[Run, str] | None:
    """The last long part of a run that changed midway, or that is very long.

    Returns:
        A run of that part alone and a sentence; ``None`` when nothing changed, or the
        part after the change is too short to tell anything.
    """
    newest = run.every.after(max(len(run.every) - NEWEST, 0))
    counts = newest.column('iterations')
    found = (
        _find_cut(newest.column('workers.occupancy.mean_s')),
        _find_cut(newest.column('step.p50_s')),
    )
    for cut in sorted({cut for cut in found if cut is not None}, reverse=True):
        # the first interval of a part counts as its warm-up
        if counts[cut + 1 :].sum() >= MIN_ITERATIONS:
            part = _newest(run, len(newest) - cut)
            return part, (
                'The pipeline or the step changed during the run: only what was '
                f'measured from iteration {part.intervals[0].iteration} on is used.'
            )
    if len(newest) < len(run.every):
        part = _newest(run, NEWEST)
        return part, (
            f'Only what was measured from iteration {part.intervals[0].iteration} on '
            'is used.'
        )
    return None


def _newest(run: Run, count: int) -> Run:
    part = replace(run.evidence, intervals=run.intervals[-count:], end=None)
    return Run(part)


def _find_cut(values: Column) -> int | None:
    known = np.flatnonzero(~np.isnan(values))
    # the first holds lazy initialisation
    known = known[known > 0]
    change = find_last_change(values[known].tolist())
    return None if change is None else int(known[change])
