"""Counts the padded image sizes of a training's batches: fixed or varying; no I/O."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mmgpu_hooks.judge.columns import count_all
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.recorded import MOST_BATCH_SIZES

_FIXED = 2
"""Largest number of distinct padded batch sizes at which the size counts as fixed.

An epoch's last batch may differ.
"""

_VARYING = 10
"""Least number of distinct padded batch sizes at which the size counts as varying."""

_KEEP_COMING = 0.01
"""Minimum new padded batch sizes per iteration for a run's sizes to count as varying.

Counted over the second half of the log intervals.
"""


@dataclass(frozen=True)
class BatchSizes:
    """Numbers of distinct padded batch sizes (in pixels) in a training run.

    Batches of as many pixels count as one size: portrait and landscape, as a rule.
    """

    count: int
    late: int
    """Number of padded batch sizes first seen in the later half of the run."""
    is_all: bool
    """True if all padded batch sizes were counted, False if there were too many."""
    is_fixed: bool
    """True if all batches have one padded size, apart from an epoch's last batch."""
    is_varying: bool
    """True if there are many padded batch sizes and late iterations add new ones."""


def find_batch_sizes(run: Run) -> BatchSizes | None:
    """Counts a run's padded batch sizes; ``None`` if its first interval has none."""
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
