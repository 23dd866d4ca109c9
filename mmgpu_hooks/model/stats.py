"""Statistics of short, noisy series: Student's t, AR(1) errors, ranks, change points,
steady growth.

Intervals of one training are not independent: a program that compiles for a minute is
in several of them. Taken for independent they would seem to say more than they do, and
every second comparison of equal runs would find a difference.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmgpu_hooks.schema.judged import Estimate

CONFIDENCE = 0.95

Column = npt.NDArray[np.float64]


def student_t(share: float, degrees: float) -> float:
    """Quantile of Student's t.

    Args:
        share: Probability below the quantile.
        degrees: Degrees of freedom, above 0; need not be whole.
    """
    # late, because only what has several runs or blocks needs it
    from scipy.special import stdtrit

    return float(stdtrit(degrees, share))


def paired_gain(before_s: Sequence[float], after_s: Sequence[float]) -> Estimate | None:
    """How much faster the second setting is, from pairs measured one after the other.

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
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    mean = estimate_mean(
        SeriesMean(statistics.fmean(logs), error, len(logs), len(logs))
    )
    value, low, high = map(math.expm1, (mean.value, mean.low, mean.high))
    return Estimate(value, low, high, mean.count)


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


def summarize_series(
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
    count, series = len(values), np.array(values, float)
    if count < least or math.fsum(weights) <= 0:
        return None
    mean = float(np.average(series, weights=weights))
    away = series - mean
    square = float(np.average(away**2, weights=weights))
    if square <= 0:
        return SeriesMean(mean, 0.0, float(count), count)
    independent = _LEAST_INDEPENDENT
    if count >= LEAST_VALUES:
        neighbours = float(away[:-1] @ away[1:] / (away @ away))
        alike = min(max((count * neighbours + 1) / (count - 3), 0.0), _MOST_ALIKE)
        independent = count * (1 - alike) / (1 + alike)
    # of so few independent values, the spread around their own mean is too small
    error = math.sqrt(square / (max(independent, _LEAST_INDEPENDENT) - 1))
    return SeriesMean(mean, error, independent, count)


def _reach(error: float, degrees: float) -> float:
    """Half of an interval."""
    return student_t((1 + CONFIDENCE) / 2, degrees) * error


def estimate_mean(series: SeriesMean) -> Estimate:
    """The mean with its interval."""
    half, value = _reach(series.error, series.degrees), series.value
    return Estimate(value, value - half, value + half, series.count)


def estimate_difference(before: SeriesMean, after: SeriesMean) -> Estimate:
    """``after - before`` with its interval, by Welch's test."""
    variance = before.error**2 + after.error**2
    degrees = before.degrees + after.degrees
    if variance > 0:
        # Welch and Satterthwaite
        below = before.error**4 / before.degrees + after.error**4 / after.degrees
        degrees = max(variance**2 / below, _LEAST_DEGREES)
    half, value = _reach(math.sqrt(variance), degrees), after.value - before.value
    return Estimate(value, value - half, value + half, min(before.count, after.count))


def rank_sum_chance(low: Sequence[float], high: Sequence[float]) -> float:
    """Chance of values as high as ``high`` if there were no difference, one-sided.

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
    begin, column = 0, np.array(values, float)
    while True:
        cut = _find_cut(column[begin:], least_change)
        if cut is None:
            return begin or None
        begin += cut


def _find_cut(values: Column, least_change: float) -> int | None:
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
"""Share of the iterations that is left out: caches fill, the allocator's pools grow."""

BLOCKS = 8
READINGS = 2 * BLOCKS
"""Readings behind the warm-up below which growth is not distinguished from it."""

_LEAST_BYTES = 2**24
_LEAST_SHARE = 0.01
"""Of the level: growth below both is the allocator's own."""

_EVEN = 0.25
"""Each block grows by this share of the mean at least: a pool that only reaches its
largest size now and then grows by jumps, and stands still between them."""

_GOES_ON = 0.7
"""Growth of the second half over that of the first: a cache that fills slows down."""


def find_growth(
    iterations: npt.ArrayLike,
    sizes: npt.ArrayLike,
    *,
    least_bytes: float = _LEAST_BYTES,
    least_share: float = _LEAST_SHARE,
    warm_up: float = 0.0,
) -> Estimate | None:
    """Steady growth behind the warm-up, in bytes per 1000 iterations.

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
    done, held = _behind_warm_up(iterations, sizes, warm_up)
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
    """How many more readings are needed before growth is distinguished from warm-up."""
    behind = len(_behind_warm_up(iterations, iterations)[0])
    return max(READINGS - behind, 0)


def _behind_warm_up(
    iterations: npt.ArrayLike, sizes: npt.ArrayLike, warm_up: float = 0.0
) -> tuple[Column, Column]:
    done, held = np.asarray(iterations, float), np.asarray(sizes, float)
    if not len(done):
        return done, held
    late = done >= done[0] + max(WARM_UP * (done[-1] - done[0]), warm_up)
    return done[late], held[late]


def fit_line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Slope and constant of a line through at least two points, by least squares."""
    slope, constant = np.polyfit(np.array(xs, float), np.array(ys, float), 1)
    return float(slope), float(constant)
