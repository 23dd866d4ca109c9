"""Memory of training from sizes alone: growth of the activations.

What is fed in was counted on real models elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mmgpu_hooks.schema.memory import ActivationFit, ActivationPoint

_GOOD_PCT = 0.5
"""A simpler law of growth that is as close as this is kept: it extrapolates better."""

_MEGAPIXEL = 1e6

_LAWS = (
    *((1, 2), (1, 0, 2), (2, 1, 2), (2, 0, 1, 2), (2, 2, 3), (2, 0, 2, 3)),
    *((2, 1, 2, 3), (3, 0, 1, 2, 3)),
)
"""Laws of growth, simplest first: image sizes that it takes to see one, then its terms:
0 fixed, 1 per image, 2 per pixel, 3 per pair of pixels."""


def fit_activations(points: Sequence[ActivationPoint]) -> ActivationFit:
    """Fit how the saved bytes grow with batch and padded pixels.

    Least squares on relative distances, of the simplest law that is within 0.5 % of
    all points: per pixel; and per batch or image; and per pair of pixels. No
    part may shrink. With images of one size only, growth per image stays unknown.

    Args:
        points: At least two that differ in batch or size.
    """
    known = [point for point in points if point.saved_bytes]
    if not known:
        return ActivationFit(0.0, 0.0, 0.0, 0.0, 0.0, tuple(points))
    saved = np.array([point.saved_bytes for point in known], float)
    batch = np.array([point.batch_size for point in known], float)
    pixels = np.array([p.height * p.width for p in known]) / _MEGAPIXEL
    grown = np.array([batch**0, batch, batch * pixels, batch * pixels**2]) / saved
    best, parts = math.inf, np.zeros(4)
    for sizes, *law in _LAWS:
        rows = grown[law].T
        # more of them than points, or points that do not distinguish them
        scale = rows.max(axis=0)
        found, _, rank, _ = np.linalg.lstsq(rows / scale, saved**0, rcond=1e-9)
        if len({*pixels}) < sizes or rank < len(law) or (found < 0).any():
            continue
        residual = float(np.abs(rows @ (found / scale) - 1).max())
        # no rounding error decides between laws that are as close
        if residual < (1 - 1e-9) * best:
            best, parts = residual, np.zeros(4)
            parts[law] = found / scale
        if 100 * residual <= _GOOD_PCT:
            break
    fixed, image, pixel, squared = parts.tolist()
    return ActivationFit(
        fixed_bytes=fixed,
        image_bytes=image,
        pixel_bytes=pixel / _MEGAPIXEL,
        squared_pixel_bytes=squared / _MEGAPIXEL**2,
        residual_pct=100 * best,
        points=tuple(points),
    )


def predict_activations(fit: ActivationFit, batch_size: int, pixels: float) -> int:
    """Bytes kept for the backward pass.

    Args:
        fit: Of :func:`fit_activations`.
        batch_size: Images in the batch.
        pixels: Padded height times width of an image.
    """
    per_image = (
        fit.image_bytes + fit.pixel_bytes * pixels + fit.squared_pixel_bytes * pixels**2
    )
    return round(fit.fixed_bytes + batch_size * per_image)
