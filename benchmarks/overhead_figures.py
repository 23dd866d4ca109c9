"""The arithmetic of the benchmark of overhead; pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mmgpu_hooks.model.stats import student_t


@dataclass(frozen=True)
class Spent:
    """What the iterations of one arm cost, in seconds each."""

    ordinary: Sequence[float]
    ends: Sequence[float]
    """Of the iterations that end an interval, without the first of each run."""
    firsts: Sequence[float]
    """Of those first ones: what is done once is in them."""


def split_ends(costs_s: Sequence[float], interval: int, first: int) -> Spent:
    """Part the iterations of one run.

    Args:
        costs_s: Of each iteration.
        interval: Iterations per interval.
        first: Number of the first one, from 0.
    """
    ends = [i for i in range(len(costs_s)) if (i + first + 1) % interval == 0]
    is_end = set(ends)
    return Spent(
        [cost for i, cost in enumerate(costs_s) if i not in is_end],
        [costs_s[i] for i in ends[1:]],
        [costs_s[i] for i in ends[:1]],
    )


def join(runs: Sequence[Spent]) -> Spent:
    """Several runs as one."""
    return Spent(
        [cost for run in runs for cost in run.ordinary],
        [cost for run in runs for cost in run.ends],
        [cost for run in runs for cost in run.firsts],
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of all are not above, of the values themselves."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True)
class Ratio:
    """A ratio with its confidence interval."""

    value: float
    low: float
    high: float

    def is_wide(self, margin: float) -> bool:
        """Whether even an interval around 1 would not be within ``1 +- margin``."""
        return math.sqrt(self.high / self.low) > 1 + margin


def fit_growth(values: Sequence[float | None], confidence: float = 0.95) -> Ratio:
    """The last tenth of a run over the first one, by the line through all of it.

    What a machine does for seconds moves a tenth by more than is looked for. So the
    error is that of the parts around the line, and not of what is within a part.

    Args:
        values: Means of equal parts of the run, in order and of equal weight; ``None``
            where a part tells nothing. At least 3 must tell something.
        confidence: Of the interval.
    """
    told = [
        ((index + 0.5) / len(values), value)
        for index, value in enumerate(values)
        if value is not None
    ]
    middle = statistics.fmean(x for x, _ in told)
    mean = statistics.fmean(y for _, y in told)
    spread = math.fsum((x - middle) ** 2 for x, _ in told)
    slope = math.fsum((x - middle) * (y - mean) for x, y in told) / spread
    residuals = [y - mean - slope * (x - middle) for x, y in told]
    degrees = len(told) - 2
    scatter = math.sqrt(math.fsum(r**2 for r in residuals) / degrees)
    first = mean + slope * (0.05 - middle)
    ratio = (mean + slope * (0.95 - middle)) / first
    # by the derivatives of the ratio in slope and mean, which are independent
    errors = mean / math.sqrt(spread), slope / math.sqrt(len(told))
    error = 0.9 * scatter * math.hypot(*errors) / first**2
    half = student_t((1 + confidence) / 2, degrees) * error / ratio
    return Ratio(ratio, ratio * math.exp(-half), ratio * math.exp(half))
