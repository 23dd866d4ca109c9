"""Synthetic runs with known noise, for comparing two runs."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from fakes.replaced import replace
from fakes.runs import make_evidence, make_interval, make_run
from mmgpu_hooks.schema.run import RunEvidence

DRIFTING_BEFORE_S = (
    0.690,
    0.692,
    0.745,
    0.750,
    0.725,
    0.790,
    0.759,
    0.742,
    0.731,
    0.698,
    0.765,
    0.746,
    0.734,
    0.696,
    0.661,
    0.626,
    0.615,
    0.594,
)
DRIFTING_AFTER_S = (
    0.347,
    0.368,
    0.357,
    0.361,
    0.391,
    0.410,
    0.393,
    0.330,
    0.328,
    0.293,
    0.304,
    0.357,
    0.395,
    0.399,
    0.382,
    0.399,
    0.379,
    0.443,
)
"""Seconds per iteration in each interval of the second of two drifting trainings.

Lag-1 autocorrelations of 0.68 before and 0.54 after, as on a busy machine."""


def make_noisy_run(
    seed: int,
    *,
    intervals: int = 40,
    data_wait_s: float = 0.1,
    alike: float = 0.5,
    **run: Any,
) -> RunEvidence:
    """Returns a run whose data waits and steps vary together, with autocorrelation.

    They do by 3 %.

    Args:
        seed: Of the noise.
        intervals: Besides the first, which is ten times as slow.
        data_wait_s: Mean per iteration.
        alike: Correlation of neighbours.
        run: Fields of the run record.
    """
    lots = random.Random(seed)
    state, records = lots.gauss(0, 1), []
    for index in range(intervals + 1):
        slow = 10.0 if index == 0 else math.exp(0.03 * state)
        waits: dict[str, Any] = {
            'data_wait_s': slow * data_wait_s,
            'step_s': slow * 0.2,
        }
        records.append(make_interval(index, **waits))
        state = alike * state + math.sqrt(1 - alike**2) * lots.gauss(0, 1)
    evidence = make_evidence(run=make_run(**run))
    return replace(evidence, intervals=tuple(records), end=None)


def make_timed_run(iterations_s: Sequence[float], **run: Any) -> RunEvidence:
    """Returns a run with the given iteration time in each interval, after a warm-up.

    Args:
        iterations_s: Mean of each interval.
        run: Fields of the run record.
    """
    records = [
        make_interval(index, data_wait_s=0.4 * seconds, step_s=0.6 * seconds)
        for index, seconds in enumerate([3.0, *iterations_s])
    ]
    evidence = make_evidence(run=make_run(**run))
    return replace(evidence, intervals=tuple(records), end=None)
