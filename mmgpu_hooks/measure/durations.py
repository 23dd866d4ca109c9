"""Durations folded into the figures that a record keeps of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mmgpu_hooks.schema import DurationStats


def fold_durations(seconds: Sequence[float]) -> DurationStats:
    """Summarise durations.

    Args:
        seconds: At least one duration, in any order.

    Returns:
        Count, sum, mean, median and 95th percentile. Percentiles are
        linearly interpolated between order statistics (the default of NumPy).

    Raises:
        ValueError: If ``seconds`` is empty.
    """
    return fold_some_durations(seconds, len(seconds), math.fsum(seconds))


def fold_some_durations(
    seconds: Sequence[float], count: int, total_s: float
) -> DurationStats:
    """Summarise durations of which some are known one by one.

    Args:
        seconds: Those that are known, at least one, in any order.
        count: How many there were.
        total_s: Sum of all of them.

    Raises:
        ValueError: If ``seconds`` is empty.
    """
    if not seconds:
        raise ValueError('expected at least one duration to fold, found none')
    ordered = sorted(seconds)
    return DurationStats(
        count=count,
        total_s=total_s,
        mean_s=total_s / count,
        p50_s=_percentile(ordered, 0.5),
        p95_s=_percentile(ordered, 0.95),
    )


def _percentile(ordered: Sequence[float], q: float) -> float:
    position = q * (len(ordered) - 1)
    low = int(position)
    between = position - low
    if not between:
        return ordered[low]
    return ordered[low] + (ordered[low + 1] - ordered[low]) * between
