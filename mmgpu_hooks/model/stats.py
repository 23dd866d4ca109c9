"""Statistics of short, noisy series: Student's t, AR(1) errors, change points.

Rank sums and steady growth, too.

Intervals of one training are not independent: a program that compiles for a minute is
in several of them. Taken for independent they would seem to say more than they do, and
every second comparison of equal runs would find a difference.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmgpu_hooks.schema.judged import Estimate

CONFIDENCE = 0.95

FloatArray = npt.NDArray[np.float64]


def student_t(share: float, degrees: float) -> float:
    """Returns a quantile of Student's t distribution.

    Args:
        share: Probability below the quantile.
        degrees: Degrees of freedom, above 0; need not be whole.
    """
    # late, because only what has several runs or blocks needs it
    from scipy.special import stdtrit

    return float(stdtrit(degrees, share))


def paired_gain(before_s: Sequence[float], after_s: Sequence[float]) -> Estimate | None:
    """Estimates a second setting's relative gain in speed from pairs of measured times.

    Each pair shares what the machine was like then, so the logarithms of their ratios
    are averaged, and their spread is that of the noise alone: a t interval on them.

    Args:
        before_s: Seconds of the first setting, per image or any other unit of work.
        after_s: Of the second; one without a partner is left out.

    Returns:
        ``before / after - 1`` with its interval, or ``None`` below two pairs.
    """
    logs = [math.log(old / new) for old, new in zip(before_s, after_s)]
    if len(logs) < 2:
        return None
    count, mean = len(logs), statistics.fmean(logs)
    error = statistics.stdev(logs) / math.sqrt(count)
    half = student_t((1 + CONFIDENCE) / 2, count - 1) * error
    value, low, high = map(math.expm1, (mean, mean - half, mean + half))
    return Estimate(value, low, high, count)


LEAST_VALUES = 6
"""Smallest series length from which the autocorrelation is estimated."""

_EDGES = np.array([*np.linspace(0.0, 0.96, 25), 0.98, 0.99, 0.995, 0.998, 1.0])
_CORRELATIONS: FloatArray = (_EDGES[:-1] + _EDGES[1:]) / 2
"""Grid of possible correlations between neighbouring values of a series, 0 to 1.

A negative one counts as none: nothing in a training causes it, and it would shorten
intervals.
"""

_TAPER = 0.08
_TAPER_PER_VALUE = 0.0025
"""Width of the range below 1 where a correlation's prior falls to 0, per series value.

The prior of the correlation is uniform, but falls linearly to 0 over the last part
before 1, which is a drift without end. That part is the smaller one of :data:`_TAPER`
and this width times the values: short series show little of their correlation
themselves, and with the longer part their intervals would hold the truth too seldom
where it is high (``make bench-drift``).
"""

_NEGLIGIBLE = 1e-6
"""Probability (0 to 1) below which a mixture's Student's t component is dropped."""

_MOST_LAGS = 10_000
"""Maximum number of lags of a series over which autocorrelations are summed.

Values further apart are independent at every correlation.
"""


@dataclass(frozen=True, eq=False)
class SeriesMean:
    """Mean of a series with its error distribution: a mixture of Student's t.

    Each component belongs to one correlation of neighbouring values.
    """

    value: float
    errors: FloatArray
    """Standard error of the mean in each Student's t component of the mixture."""
    shares: FloatArray
    """Probability of each Student's t component of the mixture; they add up to 1."""
    degrees: float
    """Degrees of freedom that every Student's t component of the mixture has."""
    count: int


def summarize_series(
    values: Sequence[float], weights: Sequence[float], least: int = LEAST_VALUES
) -> SeriesMean | None:
    """Computes the weighted mean of a series, with an error for correlated values.

    The series is taken for an autoregressive one of first order. A short series does
    not show its correlation: intervals that rest on one estimate of it are too short,
    and where it is near 1 too long by far. So all correlations count, each as likely
    as the restricted likelihood of the series makes it (Cheang and Reinsel 2000). Fewer
    than :data:`LEAST_VALUES` count as two values.

    Args:
        values: In their order.
        weights: What each is taken over, such as iterations.
        least: Values that are enough, from 2 on.

    Returns:
        ``None`` for a series that is too short.
    """
    count, series = len(values), np.array(values, float)
    weight = np.array(weights, float)
    if count < least or weight.sum() <= 0:
        return None
    mean, spread = float(np.average(series, weights=weight)), float(np.ptp(series))
    if spread <= 0:
        return SeriesMean(mean, np.zeros(1), np.ones(1), count - 1.0, count)
    if count < LEAST_VALUES:
        variance = np.average((series - mean) ** 2, weights=weight)
        return SeriesMean(mean, np.sqrt([variance]), np.ones(1), 1.0, count)
    # in units of the spread, so that nothing overflows
    away = (series - series.mean()) / spread
    correlation = _CORRELATIONS
    fitted = _fit_correlations(away, correlation)
    likelihood = 0.5 * np.log((1 - correlation**2) / fitted.information)
    likelihood -= 0.5 * (count - 1) * np.log(fitted.squares)
    taper = min(_TAPER, _TAPER_PER_VALUE * count)
    prior = np.diff(_EDGES) * np.minimum((1 - correlation) / taper, 1.0)
    shares = prior * np.exp(likelihood - likelihood.max())
    is_likely = shares > _NEGLIGIBLE * shares.sum()
    shares, correlation = shares[is_likely], correlation[is_likely]
    variances = fitted.squares[is_likely] / (1 - correlation**2) / (count - 1)
    errors = spread * np.sqrt(variances * _inflate(weight, correlation))
    return SeriesMean(mean, errors, shares / shares.sum(), count - 1.0, count)


class _Residuals(NamedTuple):
    """Generalised least squares fits of a constant, one for each autocorrelation."""

    squares: FloatArray
    """Residual sum of squares of the fit, one for each tried autocorrelation."""
    information: FloatArray
    """Fisher information on the fitted constant, one for each tried autocorrelation."""


def _fit_correlations(away: FloatArray, correlation: FloatArray) -> _Residuals:
    """Fits a constant by generalised least squares, for each autocorrelation.

    Args:
        away: The series without its mean.
        correlation: Of neighbouring values.

    Returns:
        The sum of squares of the residuals and the information on the constant, both by
        the inverse of the correlation matrix times ``1 - correlation**2``.
    """
    count, ends = len(away), float(away[0] + away[-1])
    square, neighbours = float(away @ away), float(away[:-1] @ away[1:])
    inner = float(away[1:-1] @ away[1:-1])
    information = (1 - correlation) * (count - (count - 2) * correlation)
    squares = square + correlation**2 * inner - 2 * correlation * neighbours
    squares -= ((1 - correlation) * correlation * ends) ** 2 / information
    return _Residuals(squares, information)


def _inflate(weight: FloatArray, correlation: FloatArray) -> FloatArray:
    """Returns the variance of the weighted mean of an AR(1) series with variance 1."""
    # sums of the products of weights that are so many values apart
    spectrum = np.fft.rfft(weight, 2 * len(weight))
    products = np.fft.irfft(np.abs(spectrum) ** 2)[: min(len(weight), _MOST_LAGS)]
    powers = correlation[:, None] ** np.arange(len(products))
    inflated: FloatArray = (2 * powers @ products - products[0]) / weight.sum() ** 2
    return inflated


_PRECISION = 1e-9
"""Relative precision of the tail probability of a confidence interval."""


def _half_width(
    errors: FloatArray, shares: FloatArray, degrees: npt.ArrayLike
) -> float:
    """Returns half a confidence interval's width for a Student's t mixture around 0."""
    # late, because only what has several runs or blocks needs it; scipy.optimize would
    # find the root as well, but takes a third of a second to import
    from scipy.special import stdtr

    beyond = (1 - CONFIDENCE) / 2
    shortest = student_t(1 - beyond, float(np.max(degrees))) * float(errors.min())
    longest = student_t(1 - beyond, float(np.min(degrees))) * float(errors.max())
    # no component has an error, or there is one component
    if shortest <= 0 or longest - shortest <= _PRECISION * longest:
        return longest

    def find_excess(log_half: float) -> float:
        outside = shares @ stdtr(degrees, -math.exp(log_half) / errors)
        return math.log(outside / beyond)

    # the Illinois method: false position, with the value at an end that stays halved
    low, high = math.log(shortest), math.log(longest)
    low_excess, high_excess = find_excess(low), find_excess(high)
    was_low = None
    while True:
        slope = (high_excess - low_excess) / (high - low)
        middle = low - low_excess / slope
        excess = find_excess(middle)
        if abs(excess) < _PRECISION:
            return math.exp(middle)
        is_low = excess > 0
        if is_low:
            low, low_excess = middle, excess
        else:
            high, high_excess = middle, excess
        if is_low == was_low and is_low:
            high_excess /= 2
        elif is_low == was_low:
            low_excess /= 2
        was_low = is_low


def estimate_mean(series: SeriesMean) -> Estimate:
    """Estimates the mean of a series with its confidence interval."""
    half = _half_width(series.errors, series.shares, series.degrees)
    return Estimate(
        series.value, series.value - half, series.value + half, series.count
    )


def estimate_difference(before: SeriesMean, after: SeriesMean) -> Estimate:
    """Estimates ``after - before`` of two series' means with a confidence interval.

    By Welch's test for each pair of components: the two runs' correlations are unknown
    independently of each other.
    """
    old, new = before.errors[:, None], after.errors
    errors = np.hypot(old, new)
    part = np.divide(old, errors, out=np.zeros_like(errors), where=errors > 0) ** 2
    # Welch and Satterthwaite
    degrees = 1 / (part**2 / before.degrees + (1 - part) ** 2 / after.degrees)
    shares = np.outer(before.shares, after.shares)
    half = _half_width(errors.ravel(), shares.ravel(), degrees.ravel())
    value = after.value - before.value
    return Estimate(value, value - half, value + half, min(before.count, after.count))


def rank_sum_chance(low: Sequence[float], high: Sequence[float]) -> float:
    """Returns the p-value of the exact rank sum test that ``high`` exceeds ``low``.

    It is the chance of values as high as ``high`` without a difference.

    The exact rank sum test (Mann and Whitney 1947); a tie counts as half a pair,
    rounded down.

    Args:
        low: What is thought to be the smaller one.
        high: What is thought to be the larger one.

    Returns:
        From ``1 / C(n + m, n)`` to 1; 1 where one of them is empty.
    """
    if not low or not high:
        return 1.0
    # late, because only an experiment on saves needs it
    from scipy.stats import mannwhitneyu

    test = mannwhitneyu(high, low, alternative='greater', method='exact')
    return float(test.pvalue)


_LEAST = 3
"""Smallest number of values on either side of a change point."""


def find_last_change(values: Sequence[float], least_change: float = 0.1) -> int | None:
    """Finds the last change point of a series: the index where its last level begins.

    The series is cut in two where the halves' medians differ most against their
    scatter, and its last part again, until no cut stands out.

    Args:
        values: One per interval.
        least_change: Relative; a smaller one is none.

    Returns:
        Index of the first value of the last level; ``None`` when there is one only.
    """
    begin, column = 0, np.array(values, float)
    while True:
        cut = _find_cut(column[begin:], least_change)
        if cut is None:
            return begin or None
        begin += cut


def _find_cut(values: FloatArray, least_change: float) -> int | None:
    count = len(values)
    if count < 2 * _LEAST:
        return None
    cuts = np.arange(_LEAST, count - _LEAST + 1)
    left = np.cumsum(values)[cuts - 1]
    rises = (values.sum() - left) / (count - cuts) - left / cuts
    cut = int(cuts[np.argmax(rises**2 * cuts * (count - cuts))])
    before, after = np.median(values[:cut]), np.median(values[cut:])
    # from value to value; changes of the level hardly raise it
    scatter = 1.4826 * np.median(np.abs(np.diff(values))) / math.sqrt(2.0)
    least = max(least_change * max(abs(before), abs(after)), 4.0 * scatter)
    return cut if abs(after - before) > least else None


WARM_UP = 1 / 3
"""Share (0 to 1) of a run, at its start, left out of the search for memory growth.

Caches fill, the allocator's pools grow.
"""

BLOCKS = 8
READINGS = 2 * BLOCKS
"""Smallest number of memory readings after the warm-up that can show steady growth."""

LEAST_GROWTH_BYTES = 2**24
LEAST_GROWTH_SHARE = 0.01
"""Smallest growth of memory, as a share (0 to 1) of its level, that counts as growth.

Growth below the larger of this and :data:`LEAST_GROWTH_BYTES` is the allocator's own.
"""

_EVEN = 0.25
"""Smallest ratio of local to mean memory growth rate that counts as steady growth.

A pool that only reaches its largest size now and then grows by jumps, and stands still
between them.
"""

_GOES_ON = 0.7
"""Smallest ratio of second-half to first-half memory growth that counts as steady.

A cache that fills slows down.
"""


def find_growth(
    iterations: npt.ArrayLike,
    sizes: npt.ArrayLike,
    *,
    least_bytes: float = LEAST_GROWTH_BYTES,
    least_share: float = LEAST_GROWTH_SHARE,
    warm_up: float = 0.0,
) -> Estimate | None:
    """Finds steady growth of memory after the warm-up, in bytes per 1000 iterations.

    The readings are cut into eight blocks. Growth is steady when every block's median
    is above the one before, by about as much, to the end.

    Args:
        iterations: At which it was read, ascending.
        sizes: Bytes; as many.
        least_bytes: Growth below it is none.
        least_share: Likewise, of the first block's level.
        warm_up: Iterations that are left out, where they are more than a third.

    Returns:
        With the count of readings; ``None`` without steady growth, or with too few
        readings to know.
    """
    read = _behind_warm_up(iterations, sizes, warm_up)
    done, held = read.iterations, read.sizes
    if len(done) < READINGS:
        return None
    blocks = np.array_split(np.arange(len(done)), BLOCKS)
    at = np.array([np.median(done[block]) for block in blocks])
    level = np.array([np.median(held[block]) for block in blocks])
    # a resumed run that trained some iterations twice goes back
    if (np.diff(done) < 0).any() or not (np.diff(at) > 0).all():
        return None
    speeds = np.diff(level) / np.diff(at)
    mean = (level[-1] - level[0]) / (at[-1] - at[0])
    grown = mean * (done[-1] - done[0])
    half = len(speeds) // 2
    is_steady = (
        grown >= max(least_bytes, least_share * level[0])
        and (speeds >= _EVEN * mean).all()
        and speeds[-half:].mean() >= _GOES_ON * speeds[:half].mean()
    )
    if not is_steady:
        return None
    slope = float(np.polyfit(at - at[0], level, 1)[0])  # medians: no spike counts
    error = float(speeds.std(ddof=1)) / len(speeds) ** 0.5
    spread = student_t((1 + CONFIDENCE) / 2, len(speeds) - 1) * error
    low, high = 1000 * (slope - spread), 1000 * (slope + spread)
    return Estimate(1000 * slope, low, high, len(done))


def count_missing_readings(iterations: npt.ArrayLike) -> int:
    """Counts the further memory readings needed to tell growth from warm-up."""
    behind = len(_behind_warm_up(iterations, iterations).iterations)
    return max(READINGS - behind, 0)


class _Readings(NamedTuple):
    """Memory readings: bytes, and the iterations at which they were read."""

    iterations: FloatArray
    sizes: FloatArray


def _behind_warm_up(
    iterations: npt.ArrayLike, sizes: npt.ArrayLike, warm_up: float = 0.0
) -> _Readings:
    done, held = np.asarray(iterations, float), np.asarray(sizes, float)
    if not len(done):
        return _Readings(done, held)
    late = done >= done[0] + max(WARM_UP * (done[-1] - done[0]), warm_up)
    return _Readings(done[late], held[late])


class LineFit(NamedTuple):
    """Slope and constant of a line by least squares: ``constant + slope x``."""

    slope: float
    constant: float


def fit_line(xs: Sequence[float], ys: Sequence[float]) -> LineFit:
    """Fits a line through at least two points by least squares."""
    slope, constant = np.polyfit(np.array(xs, float), np.array(ys, float), 1)
    return LineFit(float(slope), float(constant))
