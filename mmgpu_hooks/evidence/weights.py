"""Arithmetic over figures of which some are unknown, and what to take it over."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TypeVar

from mmgpu_hooks.records import IntervalRecord

_T = TypeVar('_T', int, float)


def is_calm(record: IntervalRecord) -> bool:
    """Whether it is plain training: no validation, no save."""
    ledger_s = record.ledger_s
    return not ledger_s.get('validation') and not ledger_s.get('checkpoint_save')


def weighted_mean(pairs: Iterable[tuple[float | None, float]]) -> float | None:
    """Mean of the known figures, each weighted by its seconds or its count."""
    total = weights = 0.0
    # one pass: this is called for each figure over all intervals
    for value, weight in pairs:
        if value is not None:
            total += value * weight
            weights += weight
    return total / weights if weights > 0 else None


def pooled_std(
    parts: Sequence[tuple[float | None, float | None, float]],
) -> float | None:
    """Standard deviation of everything, from that of its parts.

    Args:
        parts: Mean, standard deviation and weight each; those that lack one of the
            first two are passed over.
    """
    known = [
        (mean, std, weight)
        for mean, std, weight in parts
        if mean is not None and std is not None
    ]
    mean = weighted_mean((part, weight) for part, _, weight in known)
    if mean is None:
        return None
    squares = weighted_mean(
        (std**2 + (part - mean) ** 2, weight) for part, std, weight in known
    )
    return None if squares is None else math.sqrt(squares)


def mean(values: Iterable[float], count: int) -> float | None:
    """Sum over count; ``None`` without any."""
    return math.fsum(values) / count if count else None


def median(values: Iterable[float | None]) -> float | None:
    """Median of the known figures."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def sum_all(values: Iterable[_T | None]) -> _T | None:
    """Sum, or unknown as soon as one part of it is."""
    total: _T | None = None
    for value in values:
        if value is None:
            return None
        total = value if total is None else total + value
    return total


def sum_known(values: Iterable[_T | None]) -> _T | None:
    """Sum of those that are known; unknown when none is."""
    return sum_all(value for value in values if value is not None)


def max_known(values: Iterable[_T | None]) -> _T | None:
    """Largest of those that are known."""
    return max((value for value in values if value is not None), default=None)


def min_known(values: Iterable[_T | None]) -> _T | None:
    """Smallest of those that are known."""
    return min((value for value in values if value is not None), default=None)


def same_or_mixed(values: Iterable[str | None]) -> str | None:
    """The word they all have, else ``mixed``."""
    words = {value for value in values if value is not None}
    return words.pop() if len(words) == 1 else 'mixed' if words else None
