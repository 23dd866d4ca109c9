"""Finds where a series of figures changes its level for good."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

_LEAST = 3
"""Values on either side of a change."""


def find_last_change(values: Sequence[float], least_change: float = 0.1) -> int | None:
    """Where the last level begins.

    The series is cut in two where the halves' medians differ most against their
    scatter, and its last part again, until no cut stands out.

    Args:
        values: One per interval.
        least_change: Relative; a smaller one is none.

    Returns:
        Index of the first value of the last level; ``None`` when there is one only.
    """
    begin = 0
    while True:
        cut = _find_cut(values[begin:], least_change)
        if cut is None:
            return begin or None
        begin += cut


def _find_cut(values: Sequence[float], least_change: float) -> int | None:
    count = len(values)
    if count < 2 * _LEAST:
        return None
    total, best, best_cut = math.fsum(values), 0.0, None
    left = math.fsum(values[: _LEAST - 1])
    for cut in range(_LEAST, count - _LEAST + 1):
        left += values[cut - 1]
        before, after = left / cut, (total - left) / (count - cut)
        gain = (after - before) * (after - before) * cut * (count - cut) / count
        if gain > best:
            best, best_cut = gain, cut
    if best_cut is None:
        return None
    early, late = values[:best_cut], values[best_cut:]
    before, after = statistics.median(early), statistics.median(late)
    if abs(after - before) <= least_change * max(abs(before), abs(after)):
        return None
    return best_cut if abs(after - before) > 4.0 * _scatter(values) else None


def _scatter(values: Sequence[float]) -> float:
    """Standard deviation from value to value; changes of the level hardly raise it."""
    steps = (abs(late - early) for early, late in zip(values, values[1:]))
    return 1.4826 * statistics.median(steps) / math.sqrt(2.0)
