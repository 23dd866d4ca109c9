"""What other numbers of workers would give, for whoever shows a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.prediction import predict_setting
from mmgpu_hooks.recommend.changes import WORKERS_KEY
from mmgpu_hooks.schema import Change, Prediction

_USUAL = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_PREFETCH = 2
"""PyTorch's own, where the run had no workers."""


def predict_workers(
    run: Run, changes: Sequence[Change] = ()
) -> tuple[tuple[Prediction, ...], str]:
    """Predict the usual numbers of workers, the run's own and the recommended one.

    Args:
        run: One rank's.
        changes: What is recommended.

    Returns:
        The predictions, up to what the host carries, and why there are none.
    """
    workload = run.workload
    if workload is None:
        return (), run.why_no_workload or ''
    carried = math.ceil(workload.usable_cores)
    asked = {workers for workers in _USUAL if workers <= carried}
    asked.add(workload.num_workers)
    asked.update(
        change.new
        for change in changes
        if change.key == WORKERS_KEY and isinstance(change.new, int)
    )
    prefetch = run.run.loader.prefetch_factor or _PREFETCH
    found = (predict_setting(workload, count, prefetch) for count in sorted(asked))
    return tuple(found), ''
