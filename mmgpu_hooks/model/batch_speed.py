"""Step time against batch size, and the batch beyond which speed hardly grows. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mmgpu_hooks.model.line import fit_line
from mmgpu_hooks.schema import BatchLine, NoPrediction, SpeedPoint

USUAL_ERROR = 0.02
"""Standard error of a step over itself, from one training to the next."""

KNEE_SHARE = 0.03
"""A batch size this close to the fastest is as fast: less memory, and less is asked of
the learning rate."""

_LONGEST_S = 3600.0


def fit_step_line(points: Sequence[SpeedPoint]) -> BatchLine | NoPrediction:
    """Fit ``step = constant + image x batch``, neither part below zero.

    A GPU that is not full takes as long for one image as for a few: the line is an
    average of that and of what comes after, so it holds between the points and not
    far beyond them.

    Args:
        points: With at least two batch sizes. Repeated ones are welcome.

    Returns:
        The line, or why there is none.
    """
    for point in points:
        if point.batch_size < 1 or not 0.0 < point.step_s <= _LONGEST_S:
            return NoPrediction(
                f'A step of {point.step_s:g} s with a batch size of '
                f'{point.batch_size} is absurd; was the evidence edited?'
            )
    sizes = tuple(sorted({point.batch_size for point in points}))
    if len(sizes) < 2:
        return NoPrediction(
            'The step against batch size needs runs with at least two batch sizes: '
            'train a second run with another one.'
        )
    batches = [float(point.batch_size) for point in points]
    steps_s = [point.step_s for point in points]
    errors_s = [math.hypot(p.error_s, USUAL_ERROR * p.step_s) for p in points]
    line = fit_line(batches, steps_s, errors_s, least_constant=0.0)
    image_error_s = math.sqrt(line.slope_variance)
    if line.slope < -2.0 * image_error_s:
        first = min(points, key=lambda p: p.batch_size)
        last = max(points, key=lambda p: p.batch_size)
        return NoPrediction(
            f'The step does not grow with the batch size: {first.step_s:.4f} s with '
            f'{first.batch_size}, {last.step_s:.4f} s with {last.batch_size}; the runs '
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
