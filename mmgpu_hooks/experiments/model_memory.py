"""Estimates the memory of training a config, by running its model on the CPU."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from mmgpu_hooks.experiments.config_model import ConfigModel, read_config_model
from mmgpu_hooks.experiments.padded_size import Size, locate_padded_size
from mmgpu_hooks.experiments.saved_tensors import (
    SavedBytes,
    count_saved,
    parameter_sizes,
    run_backward,
)
from mmgpu_hooks.experiments.synthetic_batch import NoSampleError, SyntheticBatches
from mmgpu_hooks.modeling.training_memory import (
    fit_activations,
    predict_activations,
    predict_state_bytes,
)
from mmgpu_hooks.records import (
    ActivationFit,
    ActivationPoint,
    MemoryEstimate,
    ModuleActivations,
    StaticBytes,
)
from mmgpu_hooks.telemetry.cuda.model_bytes import TensorCounter

OPTIMIZERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    'sgd': ('SGD', {}),
    'momentum': ('SGD', {'momentum': 0.9}),
    'adam': ('Adam', {}),
    'adamw': ('AdamW', {}),
}
"""Those that can be asked for by name: torch's class and its arguments."""

CONFIG_OPTIMIZER = 'config'

_PROBE_HEIGHTS = (256, 384, 512)
_STRIDE = 128
"""Of the coarsest features of common detectors: such sizes scale without rounding."""
_MOST_PROBE_PIXELS = 640 * 640
"""What one image that is run here may have."""
_EMA_STEPS_BYTES = 8
"""MMEngine's averaged model counts its steps in one 64-bit number."""
_MODULE_DEPTH = 2


@dataclass(frozen=True)
class EstimateRequest:
    """What is asked for."""

    config: Path
    batch_sizes: tuple[int, ...] = ()
    """The config's own, when empty."""
    optimizers: tuple[str, ...] = (CONFIG_OPTIMIZER,)
    """Keys of :data:`OPTIMIZERS`, or ``config``."""
    image_size: Size | None = None
    """Padded height and width; the config's, when ``None``."""
    mixed_precision: bool = False
    """Autocast, also where the config has none."""
    on_step: Callable[[str], None] = field(default=lambda what: None, compare=False)
    """Called with what is being done."""


def estimate_memory(request: EstimateRequest) -> MemoryEstimate:
    """Build a config's model and estimate what training it needs.

    A model that cannot be run on the CPU gets its static part, and a note that says
    why; its trainable parameters then stand for those that get a gradient.

    Raises:
        ModelError: If the config gives no model.
    """
    request.on_step('building the model')
    built = read_config_model(request.config)
    mixed = request.mixed_precision or built.is_mixed_precision
    size, source = request.image_size, '--image-size'
    if size is None:
        size, source = locate_padded_size(built.config)
    notes = list(built.notes)
    gradients = parameter_sizes(built.model)
    fit: ActivationFit | None = None
    modules: tuple[ModuleActivations, ...] = ()
    try:
        probe = _Probe(built, mixed, request.on_step)
        points, saved = probe.run(size)
        gradients = probe.gradients
        fit = fit_activations(points)
        modules = fold_modules(saved)
    except _CannotRunError as error:
        notes.append(f'Activations are unknown: {error}.')
    if size is None:
        notes.append(f'Totals are unknown: {source}; name one with --image-size.')
    batches = request.batch_sizes or (built.batch_size or 1,)
    return MemoryEstimate(
        model=type(built.model).__name__,
        static=count_static(built, gradients, request.optimizers, notes),
        image_size=size,
        image_size_source=source,
        mixed_precision=mixed,
        fit=fit,
        modules=modules,
        activation_bytes=predict_batches(fit, batches, size),
        notes=tuple(notes),
    )


def predict_batches(
    fit: ActivationFit | None, batches: tuple[int, ...], size: Size | None
) -> dict[int, int | None]:
    """Bytes of activations by batch size; ``None`` without a fit or a size."""
    if fit is None or size is None:
        return dict.fromkeys(batches)
    return {b: predict_activations(fit, b, size[0] * size[1]) for b in batches}


def fold_modules(saved: SavedBytes) -> tuple[ModuleActivations, ...]:
    """Add up parts of modules, two names deep, largest first."""
    folded: Counter[str] = Counter()
    for name, size in saved.by_module.items():
        folded['.'.join(name.split('.')[:_MODULE_DEPTH])] += size
    return tuple(
        ModuleActivations(name, size, 100.0 * size / saved.total)
        for name, size in folded.most_common()
    )


def choose_probe_sizes(target: Size | None) -> list[Size]:
    """Image sizes to run at: small ones of the target's shape, and it if it is small.

    Examples:
        >>> choose_probe_sizes((800, 1344))
        [(256, 384), (384, 640), (512, 896)]
        >>> choose_probe_sizes((320, 320))
        [(256, 256), (320, 320)]
    """
    height, width = target or (1, 1)
    sizes = []
    for probe in _PROBE_HEIGHTS:
        other = max(1, round(probe * max(width, height) / min(width, height) / _STRIDE))
        short_long = probe, other * _STRIDE
        sizes.append(short_long if height <= width else short_long[::-1])
    if target is None:
        return sizes
    pixels = height * width
    smaller = [size for size in sizes if size[0] * size[1] < pixels]
    return [*smaller, target] if pixels <= _MOST_PROBE_PIXELS else smaller


class _CannotRunError(Exception):
    """The model does not run here; the message says why."""


class _Probe:
    """Runs one model at small batches."""

    def __init__(
        self, built: ConfigModel, mixed: bool, on_step: Callable[[str], None]
    ) -> None:
        self.gradients: list[tuple[int, int]] = []
        self._built = built
        self._mixed = mixed
        self._on_step = on_step
        try:
            self._batches: SyntheticBatches = built.make_batches()
        except NoSampleError as error:
            raise _CannotRunError(str(error)) from error

    def run(self, target: Size | None) -> tuple[list[ActivationPoint], SavedBytes]:
        """Points for a fit, and the last run in full."""
        sizes = choose_probe_sizes(target)
        plans = [(sizes, 1), (sizes, 2)]
        if target is not None and target[0] * target[1] <= _MOST_PROBE_PIXELS:
            # a head may need more than the smallest size has
            plans.insert(1, ([target], 1))
        failure: _CannotRunError | None = None
        for plan_sizes, batch in plans:
            try:
                return self._run_plan(plan_sizes, batch)
            except _CannotRunError as error:
                failure = failure or error
        assert failure is not None
        raise failure

    def _run_plan(
        self, sizes: list[Size], batch: int
    ) -> tuple[list[ActivationPoint], SavedBytes]:
        points = []
        for number, size in enumerate(sizes):
            # growth with the batch shows at the smallest sizes
            for images in (batch + 1, batch) if number < 2 else (batch,):
                saved = self._count(images, size)
                points.append(ActivationPoint(images, *size, saved.total))
        self._on_step('one backward pass')
        with self._running():
            data = self._batches.make(batch + 1, *sizes[0])
            self.gradients = run_backward(
                self._built.model, data, mixed_precision=self._mixed
            )
        return points, saved

    def _count(self, images: int, size: Size) -> SavedBytes:
        self._on_step(f'{images} image(s) of {size[0]}x{size[1]}')
        with self._running():
            return count_saved(
                self._built.model,
                self._batches.make(images, *size),
                mixed_precision=self._mixed,
            )

    @contextlib.contextmanager
    def _running(self) -> Any:
        try:
            with self._built.running():
                yield
        except NoSampleError as error:
            raise _CannotRunError(str(error)) from error
        except Exception as error:
            text = ' '.join(str(error).split())[:200]
            raise _CannotRunError(
                f'the model does not run on the CPU ({type(error).__name__}: {text})'
            ) from error


def count_static(
    built: ConfigModel,
    gradients: list[tuple[int, int]],
    optimizers: tuple[str, ...],
    notes: list[str],
) -> StaticBytes:
    """Bytes of a model's training that do not grow with the batch.

    Args:
        built: The model.
        gradients: Number and bytes of one number of each parameter with a gradient.
        optimizers: Keys of :data:`OPTIMIZERS`, or ``config``.
        notes: Gets a sentence for each optimizer whose state is not known.
    """
    model, counter = built.model, TensorCounter()
    trainable = counter.add(p for p in model.parameters() if p.requires_grad)
    frozen = counter.add(model.parameters())
    numbers = counter.numbers
    buffers = counter.add(model.buffers())
    copy = trainable + frozen + buffers + _EMA_STEPS_BYTES
    states: dict[str, int | None] = {}
    for asked in optimizers:
        found = built.optimizer if asked == CONFIG_OPTIMIZER else OPTIMIZERS[asked]
        label = asked if asked != CONFIG_OPTIMIZER else _label(found)
        states[label] = (
            None if found is None else predict_state_bytes(*found, gradients)
        )
        if states[label] is None:
            notes.append(
                f'The state of the optimizer ({label}) is not known beforehand; name '
                'one with --optimizer for an idea.'
            )
    return StaticBytes(
        parameters=numbers,
        parameter_bytes=trainable + frozen,
        trainable_bytes=trainable,
        gradient_bytes=sum(count * size for count, size in gradients),
        buffer_bytes=buffers,
        ema_bytes=copy * built.averaged_copies,
        optimizer_state_bytes=states,
    )


def _label(optimizer: tuple[str, Mapping[str, Any]] | None) -> str:
    """Name of the config's optimizer."""
    if optimizer is None:
        return CONFIG_OPTIMIZER
    name, options = optimizer
    return 'SGD with momentum' if name == 'SGD' and options.get('momentum') else name
