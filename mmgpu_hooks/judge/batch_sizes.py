"""The padded sizes that a run's batches had: one, or ever new ones. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mmgpu_hooks.judge.columns import count_all
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.recorded import MOST_BATCH_SIZES

_FIXED = 2
"""Most sizes of a run whose batches are all alike but an epoch's last one."""

_VARYING = 10
"""Least sizes of a run whose batches vary, where new ones keep coming."""

_KEEP_COMING = 0.01
"""Least new sizes per iteration in the second half of the records that keep coming."""


@dataclass(frozen=True)
class BatchSizes:
    """Sizes of a run's batches in padded pixels, as far as they were counted.

    Batches of as many pixels count as one size: portrait and landscape, as a rule.
    """

    count: int
    late: int
    """Number of sizes that were new in the second half of the intervals."""
    is_all: bool
    """False if counting ended since there were so many."""
    is_fixed: bool
    """True if all batches were counted, and have one size, or the last of an epoch
    another."""
    is_varying: bool
    """True if there are many, and new ones kept coming."""


def find_batch_sizes(run: Run) -> BatchSizes | None:
    """Find the sizes of the batches; ``None`` if counting began late."""
    new, iterations = run.column('new_batch_sizes'), run.column('iterations')
    if not len(new) or np.isnan(new[0]):
        return None
    half = len(new) // 2
    count, late = count_all(new), count_all(new[half:])
    is_all = count < MOST_BATCH_SIZES
    keep_coming = late >= _KEEP_COMING * count_all(iterations[half:])
    return BatchSizes(
        count,
        late,
        is_all,
        is_fixed=count <= _FIXED and not np.isnan(new).any(),
        is_varying=not is_all or (count >= _VARYING and keep_coming),
    )
