"""What other numbers of workers would give, for whoever shows a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mmgpu_hooks.judge.facts import Facts
from mmgpu_hooks.model.prediction import predict_grid
from mmgpu_hooks.recommend.changes import WORKERS_KEY
from mmgpu_hooks.schema import Change, Prediction

_USUAL = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_PREFETCH = 2
"""PyTorch's own, where the run had no workers."""


def predict_workers(
    facts: Facts, changes: Sequence[Change] = ()
) -> tuple[tuple[Prediction, ...], str]:
    """Predict the usual numbers of workers, the run's own and the recommended one.

    Args:
        facts: One rank's.
        changes: What is recommended.

    Returns:
        The predictions, up to what the host carries, and why there are none.
    """
    workload = facts.workload
    if workload is None:
        return (), facts.untold or ''
    carried = math.ceil(workload.usable_cores)
    asked = {workers for workers in _USUAL if workers <= carried}
    asked.add(workload.num_workers)
    asked.update(
        change.new
        for change in changes
        if change.key == WORKERS_KEY and isinstance(change.new, int)
    )
    prefetch = facts.summary.run.loader.prefetch_factor or _PREFETCH
    grid = [(workers, prefetch) for workers in sorted(asked)]
    return tuple(predict_grid(workload, grid)), ''
