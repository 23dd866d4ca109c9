"""Estimates a config's training memory from runs of its model on the CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mmgpu_hooks.judge.memory import CONTEXT_BYTES, CardRoom
from mmgpu_hooks.memory.activations import Gradient, count_state, probe_model
from mmgpu_hooks.memory.config_model import (
    CannotRunError,
    ConfigModel,
    read_config_model,
)
from mmgpu_hooks.memory.padded_size import PaddedSize, locate_padded_size, type_name
from mmgpu_hooks.model.bounds import MOST_BATCH
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.memory import (
    ActivationFit,
    ActivationPoint,
    CardFit,
    ImageSize,
    MeasuredPeak,
    MemoryEstimate,
    PeakFactors,
    StaticBytes,
)
from mmgpu_hooks.schema.text import phrase

PEAK_FACTORS = {
    False: PeakFactors(least=1.01, most=1.5),
    True: PeakFactors(least=1.06, most=6.7),
}
"""Range of ratios of published memory peaks to our estimates, by ``cudnn_benchmark``.

MMDetection published the peaks: benchmarks/results/memory.md.
"""

_EMA_STEPS_BYTES = 8
"""Bytes of the step counter in MMEngine's averaged (EMA) model."""


def estimate_memory(
    config: Path,
    batch_sizes: tuple[int, ...] = (),
    *,
    image_size: ImageSize | None = None,
    mixed_precision: bool = False,
) -> MemoryEstimate:
    """Builds a config's model, and estimates training's memory in bytes by batch size.

    A model that cannot be run on the CPU gets its static part, and a note that says
    why; its trainable parameters then stand for those that get a gradient.

    Args:
        config: The file.
        batch_sizes: The config's own, when empty.
        image_size: Padded height and width; the config's, when ``None``.
        mixed_precision: Autocast, also where the config has none.

    Raises:
        UserError: If the config gives no model.
    """
    built = read_config_model(config)
    loaded = built.config
    wrapper = loaded.get('optim_wrapper') or {}
    mixed = mixed_precision or type_name(wrapper) == 'AmpOptimWrapper'
    padded = PaddedSize(image_size, '--image-size')
    if padded.size is None:
        padded = locate_padded_size(loaded)
    notes: list[str] = []
    parameters = built.model.parameters()
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    gradients = [Gradient.of(parameter) for parameter in trained]
    fit: ActivationFit | None = None
    try:
        probe = probe_model(built, mixed, padded.size)
        fit, gradients = fit_activations(probe.points), probe.gradients
    except CannotRunError as error:
        notes.append(phrase('Activations are unknown: {error}.', error=error))
    tries_algorithms = bool((loaded.get('env_cfg') or {}).get('cudnn_benchmark'))
    if tries_algorithms:
        notes.append(
            phrase(
                'The config sets cudnn_benchmark=True: cuDNN then takes workspaces of '
                'up to gigabytes to try its algorithms, and nothing is known of them '
                'here.'
            )
        )
    if padded.size is None:
        notes.append(
            phrase(
                'Totals are unknown: {source}; name one with --image-size.',
                source=padded.source,
            )
        )
    own = (loaded.get('train_dataloader') or {}).get('batch_size') or 1
    return MemoryEstimate(
        model=type(built.model).__name__,
        static=count_static(built, gradients, notes),
        image_size=padded.size,
        image_size_source=padded.source,
        mixed_precision=mixed,
        fit=fit,
        peak_factors=PEAK_FACTORS[tries_algorithms],
        activation_bytes={
            batch: _activations(fit, padded.size, batch)
            for batch in batch_sizes or (own,)
        },
        notes=tuple(notes),
    )


def fit_card(
    estimate: MemoryEstimate, card_bytes: int, measured: MeasuredPeak | None = None
) -> MemoryEstimate:
    """Returns a copy of a memory estimate with the largest batch sizes that fit a GPU.

    Args:
        estimate: Of the training.
        card_bytes: All the memory of the card.
        measured: The peak of a run of this training; the peaks that MMDetection
            published, if ``None``.

    Raises:
        UserError: If a run's peak cannot be held against the estimate.
    """
    room = CardRoom(card_bytes, CONTEXT_BYTES).safe_bytes
    if measured is None:
        largest = estimate.peak_factors.most
        safe = _SafeEstimate(largest, room / largest)
    else:
        safe = _correct(estimate, room, measured)
    card = CardFit(
        card_bytes=card_bytes,
        room_bytes=room,
        factor=safe.factor,
        batch_size=_largest_batch(estimate, room),
        safe_batch_size=_largest_batch(estimate, safe.room_bytes),
    )
    return replace(estimate, card=card)


class _SafeEstimate(NamedTuple):
    """Limit for a memory estimate, in bytes, up to which the real peak fits a GPU."""

    factor: float
    """Ratio of the real memory peak to its estimate."""
    room_bytes: float
    """Largest memory estimate in bytes at which the real peak fits the GPU."""


def _correct(
    estimate: MemoryEstimate, room: int, measured: MeasuredPeak
) -> _SafeEstimate:
    """Finds the largest memory estimate whose real peak fits a GPU, by a measured peak.

    The estimate of the activations is scaled so that it explains the measured peak.
    """
    peak_bytes = measured.peak_bytes
    static = estimate.static.total_bytes
    activations = _activations(estimate.fit, estimate.image_size, measured.batch_size)
    if static is None or not activations:
        raise UserError(
            phrase('expected an estimate that --run can correct; it is unknown.')
        )
    # gradients are dropped after a step, so they are gone while activations are most
    resident = static - estimate.static.gradient_bytes
    growth = (peak_bytes - resident) / activations
    if growth <= 0:
        raise UserError(
            phrase(
                'the peak of --run ({peak_bytes}) is below what the model and its '
                'optimizer take ({static_bytes}); it trained another.',
                peak_bytes=peak_bytes,
                static_bytes=static,
            )
        )
    return _SafeEstimate(
        factor=peak_bytes / (static + activations),
        room_bytes=static + (room - resident) / growth,
    )


def _activations(
    fit: ActivationFit | None, size: ImageSize | None, batch_size: int
) -> int | None:
    if fit is None or size is None:
        return None
    return predict_activations(fit, batch_size, size.pixels)


def _largest_batch(estimate: MemoryEstimate, room_bytes: float) -> int | None:
    """Returns the largest batch that fits a given memory size; ``None`` if unknown."""
    static = estimate.static.total_bytes
    fixed = _activations(estimate.fit, estimate.image_size, 0)
    first = _activations(estimate.fit, estimate.image_size, 1)
    if static is None or fixed is None or first is None:
        return None
    fitting = (room_bytes - static - fixed) // max(first - fixed, 1)
    return int(min(max(fitting, 0), MOST_BATCH))


def count_static(
    built: ConfigModel, gradients: Sequence[Gradient], notes: list[str]
) -> StaticBytes:
    """Counts the bytes of training memory that do not depend on the batch size.

    Args:
        built: The model.
        gradients: Of each parameter with a gradient.
        notes: Gets a sentence where the state of the optimizer is not known.
    """
    model = built.model
    parameters = sum(parameter.nbytes for parameter in model.parameters())
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    wrapper, label, state = built.config.get('optim_wrapper') or {}, 'unknown', None
    optimizer = wrapper.get('optimizer')
    if optimizer:
        label = type_name(optimizer)
        with built.running():
            state = count_state(optimizer, gradients)
    hooks = [
        *(built.config.get('custom_hooks') or ()),
        *(built.config.get('default_hooks') or {}).values(),
    ]
    averaged_copies = sum(type_name(hook).endswith('EMAHook') for hook in hooks if hook)
    if state is None:
        notes.append(
            phrase(
                'The state of the optimizer ({label}) is not known beforehand.',
                label=label,
            )
        )
    return StaticBytes(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        parameter_bytes=parameters,
        gradient_bytes=sum(
            gradient.numbers * gradient.number_bytes for gradient in gradients
        ),
        buffer_bytes=buffers,
        ema_bytes=(parameters + buffers + _EMA_STEPS_BYTES) * averaged_copies,
        optimizer=label,
        optimizer_state_bytes=state,
    )


_GOOD_PCT = 0.5
"""Fit error in per cent up to which a simpler memory growth law is preferred."""

_MEGAPIXEL = 1e6

_FIXED, _PER_IMAGE, _PER_PIXEL, _PER_PIXEL_PAIR = range(4)
"""Indices of the terms that a growth law of activation memory can have."""


class _Law(NamedTuple):
    """Formula of activation memory by batch size and pixels: the terms it sums."""

    sizes: int
    """Number of distinct image sizes that are needed to fit the growth law."""
    terms: list[int]


_LAWS = (
    _Law(1, [_PER_PIXEL]),
    _Law(1, [_FIXED, _PER_PIXEL]),
    _Law(2, [_PER_IMAGE, _PER_PIXEL]),
    _Law(2, [_FIXED, _PER_IMAGE, _PER_PIXEL]),
    _Law(2, [_PER_PIXEL, _PER_PIXEL_PAIR]),
    _Law(2, [_FIXED, _PER_PIXEL, _PER_PIXEL_PAIR]),
    _Law(2, [_PER_IMAGE, _PER_PIXEL, _PER_PIXEL_PAIR]),
    _Law(3, [_FIXED, _PER_IMAGE, _PER_PIXEL, _PER_PIXEL_PAIR]),
)
"""Growth laws of activation memory to try in this order, simplest first."""


def fit_activations(points: Sequence[ActivationPoint]) -> ActivationFit:
    """Fits activation bytes as a function of batch size and padded pixels.

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
    pixels = np.array([point.height * point.width for point in known]) / _MEGAPIXEL
    grown = np.array([batch**0, batch, batch * pixels, batch * pixels**2]) / saved
    best, parts = math.inf, np.zeros(4)
    for law in _LAWS:
        rows = grown[law.terms].T
        # more of them than points, or points that do not distinguish them
        scale = rows.max(axis=0)
        found, _, rank, _ = np.linalg.lstsq(rows / scale, saved**0, rcond=1e-9)
        is_seen = len({*pixels}) >= law.sizes and rank == len(law.terms)
        if not is_seen or (found < 0).any():
            continue
        residual = float(np.abs(rows @ (found / scale) - 1).max())
        # no rounding error decides between laws that are as close
        if residual < (1 - 1e-9) * best:
            best, parts = residual, np.zeros(4)
            parts[law.terms] = found / scale
        if 100 * residual <= _GOOD_PCT:
            break
    return ActivationFit(
        fixed_bytes=float(parts[_FIXED]),
        image_bytes=float(parts[_PER_IMAGE]),
        pixel_bytes=float(parts[_PER_PIXEL]) / _MEGAPIXEL,
        squared_pixel_bytes=float(parts[_PER_PIXEL_PAIR]) / _MEGAPIXEL**2,
        residual_pct=100 * best,
        points=tuple(points),
    )


def predict_activations(fit: ActivationFit, batch_size: int, pixels: float) -> int:
    """Predicts activation bytes saved for backward, by batch size and image size.

    Args:
        fit: Of :func:`fit_activations`.
        batch_size: Images in the batch.
        pixels: Padded height times width of an image.
    """
    per_image = (
        fit.image_bytes + fit.pixel_bytes * pixels + fit.squared_pixel_bytes * pixels**2
    )
    return round(fit.fixed_bytes + batch_size * per_image)
