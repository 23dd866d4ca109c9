"""The mean of a series whose neighbours resemble each other. Pure.

Intervals of one training are not independent: a neighbour that compiles for a minute is
in several of them. Taken for independent they would seem to tell more than they do, and
every second comparison of equal runs would find a difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mmgpu_hooks.model.paired import CONFIDENCE
from mmgpu_hooks.model.student_t import student_t
from mmgpu_hooks.schema import Estimate

LEAST_VALUES = 6
"""Below these nothing can be said of how neighbours resemble each other."""

_LEAST_INDEPENDENT = 2.0
_MOST_ALIKE = 0.99
_LEAST_DEGREES = 1.0


@dataclass(frozen=True)
class SeriesMean:
    """A mean, and how well it is known."""

    value: float
    error: float
    """Standard error."""
    independent: float
    """As how many independent values the series counts."""
    count: int

    @property
    def degrees(self) -> float:
        """Degrees of freedom behind the error."""
        return max(self.independent, _LEAST_INDEPENDENT) - 1

    @property
    def is_drift(self) -> bool:
        """Whether it counts for less than two values: its error is a guess."""
        return self.independent < _LEAST_INDEPENDENT


def fold_series(
    values: Sequence[float], weights: Sequence[float], least: int = LEAST_VALUES
) -> SeriesMean | None:
    """The mean of a series, with an error that knows of its autocorrelation.

    The series is taken for an autoregressive one of first order: of ``n`` values,
    ``n (1 - r) / (1 + r)`` count as independent. Its coefficient ``r`` is estimated
    too low from short series, which is corrected to first order (Kendall 1954). Of
    fewer than :data:`LEAST_VALUES` it cannot be: they count as two.

    Args:
        values: In their order.
        weights: What each is taken over, such as iterations.
        least: Values that are enough, from 2 on.

    Returns:
        ``None`` for a series too short.
    """
    count, total = len(values), math.fsum(weights)
    if count < least or total <= 0:
        return None
    mean = math.fsum(v * w for v, w in zip(values, weights)) / total
    away = [value - mean for value in values]
    square = math.fsum(w * a * a for a, w in zip(away, weights)) / total
    plain = math.fsum(a * a for a in away)
    if square <= 0:
        return SeriesMean(mean, 0.0, float(count), count)
    independent = _LEAST_INDEPENDENT
    if count >= LEAST_VALUES:
        neighbours = math.fsum(a * b for a, b in zip(away, away[1:]))
        alike = (count * neighbours / plain + 1) / (count - 3)
        alike = min(max(alike, 0.0), _MOST_ALIKE)
        independent = count * (1 - alike) / (1 + alike)
    # of so few independent values, the spread around their own mean is too small
    error = math.sqrt(square / (max(independent, _LEAST_INDEPENDENT) - 1))
    return SeriesMean(mean, error, independent, count)


def fold_mean(series: SeriesMean) -> Estimate:
    """The mean with its interval."""
    half = student_t((1 + CONFIDENCE) / 2, series.degrees) * series.error
    return Estimate(
        series.value, series.value - half, series.value + half, series.count
    )


def fold_difference(before: SeriesMean, after: SeriesMean) -> Estimate:
    """``after - before`` with its interval, by Welch's test."""
    error, degrees = _join(before.error, before.degrees, after.error, after.degrees)
    half = student_t((1 + CONFIDENCE) / 2, degrees) * error
    value = after.value - before.value
    return Estimate(value, value - half, value + half, min(before.count, after.count))


def fold_ratio(before: SeriesMean, after: SeriesMean) -> Estimate | None:
    """``after / before`` with its interval, on the logarithms.

    Returns:
        ``None`` where one of them is not clearly above zero.
    """
    relative = [
        series.error / series.value if series.value > 0 else math.inf
        for series in (before, after)
    ]
    if max(relative) > 1 / 3:
        return None
    error, degrees = _join(relative[0], before.degrees, relative[1], after.degrees)
    half = student_t((1 + CONFIDENCE) / 2, degrees) * error
    value = after.value / before.value
    return Estimate(
        value,
        value * math.exp(-half),
        value * math.exp(half),
        min(before.count, after.count),
    )


def _join(
    first: float, first_degrees: float, second: float, second_degrees: float
) -> tuple[float, float]:
    """Error of a difference, and its degrees after Welch and Satterthwaite."""
    variance = first**2 + second**2
    if variance <= 0:
        return 0.0, first_degrees + second_degrees
    below = first**4 / first_degrees + second**4 / second_degrees
    return math.sqrt(variance), max(variance**2 / below, _LEAST_DEGREES)
