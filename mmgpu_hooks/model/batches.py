"""Step time and peak memory against batch size: weighted least squares of a line.

``peak = static + batch x activations(pixels) + workspace`` is a line over the padded
pixels of the largest batch. It is not proportional to the batch: parameters,
gradients, optimizer state and workspaces are there for one image as for a hundred.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mmgpu_hooks.model.stats import student_t
from mmgpu_hooks.model.workload import BatchLine, Cost
from mmgpu_hooks.schema import NoPrediction

USUAL_ERROR = 0.02
"""Standard error of a step, and of a peak, over itself from one training to the
next."""

KNEE_SHARE = 0.03
"""A batch size this close to the fastest is as fast: less memory, and less is asked of
the learning rate."""

USUAL_DEGREES = 4
"""How many degrees of freedom the belief in :data:`USUAL_ERROR` is worth: cuDNN chooses
other workspaces from size to size, and two points show no error of their own."""

MOST_BATCH = 2**16
"""Images in a batch; a larger one is a slip of a hand."""

_LONGEST_S = 3600.0
_MOST_BYTES = 2**50
_SAME_STATIC = 0.01
_COVERED = 0.95  # 9 in 10, on either side


class Line(NamedTuple):
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
    """
    x, y, w = np.array(xs, float), np.array(ys, float), 1 / np.array(scales, float)
    (slope, constant), cov = np.polyfit(x, y, 1, w=w, cov='unscaled')
    parameters = 2
    if constant < least_constant:
        constant, parameters = least_constant, 1
        cov = np.array([[1 / ((w * x) ** 2).sum(), 0.0], [0.0, 0.0]])
        slope = cov[0, 0] * (w**2 * x * (y - constant)).sum()
    residuals = ((w * (y - constant - slope * x)) ** 2).sum()
    figures = constant, slope, cov[1, 1], cov[0, 0], cov[0, 1], residuals
    return Line._make((*map(float, figures), parameters))


def fit_step_line(points: Sequence[tuple[int, Cost]]) -> BatchLine | NoPrediction:
    """Fit ``step = constant + image x batch``, neither part below zero.

    A GPU that is not full takes as long for one image as for a few: the line is an
    average of that and of what comes after, so it holds between the points and not
    far beyond them.

    Args:
        points: Batch size and step; at least two batch sizes, some repeated perhaps.

    Returns:
        The line, or why there is none.
    """
    for size, step in points:
        if size < 1 or not 0.0 < step.mean_s <= _LONGEST_S:
            return NoPrediction(
                f'A step of {step.mean_s:g} s with a batch size of {size} is absurd; '
                'was the evidence edited?'
            )
    sizes = tuple(sorted({size for size, _ in points}))
    if len(sizes) < 2:
        return NoPrediction(
            'The step against batch size needs runs with at least two batch sizes: '
            'train a second run with another one.'
        )
    steps_s = [step.mean_s for _, step in points]
    errors_s = [math.hypot(s.error_s, USUAL_ERROR * s.mean_s) for _, s in points]
    line = fit_line([b for b, _ in points], steps_s, errors_s, least_constant=0.0)
    error_s = math.sqrt(line.slope_variance)
    if line.slope < -2.0 * error_s:
        first, last = min(points), max(points, key=lambda point: point[0])
        return NoPrediction(
            f'The step does not grow with the batch size: {first[1].mean_s:.4f} s with '
            f'{first[0]}, {last[1].mean_s:.4f} s with {last[0]}; the runs '
            'did not train the same, or others took their time.'
        )
    if line.slope <= 0.0:
        weights = np.array(errors_s) ** -2
        return BatchLine(
            float(np.average(steps_s, weights=weights)), 0.0, error_s, sizes
        )
    return BatchLine(line.constant, line.slope, error_s, sizes)


def find_knee(images_per_s: Mapping[int, float]) -> int | None:
    """The smallest batch size that is within 3 % of the fastest.

    Args:
        images_per_s: By batch size, of those that memory allows.

    Returns:
        ``None`` without any.
    """
    if not images_per_s:
        return None
    enough = (1.0 - KNEE_SHARE) * max(images_per_s.values())
    return min(batch for batch, rate in images_per_s.items() if rate >= enough)


@dataclass(frozen=True)
class MemoryPoint:
    """The memory that one training with one batch size came to."""

    batch_size: int
    peak_bytes: int
    """Largest peak of the CUDA allocator."""
    pixels: float | None = None
    """Padded pixels of all images of its largest batch; ``None`` when unknown."""
    static_bytes: int | None = None
    """Parameters, gradients, optimizer state, buffers and averaged copies, as they were
    counted; ``None`` when they were not."""
    gradient_bytes: int = 0
    """Part of ``static_bytes`` that is not there while activations are most."""


@dataclass(frozen=True)
class MemoryFit:
    """``peak = fixed + growth x batch``, never below what is always there."""

    line: Line
    """Bytes over padded pixels where all points know theirs, else over images."""
    image_pixels: float | None
    """Padded pixels of an image in the batch where they were most: the tail, at which
    memory runs out. ``None`` where growth is per image."""
    static_bytes: int | None
    """As they were counted; ``None`` when they were not."""
    points: tuple[MemoryPoint, ...]
    relative_error: float
    """Standard error of a point over its peak."""
    degrees: float
    """Degrees of freedom behind ``relative_error``."""

    @property
    def fixed_bytes(self) -> float:
        """What any batch takes."""
        return self.line.constant

    @property
    def image_bytes(self) -> float:
        """Growth per image, at the largest padded size."""
        return self.line.slope * (self.image_pixels or 1.0)

    @property
    def workspace_bytes(self) -> float | None:
        """What neither is static nor grows; below zero as far as gradients come when
        activations go. ``None`` when the static part was not counted."""
        if self.static_bytes is None:
            return None
        return self.fixed_bytes - self.static_bytes


class PeakPrediction(NamedTuple):
    """Peak memory that a batch size would come to."""

    peak_bytes: int
    low_bytes: int
    """The truth is expected between low and high 9 times in 10."""
    high_bytes: int


def fit_batch_memory(points: Sequence[MemoryPoint]) -> MemoryFit | NoPrediction:
    """Fit the line through measured peaks, each weighed by its own size.

    Over padded pixels where all points know them, else over images. Where the static
    part was counted, the line begins no lower than it, gradients left out: MMEngine
    drops them after each step, so activations are most before they come.

    Args:
        points: With at least two batch sizes. Repeated ones are welcome.

    Returns:
        The line, or why there is none.
    """
    why = _find_flaw(points)
    if why is not None:
        return NoPrediction(why)
    known = [p.pixels / p.batch_size for p in points if p.pixels and p.pixels > 0]
    image_pixels = max(known) if len(known) == len(points) else None
    sizes = [p.pixels or 0.0 if image_pixels else float(p.batch_size) for p in points]
    if len(set(sizes)) < 2:
        return NoPrediction(_why_flat(points))
    counted = [p for p in points if p.static_bytes is not None]
    largest = max(counted, key=lambda p: p.static_bytes or 0, default=MemoryPoint(0, 0))
    resident_bytes = max((largest.static_bytes or 0) - largest.gradient_bytes, 0)
    peaks = [float(p.peak_bytes) for p in points]
    line = fit_line(sizes, peaks, peaks, least_constant=float(resident_bytes))
    degrees = USUAL_DEGREES + len(points) - line.parameters
    error = math.sqrt(
        (USUAL_DEGREES * USUAL_ERROR**2 + line.squared_residuals) / degrees
    )
    if line.slope <= error * math.sqrt(line.slope_variance):
        return NoPrediction(_why_flat(points))
    return MemoryFit(
        line=line,
        image_pixels=image_pixels,
        static_bytes=largest.static_bytes,
        points=tuple(points),
        relative_error=error,
        degrees=degrees,
    )


def predict_peak(fit: MemoryFit, batch_size: int) -> PeakPrediction:
    """The peak of a training whose largest batch is padded like the largest seen.

    Args:
        fit: Of :func:`fit_batch_memory`.
        batch_size: Images per batch.

    Raises:
        ValueError: If the batch size is out of range.
    """
    if not 1 <= batch_size <= MOST_BATCH:
        raise ValueError(f'batch_size: expected 1 to {MOST_BATCH}, found {batch_size}')
    return PeakPrediction(*map(int, _peaks(fit, batch_size)))


def _peaks(fit: MemoryFit, batch: Any) -> list[Any]:
    """Peak, low and high of one batch size or of an array of them."""
    line, size = fit.line, batch * (fit.image_pixels or 1.0)
    peak = line.constant + line.slope * size
    variance = line.constant_variance + 2.0 * size * line.covariance
    variance = np.maximum(variance + size**2 * line.slope_variance, 0.0)
    # where the line is, and how far a training is from it
    error = fit.relative_error * np.sqrt(variance + peak**2)
    reach = student_t(_COVERED, fit.degrees) * error
    least = float(fit.static_bytes or 0)
    bounds = peak, peak - reach, peak + reach
    return [np.rint(np.maximum(one, least)) for one in bounds]


_BATCHES = np.arange(1.0, MOST_BATCH + 1)


def find_largest_batch(fit: MemoryFit, free_bytes: float) -> int:
    """The largest batch size that fits even if the peak is at its upper end; or 0."""
    fitting = np.flatnonzero(_peaks(fit, _BATCHES)[2] <= free_bytes)
    return int(fitting[-1]) + 1 if len(fitting) else 0


def find_oom_batch(fit: MemoryFit, free_bytes: float) -> int | None:
    """The smallest batch size expected to run out of memory.

    Returns:
        ``None`` when none up to :data:`MOST_BATCH` does.
    """
    beyond = np.flatnonzero(_peaks(fit, _BATCHES)[0] > free_bytes)
    return int(beyond[0]) + 1 if len(beyond) else None


def _find_flaw(points: Sequence[MemoryPoint]) -> str | None:
    """Why no line is to be drawn through the points; ``None`` when it may."""
    for point in points:
        is_batch = 1 <= point.batch_size <= MOST_BATCH
        if not is_batch or not 0 < point.peak_bytes <= _MOST_BYTES:
            return (
                f'A peak of {point.peak_bytes} bytes with a batch size of '
                f'{point.batch_size} is absurd; was the evidence edited?'
            )
    sizes = {point.batch_size for point in points}
    if len(sizes) < 2:
        found = f'only {min(sizes)}' if sizes else 'none'
        return (
            'Memory against batch size needs peaks of at least two batch sizes, and '
            f'{found} was measured: train a second run with another batch size.'
        )
    counted = [(p.static_bytes, p.gradient_bytes) for p in points if p.static_bytes]
    if not counted:
        return None
    (least, _), (most, gradients) = min(counted), max(counted)
    if most > least * (1 + _SAME_STATIC):
        return (
            f'The static memory is not the same: {least / 2**20:.0f} MiB in one '
            f'run, {most / 2**20:.0f} MiB in another; the runs train different '
            'models or optimizers.'
        )
    if min(p.peak_bytes for p in points) < least - gradients:
        return (
            f'A peak is below the {least / 2**20:.0f} MiB that the model and its '
            'optimizer were counted to take; was the evidence edited?'
        )
    return None


def _why_flat(points: Sequence[MemoryPoint]) -> str:
    first, last = (
        f'{one.peak_bytes / 2**20:.0f} MiB with {one.batch_size}'
        for one in (min(points, key=_size), max(points, key=_size))
    )
    return (
        f'Memory does not grow with the batch size: {first}, {last}. That is noise or '
        'another limit; measure batch sizes further apart.'
    )


def _size(point: MemoryPoint) -> int:
    return point.batch_size
