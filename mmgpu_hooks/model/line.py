"""A straight line through points of unequal weight. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """``constant + slope x x`` with how well both are known.

    Variances are multiples of the square of a unit error: that of a point whose scale
    is 1.
    """

    constant: float
    slope: float
    constant_variance: float
    slope_variance: float
    covariance: float
    squared_residuals: float
    """Sum of squares of the distances, each over its point's scale."""
    parameters: int
    """How many were free: 1 where the line begins at ``least_constant``."""


def fit_line(
    xs: Sequence[float],
    ys: Sequence[float],
    scales: Sequence[float],
    *,
    least_constant: float = -math.inf,
) -> Line:
    """Weighted least squares; a line that would begin too low begins at the least.

    Args:
        xs: At least two different ones.
        ys: As many.
        scales: Standard error of each ``y``, up to a factor that all share; above 0.
        least_constant: What the line at 0 is never below.

    Raises:
        ValueError: If there are fewer than two different ``xs``.
    """
    weights = [scale**-2 for scale in scales]
    whole = math.fsum(weights)
    middle = math.fsum(w * x for w, x in zip(weights, xs)) / whole
    level = math.fsum(w * y for w, y in zip(weights, ys)) / whole
    spread = math.fsum(w * (x - middle) ** 2 for w, x in zip(weights, xs))
    if len(set(xs)) < 2 or spread <= 0.0:
        raise ValueError('a line needs at least two different places')
    slope = (
        math.fsum(w * (x - middle) * (y - level) for w, x, y in zip(weights, xs, ys))
        / spread
    )
    constant = level - slope * middle
    if constant >= least_constant:
        variances = 1 / whole + middle**2 / spread, 1 / spread, -middle / spread
        parameters = 2
    else:
        squares = math.fsum(w * x**2 for w, x in zip(weights, xs))
        constant, parameters = least_constant, 1
        slope = (
            math.fsum(w * x * (y - constant) for w, x, y in zip(weights, xs, ys))
            / squares
        )
        variances = 0.0, 1 / squares, 0.0
    residuals = (
        w * (y - constant - slope * x) ** 2 for w, x, y in zip(weights, xs, ys)
    )
    return Line(constant, slope, *variances, math.fsum(residuals), parameters)
