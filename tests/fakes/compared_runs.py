"""Runs that are noisy in a known way, to be set against each other."""

from __future__ import annotations

import math
import random
from typing import Any

from fakes.replaced import replace
from fakes.runs import make_evidence, make_interval, make_run
from mmgpu_hooks.schema.run import RunEvidence


def make_noisy_run(
    seed: int, *, intervals: int = 40, data_wait_s: float = 0.1, **run: Any
) -> RunEvidence:
    """A run whose waits and steps vary together, each interval like its neighbour.

    They do by 3 %, and neighbours have a correlation of 0.5.

    Args:
        seed: Of the noise.
        intervals: Besides the first, which is ten times as slow.
        data_wait_s: Mean per iteration.
        run: Fields of the run record.
    """
    lots = random.Random(seed)
    state, records = lots.gauss(0, 1), []
    for index in range(intervals + 1):
        slow = 10.0 if index == 0 else math.exp(0.03 * state)
        waits = {'data_wait_s': slow * data_wait_s, 'step_s': slow * 0.2}
        records.append(make_interval(index, **waits))
        state = 0.5 * state + math.sqrt(0.75) * lots.gauss(0, 1)
    evidence = make_evidence(run=make_run(**run))
    return replace(evidence, intervals=tuple(records), end=None)
