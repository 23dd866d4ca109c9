"""Makes the fields of an interval's record of what the ledger saw."""

from __future__ import annotations

import math
from typing import Any

from mmgpu_hooks.measure.durations import fold_durations
from mmgpu_hooks.measure.ledger import LedgerWindow


def interval_fields(
    window: LedgerWindow, *, iteration: int, epoch: int, elapsed_s: float, saves: int
) -> dict[str, Any]:
    """The fields of an :class:`IntervalRecord` that the time ledger gives.

    Args:
        window: Of one interval; it holds an iteration at least.
        iteration: 1-based number of the last iteration.
        epoch: 1-based.
        elapsed_s: Seconds since the ledger began.
        saves: Checkpoint saves in it.
    """
    return dict(
        iteration=iteration,
        epoch=epoch,
        iterations=len(window.iters_s),
        elapsed_s=elapsed_s,
        duration_s=math.fsum(window.parts_s.values()),
        data_wait=fold_durations(window.waits_s),
        step=fold_durations(window.steps_s),
        iter=fold_durations(window.iters_s),
        ledger_s=window.parts_s,
        hooks_s=window.hooks_s,
        data_wait_cpu_s=window.wait_cpu_s,
        first_waits=len(window.firsts),
        first_wait_s=math.fsum(window.waits_s[index] for index in window.firsts),
        saves=saves,
    )
