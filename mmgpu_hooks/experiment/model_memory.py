"""Estimates the memory of training a config, by running its model on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from mmgpu_hooks.experiment.config_model import ConfigModel, read_config_model
from mmgpu_hooks.experiment.memory_probe import (
    CannotRunError,
    ModelProbe,
    fold_modules,
)
from mmgpu_hooks.experiment.padded_size import Size, locate_padded_size
from mmgpu_hooks.experiment.saved_tensors import parameter_sizes
from mmgpu_hooks.measure.cuda import TensorCounter
from mmgpu_hooks.model.training_memory import (
    fit_activations,
    predict_activations,
    predict_state_bytes,
)
from mmgpu_hooks.schema import (
    ActivationFit,
    MemoryEstimate,
    ModuleActivations,
    StaticBytes,
)

OPTIMIZERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    'sgd': ('SGD', {}),
    'momentum': ('SGD', {'momentum': 0.9}),
    'adam': ('Adam', {}),
    'adamw': ('AdamW', {}),
}
"""Those that can be asked for by name: torch's class and its arguments."""

CONFIG_OPTIMIZER = 'config'

_EMA_STEPS_BYTES = 8
"""MMEngine's averaged model counts its steps in one 64-bit number."""


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
        probe = ModelProbe(built, mixed, request.on_step)
        points, saved = probe.run(size)
        gradients = probe.gradients
        fit = fit_activations(points)
        modules = fold_modules(saved)
    except CannotRunError as error:
        notes.append(f'Activations are unknown: {error}.')
    if built.tries_cudnn_algorithms:
        notes.append(
            'The config sets cudnn_benchmark=True: cuDNN then takes workspaces of up '
            'to gigabytes for the fastest algorithm; nothing is known of them here.'
        )
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
