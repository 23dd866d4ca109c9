"""Memory of training from sizes alone: optimizer state, growth of the activations.

What is fed in was counted on real models elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from mmgpu_hooks.schema import (
    ActivationFit,
    ActivationPoint,
    MeasuredMemory,
    MemoryEstimate,
    RunEvidence,
)

_STEP_BYTES = 4
"""A counter of steps per parameter, one 32-bit number (torch keeps it as a tensor)."""

_GOOD_PCT = 0.5
"""A simpler law of growth that is as close as this is kept: it extrapolates better."""

_MEGAPIXEL = 1e6


def predict_state_bytes(
    optimizer: str,
    options: Mapping[str, Any],
    parameters: Iterable[tuple[int, int]],
) -> int | None:
    """Bytes that a torch optimizer keeps once it has stepped.

    Args:
        optimizer: The class's name, such as ``AdamW``.
        options: Its arguments; what is missing has torch's default.
        parameters: Numbers and bytes per number of each parameter that gets a
            gradient: torch keeps nothing for the others.

    Returns:
        The bytes, or ``None`` for an optimizer that is not known here.

    Examples:
        >>> predict_state_bytes('SGD', {'momentum': 0.9}, [(1000, 4)])
        4000
        >>> predict_state_bytes('AdamW', {}, [(1000, 4), (10, 4)])
        8088
    """
    kept = _copies_and_counters(optimizer, options)
    if kept is None:
        return None
    copies, counters = kept
    return sum(
        copies * numbers * size + counters * _STEP_BYTES for numbers, size in parameters
    )


def _copies_and_counters(
    optimizer: str, options: Mapping[str, Any]
) -> tuple[int, int] | None:
    """Copies of a parameter, and single numbers, that its state holds."""

    def one_if(name: str) -> int:
        return int(bool(options.get(name)))

    if optimizer == 'SGD':
        return one_if('momentum'), 0
    if optimizer in ('Adam', 'AdamW'):
        return 2 + one_if('amsgrad'), 1
    if optimizer == 'NAdam':
        return 2, 2
    if optimizer in ('Adamax', 'RAdam', 'Adadelta'):
        return 2, 1
    if optimizer == 'RMSprop':
        return 1 + one_if('momentum') + one_if('centered'), 1
    if optimizer == 'Adagrad':
        return 1, 1
    return None


def fit_activations(points: Sequence[ActivationPoint]) -> ActivationFit:
    """Fit how the saved bytes grow with batch and padded pixels.

    Least squares on relative distances, of the simplest law that is within 0.5 % of
    all points: per pixel; and per batch or image; and per pair of pixels. No
    part may shrink. With images of one size only, growth per image stays unknown.

    Args:
        points: At least two that differ in batch or size.

    Raises:
        ValueError: If there are fewer.
    """
    if len({(p.batch_size, p.height * p.width) for p in points}) < 2:
        raise ValueError('at least two different points are needed for a fit')
    known = [point for point in points if point.saved_bytes]
    if not known:
        return ActivationFit(0.0, 0.0, 0.0, 0.0, 0.0, tuple(points))
    best: tuple[float, dict[str, float]] | None = None
    for terms in _laws(len({p.height * p.width for p in points})):
        if len(terms) > len(known):
            continue
        parts = _solve(terms, known)
        if parts is None or any(part < 0 for part in parts.values()):
            continue
        residual = max(abs(_evaluate(parts, p) / p.saved_bytes - 1) for p in known)
        if best is None or residual < best[0]:
            best = residual, parts
        if 100 * residual <= _GOOD_PCT:
            break
    assert best is not None  # growth per pixel alone always fits somehow
    residual, parts = best
    return ActivationFit(
        fixed_bytes=parts.get('fixed', 0.0),
        image_bytes=parts.get('image', 0.0),
        pixel_bytes=parts.get('pixel', 0.0) / _MEGAPIXEL,
        squared_pixel_bytes=parts.get('squared', 0.0) / _MEGAPIXEL**2,
        residual_pct=100 * residual,
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


def _laws(sizes: int) -> list[tuple[str, ...]]:
    """Terms to try, simplest first."""
    laws: list[tuple[str, ...]] = [('pixel',), ('fixed', 'pixel')]
    if sizes > 1:
        laws += [('image', 'pixel'), ('fixed', 'image', 'pixel')]
        laws += [('pixel', 'squared'), ('fixed', 'pixel', 'squared')]
        laws += [('image', 'pixel', 'squared')]
    if sizes > 2:
        laws += [('fixed', 'image', 'pixel', 'squared')]
    return laws


def _features(point: ActivationPoint) -> dict[str, float]:
    batch, pixels = point.batch_size, point.height * point.width / _MEGAPIXEL
    return {
        'fixed': 1.0,
        'image': float(batch),
        'pixel': batch * pixels,
        'squared': batch * pixels**2,
    }


def _evaluate(parts: Mapping[str, float], point: ActivationPoint) -> float:
    features = _features(point)
    return sum(part * features[name] for name, part in parts.items())


def _solve(
    terms: Sequence[str], points: Sequence[ActivationPoint]
) -> dict[str, float] | None:
    """Weighted least squares; ``None`` where the points do not tell terms apart."""
    rows = [[_features(p)[term] / p.saved_bytes for term in terms] for p in points]
    scale = np.abs(rows).max(axis=0)
    parts, _, rank, _ = np.linalg.lstsq(rows / scale, np.ones(len(rows)), rcond=1e-9)
    if rank < len(terms):
        return None
    return dict(zip(terms, (parts / scale).tolist()))


def compare_with_run(
    estimate: MemoryEstimate, optimizer: str, evidence: RunEvidence
) -> MeasuredMemory | str:
    """Estimate the batch at which a run had its largest peak.

    Args:
        estimate: Of the run's model.
        optimizer: The run's optimizer, as the estimate names it.
        evidence: Of the run.

    Returns:
        Both figures, or in a sentence why they cannot be compared.
    """
    batch = evidence.run.loader.batch_size
    peaks = [
        (record.gpu_mem_peak_bytes, record.largest_batch_pixels)
        for record in evidence.intervals
        if record.gpu_mem_peak_bytes and record.largest_batch_pixels
    ]
    if not peaks or not batch:
        why = evidence.run.unknown.get('gpu_mem_peak_bytes') or (
            'its evidence has no peak of the CUDA allocator with the size of the batch'
        )
        return f'The run cannot be compared: {why}.'
    static = estimate.static.total_bytes(optimizer)
    if estimate.fit is None or static is None:
        return 'The run cannot be compared: a part of the estimate is unknown.'
    peak, total_pixels = max((peak or 0, pixels or 0) for peak, pixels in peaks)
    pixels = total_pixels // batch
    counted = evidence.model
    parts = counted and (
        counted.parameter_bytes,
        counted.gradient_bytes,
        counted.optimizer_state_bytes,
        counted.buffer_bytes,
        counted.ema_bytes,
    )
    difference = None
    if parts and all(part is not None for part in parts):
        difference = sum(part or 0 for part in parts) - static
    return MeasuredMemory(
        path=evidence.path,
        batch_size=batch,
        pixels=pixels,
        optimizer=optimizer,
        peak_bytes=peak,
        predicted_bytes=static + predict_activations(estimate.fit, batch, pixels),
        static_difference_bytes=difference,
    )
