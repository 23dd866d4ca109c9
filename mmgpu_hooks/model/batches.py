"""Fits step time and peak GPU memory to batch size by weighted least squares.

Memory is not proportional to the batch: parameters, gradients, optimizer state and
workspaces are there for one image as for a hundred.

The newest run is judged by itself. Other runs show how step and memory grow with the
batch size, and nothing else: costs of another day would blur what training takes now.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mmgpu_hooks.model.bounds import MOST_BATCH
from mmgpu_hooks.model.prediction import COVERAGE
from mmgpu_hooks.model.stats import FloatArray
from mmgpu_hooks.model.workload import BatchLine, Cost
from mmgpu_hooks.schema.errors import NoPredictionError
from mmgpu_hooks.schema.memory import MeasuredPeak
from mmgpu_hooks.schema.text import Text, phrase

_NOTHING = Text('')

USUAL_ERROR = 0.02
"""Usual relative standard error, from run to run, of step time and of peak memory."""

_BATCHES = np.arange(1.0, MOST_BATCH + 1)


class StepPoint(NamedTuple):
    """Batch size of a run, and the seconds of its train step."""

    batch_size: int
    step: Cost


def fit_step_line(points: Sequence[StepPoint]) -> BatchLine:
    """Fits a line of train step seconds: ``step = constant + image x batch_size``.

    A GPU that is not full takes as long for one image as for a few: the line is an
    average of that and of what comes after, so it holds between the points and not
    far beyond them.

    Args:
        points: With two batch sizes at least, some repeated perhaps.

    Raises:
        NoPredictionError: If they make no line.
    """
    sizes = tuple(sorted({point.batch_size for point in points}))
    if len(sizes) < 2:
        raise NoPredictionError(
            phrase(
                'The step against batch size needs runs with at least two batch sizes: '
                'train a second run with another one.'
            )
        )
    steps_s = [point.step.mean_s for point in points]
    errors_s = [
        math.hypot(point.step.error_s, USUAL_ERROR * point.step.mean_s)
        for point in points
    ]
    line = _fit_line([point.batch_size for point in points], steps_s, errors_s)
    constant_s, image_s, error_s = line.constant, line.slope, line.slope_error
    if image_s < -2.0 * error_s:
        first, *_, last = sorted(points, key=lambda point: point.batch_size)
        raise NoPredictionError(
            phrase(
                'The step does not grow with the batch size: {first_s:.4f} s with '
                '{first_size}, {last_s:.4f} s with {last_size}; the runs did not train '
                'the same, or others took their time.',
                first_s=first.step.mean_s,
                first_size=first.batch_size,
                last_s=last.step.mean_s,
                last_size=last.batch_size,
            )
        )
    if image_s <= 0.0:
        weights = np.array(errors_s) ** -2
        image_s, constant_s = 0.0, float(np.average(steps_s, weights=weights))
    return BatchLine(constant_s, image_s, error_s, sizes)


class _FittedLine(NamedTuple):
    """Slope and constant of a line fitted by weighted least squares."""

    slope: float
    constant: float
    covariance: FloatArray
    """Covariance matrix of the line's slope and constant, the slope first."""

    @property
    def slope_error(self) -> float:
        """Standard error of the line's slope, in the slope's unit."""
        return math.sqrt(self.covariance[0, 0])


def _fit_line(
    xs: Sequence[float], ys: Sequence[float], errors: Sequence[float]
) -> _FittedLine:
    weights = 1 / np.array(errors, float)
    (slope, constant), covariance = np.polyfit(xs, ys, 1, w=weights, cov='unscaled')
    return _FittedLine(float(slope), float(constant), covariance)


class PeakPrediction(NamedTuple):
    """Predicted GPU memory peak of a training with one batch size, in bytes."""

    peak_bytes: int
    low_bytes: int
    """Lower end, in bytes, of the interval that holds the true peak 9 times in 10."""
    high_bytes: int


class _PeakBand(NamedTuple):
    """Predicted GPU memory peaks in bytes, with the bounds of their 90 % intervals."""

    peak: Any
    low: Any
    high: Any


@dataclass(frozen=True)
class MemoryFit:
    """Line of the CUDA allocator's peak in bytes: ``peak = fixed + image x batch``."""

    fixed_bytes: float
    """Bytes of GPU memory that any batch takes, whatever its size."""
    image_bytes: float
    """Bytes by which the GPU memory peak grows per image of a batch."""
    relative_error: float
    """Relative standard error of one training's memory peak around the fitted line."""
    covariance: FloatArray
    """Covariance matrix of ``image_bytes`` and ``fixed_bytes``, in this order."""
    batch_sizes: tuple[int, ...]
    """Batch sizes of the measured peaks that the line was fitted to, ascending."""

    def band(self, batch: Any) -> _PeakBand:
        """Computes memory peaks in bytes, with 90 % intervals, for some batch sizes."""
        peak = self.fixed_bytes + self.image_bytes * batch
        (of_image, of_both), (_, of_fixed) = self.covariance
        line = of_fixed + 2.0 * batch * of_both + batch**2 * of_image
        # where the line is, and how far a training is from it
        reach = COVERAGE * np.sqrt(line + (self.relative_error * peak) ** 2)
        return _PeakBand(peak, np.maximum(peak - reach, 0.0), peak + reach)


def fit_batch_memory(points: Sequence[MeasuredPeak]) -> MemoryFit:
    """Fits GPU memory peaks (bytes) to batch size by least squares of relative errors.

    Args:
        points: With two batch sizes at least.

    Raises:
        NoPredictionError: If they make no line.
    """
    sizes = [point.batch_size for point in points]
    peaks = np.array([point.peak_bytes for point in points], float)
    if len(set(sizes)) < 2:
        raise NoPredictionError(
            phrase(
                'Memory against batch size needs peaks of at least two batch sizes: '
                'train a second run with another batch size.'
            )
        )
    errors = USUAL_ERROR * peaks
    line = _fit_line(sizes, peaks.tolist(), errors.tolist())
    away = (peaks - line.constant - line.slope * np.array(sizes)) / errors
    # two points show no error of their own
    scatter = max(float((away**2).sum()) / max(len(points) - 2, 1), 1.0)
    if line.slope <= math.sqrt(scatter) * line.slope_error:
        least, most = min(points), max(points)
        raise NoPredictionError(
            phrase(
                'Memory does not grow with the batch size: {least_peak_mib:.0f} MiB '
                'with {least_size}, {most_peak_mib:.0f} MiB with {most_size}. That is '
                'noise or another limit; measure batch sizes further apart.',
                least_peak_mib=least.peak_bytes / 2**20,
                least_size=least.batch_size,
                most_peak_mib=most.peak_bytes / 2**20,
                most_size=most.batch_size,
            )
        )
    return MemoryFit(
        fixed_bytes=line.constant,
        image_bytes=line.slope,
        relative_error=USUAL_ERROR * math.sqrt(scatter),
        covariance=scatter * line.covariance,
        batch_sizes=tuple(sorted(sizes)),
    )


class CardMemory(NamedTuple):
    """Line of GPU memory bytes against batch size, or the reason why it is unknown."""

    fit: MemoryFit | None
    why_unknown: Text = _NOTHING
    """Sentence that says why memory could not be fitted to batch size."""


def predict_peak(fit: MemoryFit, batch_size: int) -> PeakPrediction:
    """Predicts the GPU memory peak, in bytes, of a training with another batch size."""
    band = fit.band(batch_size)
    return PeakPrediction(int(band.peak), int(band.low), int(band.high))


def find_largest_batch(fit: MemoryFit, free_bytes: float) -> int:
    """Finds the largest batch size whose peak's upper bound fits given GPU memory."""
    return int((fit.band(_BATCHES).high <= free_bytes).sum())


def find_oom_batch(fit: MemoryFit, free_bytes: float) -> int | None:
    """Finds the smallest batch size that is expected to run out of GPU memory.

    Returns:
        ``None`` when none up to `MOST_BATCH` does.
    """
    fitting = int((fit.band(_BATCHES).peak <= free_bytes).sum())
    return fitting + 1 if fitting < MOST_BATCH else None
