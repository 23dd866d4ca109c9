"""Arithmetic over columns in which some figures are unknown.

Figures are not negative, so plain sums are as exact as anybody needs: of 100,000, the
error is some 1e-13 of the sum. Exact ones (`math.fsum`) take three times as long.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from operator import add, mul, not_
from typing import Any, TypeVar

from mmgpu_hooks.evidence.column import Column
from mmgpu_hooks.evidence.interval_table import IntervalTable

_T = TypeVar('_T', int, float)


def calm_mask(table: IntervalTable) -> list[bool]:
    """Which intervals are plain training: no validation, no save."""
    busy_s = map(
        add,
        table.floats('ledger_s', 'validation').filled(),
        table.floats('ledger_s', 'checkpoint_save').filled(),
    )
    return list(map(not_, busy_s))


def weighted_mean(column: Column[Any], weights: Iterable[float]) -> float | None:
    """Mean of the known figures, each weighted by its seconds or its count.

    Args:
        column: The figures.
        weights: One for each interval.
    """
    known = list(column.of_known(weights))
    whole: float = sum(known)
    if whole <= 0:
        return None
    weighted: float = sum(map(mul, column.known_values(), known))
    return weighted / whole


def pooled_std(
    means: Column[float], stds: Column[float], weights: Iterable[float]
) -> float | None:
    """Standard deviation of everything, from that of its parts.

    Args:
        means: Of the parts.
        stds: Of the parts; those that lack one of the two are passed over.
        weights: Likewise.
    """
    known = [
        (mean, std, weight)
        for mean, std, weight in zip(means, stds, weights)
        if mean is not None and std is not None
    ]
    total = sum([weight for _, _, weight in known])
    if total <= 0:
        return None
    mean = sum([part * weight for part, _, weight in known]) / total
    # products: a power of an absurd figure raises
    squares = [
        (std * std + (part - mean) * (part - mean)) * weight
        for part, std, weight in known
    ]
    return math.sqrt(sum(squares) / total)


def total(column: Column[_T]) -> _T:
    """Sum of those that are known; 0 when none is."""
    return sum(column.known_values(), column.kind())


def mean(column: Column[float], count: int) -> float | None:
    """Sum over count; ``None`` without any."""
    return total(column) / count if count else None


def median(column: Column[float]) -> float | None:
    """Median of the known figures."""
    known = list(column.known_values())
    return statistics.median(known) if known else None


def sum_all(column: Column[_T]) -> _T | None:
    """Sum, or unknown as soon as one part of it is."""
    return total(column) if column.is_complete else None


def sum_known(column: Column[_T]) -> _T | None:
    """Sum of those that are known; unknown when none is."""
    return total(column) if column.is_known else None


def max_known(column: Column[_T]) -> _T | None:
    """Largest of those that are known."""
    return max(column.known_values(), default=None)


def min_known(column: Column[_T]) -> _T | None:
    """Smallest of those that are known."""
    return min(column.known_values(), default=None)


def same_or_mixed(column: Column[str]) -> str | None:
    """The word they all have, else ``mixed``."""
    words = set(column.known_values())
    return words.pop() if len(words) == 1 else 'mixed' if words else None
