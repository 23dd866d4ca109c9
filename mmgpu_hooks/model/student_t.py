"""Student's t distribution, also for a fractional number of degrees. Pure."""

from __future__ import annotations

import functools
import math

_HALVINGS, _TERMS, _CLOSE, _TINY = 60, 200, 1e-12, 1e-300


@functools.lru_cache(maxsize=256)
def student_t(share: float, degrees: float) -> float:
    """Quantile of Student's t.

    Args:
        share: Probability below the quantile, from 0.5 to less than 1.
        degrees: Degrees of freedom, above 0; need not be whole.

    Raises:
        ValueError: If one of them is out of range.
    """
    if not (0.5 <= share < 1 and degrees > 0):
        raise ValueError(
            f'expected a share from 0.5 to 1 and degrees above 0, found {share} and '
            f'{degrees}'
        )
    beyond = 2 * (1 - share)
    # the tail beyond t is the incomplete beta function of v / (v + t^2); in there the
    # quantile lies between two ends
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _incomplete_beta(degrees / 2, 0.5, middle) < beyond:
            low = middle
        else:
            high = middle
    x = (low + high) / 2
    return math.sqrt(degrees * (1 - x) / x) if x < 1 else 0.0


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b) (Abramowitz, Stegun 26.5.8)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(
        math.lgamma(a + b)
        - math.lgamma(a)
        - math.lgamma(b)
        + a * math.log(x)
        + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """Its continued fraction, evaluated by Lentz's method."""
    c, d = 1.0, 1 / _not_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _not_zero(1 + term * d)
            c = _not_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < _CLOSE:
            break
    return value


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
