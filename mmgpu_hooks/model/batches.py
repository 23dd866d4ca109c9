"""Step time and peak memory against batch size: weighted least squares of a line.

Memory is not proportional to the batch: parameters, gradients, optimizer state and
workspaces are there for one image as for a hundred.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mmgpu_hooks.model.prediction import COVERAGE
from mmgpu_hooks.model.stats import Column
from mmgpu_hooks.model.workload import BatchLine, Cost
from mmgpu_hooks.schema.judged import NoPrediction

USUAL_ERROR = 0.02
"""Standard error of a step, and of a peak, over itself from one training to the
next."""

MOST_BATCH = 2**16
"""Images in a batch; a larger one is a slip of a hand."""

_BATCHES = np.arange(1.0, MOST_BATCH + 1)


def fit_step_line(points: Sequence[tuple[int, Cost]]) -> BatchLine | NoPrediction:
    """Fit ``step = constant + image x batch``.

    A GPU that is not full takes as long for one image as for a few: the line is an
    average of that and of what comes after, so it holds between the points and not
    far beyond them.

    Args:
        points: Batch size and step; with two batch sizes, some repeated perhaps.

    Returns:
        The line, or why there is none.
    """
    sizes = tuple(sorted({size for size, _ in points}))
    if len(sizes) < 2:
        return NoPrediction(
            'The step against batch size needs runs with at least two batch sizes: '
            'train a second run with another one.'
        )
    steps_s = [step.mean_s for _, step in points]
    errors_s = [math.hypot(s.error_s, USUAL_ERROR * s.mean_s) for _, s in points]
    image_s, constant_s, covariance = _fit_line(
        [size for size, _ in points], steps_s, errors_s
    )
    error_s = math.sqrt(covariance[0, 0])
    if image_s < -2.0 * error_s:
        first, *_, last = sorted(points, key=lambda point: point[0])
        return NoPrediction(
            f'The step does not grow with the batch size: {first[1].mean_s:.4f} s with '
            f'{first[0]}, {last[1].mean_s:.4f} s with {last[0]}; the runs '
            'did not train the same, or others took their time.'
        )
    if image_s <= 0.0:
        weights = np.array(errors_s) ** -2
        image_s, constant_s = 0.0, float(np.average(steps_s, weights=weights))
    return BatchLine(constant_s, image_s, error_s, sizes)


def _fit_line(
    xs: Sequence[float], ys: Sequence[float], errors: Sequence[float]
) -> tuple[float, float, Column]:
    """Slope, constant, and the covariance of both."""
    weights = 1 / np.array(errors, float)
    line, covariance = np.polyfit(xs, ys, 1, w=weights, cov='unscaled')
    return float(line[0]), float(line[1]), covariance


class PeakPrediction(NamedTuple):
    """Peak memory that a batch size would come to."""

    peak_bytes: int
    low_bytes: int
    """The truth is expected between low and high 9 times in 10."""
    high_bytes: int


@dataclass(frozen=True)
class MemoryFit:
    """``peak = fixed + image x batch``, of the CUDA allocator."""

    fixed_bytes: float
    """What any batch takes."""
    image_bytes: float
    """Growth per image."""
    relative_error: float
    """Standard error of a training's peak over itself."""
    covariance: Column
    """Of both parts of the line, the growth first."""
    batch_sizes: tuple[int, ...]
    """Those that it was fitted to."""

    def peaks(self, batch: Any) -> tuple[Any, Any, Any]:
        """Peak, low and high of one batch size or of an array of them."""
        peak = self.fixed_bytes + self.image_bytes * batch
        (of_image, of_both), (_, of_fixed) = self.covariance
        line = of_fixed + 2.0 * batch * of_both + batch**2 * of_image
        # where the line is, and how far a training is from it
        reach = COVERAGE * np.sqrt(line + (self.relative_error * peak) ** 2)
        return peak, np.maximum(peak - reach, 0.0), peak + reach


def fit_batch_memory(points: Sequence[tuple[int, int]]) -> MemoryFit | NoPrediction:
    """Fit the line through measured peaks, each weighed by its own size.

    Args:
        points: Batch size and peak bytes; with two batch sizes at least.

    Returns:
        The line, or why there is none.
    """
    sizes, peaks = [size for size, _ in points], [peak for _, peak in points]
    if len(set(sizes)) < 2:
        return NoPrediction(
            'Memory against batch size needs peaks of at least two batch sizes: train '
            'a second run with another batch size.'
        )
    errors = USUAL_ERROR * np.array(peaks, float)
    image, fixed, covariance = _fit_line(sizes, peaks, errors.tolist())
    away = (np.array(peaks) - fixed - image * np.array(sizes)) / errors
    # two points show no error of their own
    scatter = max(float((away**2).sum()) / max(len(points) - 2, 1), 1.0)
    if image <= math.sqrt(scatter * covariance[0, 0]):
        (least, first), (most, last) = min(points), max(points)
        return NoPrediction(
            f'Memory does not grow with the batch size: {first / 2**20:.0f} MiB with '
            f'{least}, {last / 2**20:.0f} MiB with {most}. That is noise or another '
            'limit; measure batch sizes further apart.'
        )
    error = USUAL_ERROR * math.sqrt(scatter)
    return MemoryFit(fixed, image, error, scatter * covariance, tuple(sorted(sizes)))


def predict_peak(fit: MemoryFit, batch_size: int) -> PeakPrediction:
    """The peak of a training with another batch size."""
    return PeakPrediction(*map(int, fit.peaks(batch_size)))


def find_largest_batch(fit: MemoryFit, free_bytes: float) -> int:
    """The largest batch size that fits even if the peak is at its upper end; or 0."""
    return int((fit.peaks(_BATCHES)[2] <= free_bytes).sum())


def find_oom_batch(fit: MemoryFit, free_bytes: float) -> int | None:
    """The smallest batch size expected to run out of memory.

    Returns:
        ``None`` when none up to :data:`MOST_BATCH` does.
    """
    fitting = int((fit.peaks(_BATCHES)[0] <= free_bytes).sum())
    return fitting + 1 if fitting < MOST_BATCH else None
