"""Step time and peak memory against batch size: weighted least squares of a line. Pure.

``peak = static + batch x activations(pixels) + workspace`` is a line over the padded
pixels of the largest batch. It is not proportional to the batch: parameters,
gradients, optimizer state and workspaces are there for one image as for a hundred.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mmgpu_hooks.model.stats import student_t
from mmgpu_hooks.schema import (
    BatchLine,
    Cost,
    MemoryFit,
    MemoryPoint,
    MemoryRuleRow,
    NoPrediction,
    PeakPrediction,
)


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


USUAL_ERROR = 0.02
"""Standard error of a step, and of a peak, over itself from one training to the
next."""

KNEE_SHARE = 0.03
"""A batch size this close to the fastest is as fast: less memory, and less is asked of
the learning rate."""

_LONGEST_S = 3600.0


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
    batches = [float(size) for size, _ in points]
    steps_s = [step.mean_s for _, step in points]
    errors_s = [math.hypot(s.error_s, USUAL_ERROR * s.mean_s) for _, s in points]
    line = fit_line(batches, steps_s, errors_s, least_constant=0.0)
    image_error_s = math.sqrt(line.slope_variance)
    if line.slope < -2.0 * image_error_s:
        first = min(points, key=lambda point: point[0])
        last = max(points, key=lambda point: point[0])
        return NoPrediction(
            f'The step does not grow with the batch size: {first[1].mean_s:.4f} s with '
            f'{first[0]}, {last[1].mean_s:.4f} s with {last[0]}; the runs '
            'did not train the same, or others took their time.'
        )
    if line.slope <= 0.0:
        constant_s = math.fsum(s / e**2 for s, e in zip(steps_s, errors_s))
        constant_s /= math.fsum(error**-2 for error in errors_s)
        return BatchLine(constant_s, 0.0, image_error_s, sizes)
    return BatchLine(line.constant, line.slope, image_error_s, sizes)


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


USUAL_DEGREES = 4
"""How many degrees of freedom the belief in :data:`USUAL_ERROR` is worth: cuDNN chooses
other workspaces from size to size, and two points show no error of their own."""

MOST_BATCH = 2**16
"""Images in a batch; a larger one is a slip of a hand."""

_MOST_BYTES = 2**50
_SAME_STATIC = 0.01
_COVERED = 0.95  # 9 in 10, on either side


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
    static = _static(points)
    if isinstance(static, NoPrediction):
        return static
    static_bytes, resident_bytes = static
    image_pixels = _tail_pixels(points)
    sizes = [_size(point, image_pixels) for point in points]
    if len(set(sizes)) < 2:
        return NoPrediction(_why_flat(points))
    line = fit_line(
        sizes,
        [float(p.peak_bytes) for p in points],
        [float(p.peak_bytes) for p in points],
        least_constant=float(resident_bytes),
    )
    degrees = USUAL_DEGREES + len(points) - line.parameters
    error = math.sqrt(
        (USUAL_DEGREES * USUAL_ERROR**2 + line.squared_residuals) / degrees
    )
    if line.slope <= error * math.sqrt(line.slope_variance):
        return NoPrediction(_why_flat(points))
    return MemoryFit(
        fixed_bytes=line.constant,
        growth_bytes=line.slope,
        image_pixels=image_pixels,
        static_bytes=static_bytes,
        points=tuple(points),
        relative_error=error,
        degrees=degrees,
        fixed_variance=line.constant_variance,
        growth_variance=line.slope_variance,
        covariance=line.covariance,
    )


def predict_peak(
    fit: MemoryFit, batch_size: int, image_pixels: float | None = None
) -> PeakPrediction:
    """The peak of a training whose largest batch is padded like the largest seen.

    Args:
        fit: Of :func:`fit_batch_memory`.
        batch_size: Images per batch.
        image_pixels: Padded pixels of an image in the largest batch. Defaults to the
            most that was measured; of no effect where growth is per image.

    Raises:
        ValueError: If the batch size is out of range.
    """
    if not 1 <= batch_size <= MOST_BATCH:
        raise ValueError(f'batch_size: expected 1 to {MOST_BATCH}, found {batch_size}')
    size = float(batch_size)
    if fit.image_pixels is not None:
        size *= fit.image_pixels if image_pixels is None else image_pixels
    peak = fit.fixed_bytes + fit.growth_bytes * size
    line = max(
        fit.fixed_variance
        + 2.0 * size * fit.covariance
        + size**2 * fit.growth_variance,
        0.0,
    )
    # where the line is, and how far a training is from it
    error = fit.relative_error * math.sqrt(line + peak**2)
    reach = student_t(_COVERED, fit.degrees) * error
    least = float(fit.static_bytes or 0)
    return PeakPrediction(
        batch_size=batch_size,
        peak_bytes=round(max(peak, least)),
        low_bytes=round(max(peak - reach, least)),
        high_bytes=round(max(peak + reach, least)),
    )


def find_largest_batch(fit: MemoryFit, room_bytes: float) -> int:
    """The largest batch size that fits even if the peak is at its upper end; or 0."""

    def is_fitting(batch_size: int) -> bool:
        return predict_peak(fit, batch_size).high_bytes <= room_bytes

    # the interval is narrowest where peaks were measured: from there on it only grows
    measured = max(point.batch_size for point in fit.points)
    if is_fitting(measured):
        return _count_while(is_fitting, measured)
    return next((b for b in range(measured - 1, 0, -1) if is_fitting(b)), 0)


def find_oom_batch(fit: MemoryFit, room_bytes: float) -> int | None:
    """The smallest batch size expected to run out of memory.

    Returns:
        ``None`` when none up to :data:`MOST_BATCH` does.
    """
    fits = _count_while(lambda b: predict_peak(fit, b).peak_bytes <= room_bytes)
    return fits + 1 if fits < MOST_BATCH else None


def compare_rules(points: Sequence[MemoryPoint]) -> tuple[MemoryRuleRow, ...]:
    """Hold the fit, and the rule "twice the batch, twice the memory", to the peaks.

    Both are asked for a batch size they have not seen.

    Args:
        points: As for :func:`fit_batch_memory`.

    Returns:
        A row per batch size, smallest first.
    """
    largest = {
        batch: max(
            (p for p in points if p.batch_size == batch), key=lambda p: p.peak_bytes
        )
        for batch in sorted({p.batch_size for p in points})
    }
    smallest = next(iter(largest.values()), None)
    rows = []
    for batch, point in largest.items():
        fit = fit_batch_memory([p for p in points if p.batch_size != batch])
        seen = None
        if isinstance(fit, MemoryFit):
            pixels = None if point.pixels is None else point.pixels / batch
            seen = predict_peak(fit, batch, pixels).peak_bytes
        proportional = None
        if smallest is not None and smallest.batch_size != batch:
            proportional = round(smallest.peak_bytes * batch / smallest.batch_size)
        rows.append(MemoryRuleRow(batch, point.peak_bytes, seen, proportional))
    return tuple(rows)


def _find_flaw(points: Sequence[MemoryPoint]) -> str | None:
    """Why no line is to be drawn through the points; ``None`` when it may."""
    for point in points:
        if not 1 <= point.batch_size <= MOST_BATCH:
            return (
                f'The batch size {point.batch_size} is absurd; was the evidence edited?'
            )
        if not 0 < point.peak_bytes <= _MOST_BYTES:
            return (
                f'A peak of {point.peak_bytes} bytes is absurd; was the evidence '
                'edited?'
            )
    sizes = {point.batch_size for point in points}
    if len(sizes) < 2:
        found = f'only {min(sizes)}' if sizes else 'none'
        return (
            'Memory against batch size needs peaks of at least two batch sizes, and '
            f'{found} was measured: train a second run with another batch size.'
        )
    return None


def _static(points: Sequence[MemoryPoint]) -> tuple[int | None, int] | NoPrediction:
    """Counted static bytes, and those that the line cannot begin below."""
    counted = [p for p in points if p.static_bytes is not None]
    sizes = [p.static_bytes or 0 for p in counted]
    if not counted:
        return None, 0
    if max(sizes) > min(sizes) * (1 + _SAME_STATIC):
        return NoPrediction(
            f'The static memory is not the same: {min(sizes) / 2**20:.0f} MiB in one '
            f'run, {max(sizes) / 2**20:.0f} MiB in another; the runs train different '
            'models or optimizers.'
        )
    largest = max(counted, key=lambda p: p.static_bytes or 0)
    if min(p.peak_bytes for p in points) < min(sizes) - largest.gradient_bytes:
        return NoPrediction(
            f'A peak is below the {min(sizes) / 2**20:.0f} MiB that the model and its '
            'optimizer were counted to take; was the evidence edited?'
        )
    return max(sizes), max(max(sizes) - largest.gradient_bytes, 0)


def _tail_pixels(points: Sequence[MemoryPoint]) -> float | None:
    """Padded pixels of an image where they were most; ``None`` unless all are known."""
    known = [p.pixels / p.batch_size for p in points if p.pixels and p.pixels > 0]
    return max(known) if len(known) == len(points) else None


def _size(point: MemoryPoint, image_pixels: float | None) -> float:
    if image_pixels is None or point.pixels is None:
        return float(point.batch_size)
    return point.pixels


def _why_flat(points: Sequence[MemoryPoint]) -> str:
    first = min(points, key=lambda p: p.batch_size)
    last = max(points, key=lambda p: p.batch_size)
    return (
        f'Memory does not grow with the batch size: {first.peak_bytes / 2**20:.0f} MiB '
        f'with {first.batch_size}, {last.peak_bytes / 2**20:.0f} MiB with '
        f'{last.batch_size}. That is noise or another limit; measure batch sizes '
        'further apart.'
    )


def _count_while(is_fitting: Callable[[int], bool], least: int = 0) -> int:
    """The largest batch size up to which all fit, from one on that does."""
    low, high = least, MOST_BATCH
    while low < high:
        middle = (low + high + 1) // 2
        if is_fitting(middle):
            low = middle
        else:
            high = middle - 1
    return low
