"""What a hook adds to an iteration, out of noisy pairs; pure.

Noise of a machine has a heavy tail: one iteration in a hundred takes half as long
again. A robust mean would cut that off, and with it what the hook itself does now and
then. So the iteration is parted by where the hook's code can run:

- At the hook points it runs on this very thread. There the mean is the plain one:
  nothing that the hook does is cut off, however rare.
- While the loop waits for its batch and while the step works, none of it runs on this
  thread. What reaches them (colder caches, workers that are slower, a busier machine)
  shifts all iterations alike, and Huber's estimate finds a shift. Here is nearly all of
  the noise: a batch comes through the kernel tensor by tensor.
- What threads of the hook's own burn could delay a few iterations by much, which a
  robust mean would not see: so their CPU time is added in full, as if none of it ran
  beside the training.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmgpu_hooks.model.stats import student_t

Round = Mapping[str, Sequence['Iteration']]
"""By arm, the iterations of one round; a round may be without some arms."""

CLIP, _STEPS = 1.5, 50
"""Huber's bound in standard deviations: 96 % as efficient as a mean of normal ones."""


@dataclass(frozen=True)
class Iteration:
    """Where the seconds of one iteration went."""

    hooks_s: float
    """At the hook points, with what hooks wrap them in."""
    rest_s: float
    """In the wait for the batch and in the step, where no hook has a part."""


@dataclass(frozen=True)
class Effect:
    """A mean with its confidence interval."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Of the interval."""
        return (self.high - self.low) / 2

    def is_within(self, margin: float) -> bool:
        """Whether the whole interval is within ``+-margin``."""
        return -margin <= self.low and self.high <= margin


@dataclass(frozen=True)
class Comparison:
    """One arm against another; all in percent of an iteration of the other."""

    total: Effect
    hooks: Effect
    rest: Effect
    threads: float
    plain: Effect
    """Of whole iterations, the mean of all without threads: what noise leaves of it."""
    rounds: int
    iteration_s: float
    """Mean of the other's."""


def compare_arms(
    rounds: Sequence[Round], arm: str, base: str, threads: float = 0.0
) -> Comparison:
    """What an iteration of ``arm`` takes longer than one of ``base``.

    A round is one observation: what its iterations have in common is no error of the
    interval's.

    Args:
        rounds: Those without ``arm`` are passed over; at least 2 with it.
        arm: To compare.
        base: With what.
        threads: CPU that threads of the arm's own use, in percent of a core.
    """
    pairs = [(r[arm], r[base]) for r in rounds if arm in r]
    base_s = statistics.fmean(i.hooks_s + i.rest_s for _, other in pairs for i in other)
    hooks_s = [[a.hooks_s - b.hooks_s for a, b in zip(*pair)] for pair in pairs]
    rest_s = [[a.rest_s - b.rest_s for a, b in zip(*pair)] for pair in pairs]
    hooks = [statistics.fmean(seconds) for seconds in hooks_s]
    steady = iter(robust_parts([s for seconds in rest_s for s in seconds]))
    rest = [statistics.fmean(next(steady) for _ in seconds) for seconds in rest_s]
    plain = [a + statistics.fmean(b) for a, b in zip(hooks, rest_s)]
    percent = 100 / base_s
    return Comparison(
        fold_effect([percent * (a + b) + threads for a, b in zip(hooks, rest)]),
        fold_effect([percent * seconds for seconds in hooks]),
        fold_effect([percent * seconds for seconds in rest]),
        threads,
        fold_effect([percent * seconds for seconds in plain]),
        len(pairs),
        base_s,
    )


def fold_effect(observations: Sequence[float], confidence: float = 0.9) -> Effect:
    """Mean of independent observations and its two-sided confidence interval.

    An equivalence test at 5 % by two one-sided tests is the same as asking whether
    the interval at 90 % is within the margin (Schuirmann 1987).

    Args:
        observations: At least 2.
        confidence: Of the interval.
    """
    mean = statistics.fmean(observations)
    degrees = len(observations) - 1
    half = student_t((1 + confidence) / 2, degrees) * statistics.stdev(observations)
    half /= math.sqrt(len(observations))
    return Effect(mean, mean - half, mean + half)


def robust_parts(differences: Sequence[float], clip: float = CLIP) -> list[float]:
    """What each difference contributes to Huber's estimate of their centre.

    Their mean is the estimate, and their spread its error, as with the values of a
    plain mean: the linearisation by the influence function (Huber 1981, 3.2). The scale
    is the median absolute deviation.

    Args:
        differences: Of pairs; symmetric but for what shifts them.
        clip: Standard deviations beyond which a difference counts no more than there.
    """
    centre = statistics.median(differences)
    spread = statistics.median(abs(value - centre) for value in differences)
    bound = clip * spread / statistics.NormalDist().inv_cdf(0.75)
    if bound == 0.0:
        return [centre] * len(differences)
    for _ in range(_STEPS):
        clipped = [max(-bound, min(bound, value - centre)) for value in differences]
        inner = statistics.fmean(abs(value) < bound for value in clipped)
        step = statistics.fmean(clipped) / inner
        centre += step
        if abs(step) < 1e-9 * bound:
            break
    return [centre + value / inner for value in clipped]
