"""The estimate of a training's memory, as text or JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from mmgpu_hooks.schema import ActivationFit, MeasuredMemory, MemoryEstimate
from mmgpu_hooks.show.document import Fact, Section, Table, to_json
from mmgpu_hooks.show.figures import format_bytes, format_count, format_pct
from mmgpu_hooks.show.terminal import render

_BESIDE = (
    'On top of these totals a GPU holds the CUDA context (300 to 600 MiB per process), '
    'workspaces of cuDNN, and fragments of the allocator: the peaks that MMDetection '
    'published were 1.15 to 1.9 times such a total for six of seven models, and 6.7 '
    'times for SSD300.'
)


def render_estimate(estimate: MemoryEstimate, **layout: Any) -> str:
    """The parts, their growth and the totals by batch size and optimizer.

    Args:
        estimate: What was found.
        **layout: As :func:`~mmgpu_hooks.show.terminal.render` takes it.
    """
    sections = [
        Section(facts=list(_describe(estimate))),
        Section(table=_totals(estimate)),
        Section(sentences=(*estimate.notes, _BESIDE)),
    ]
    return render(sections, **layout)


def render_estimate_json(estimate: MemoryEstimate) -> str:
    """Every figure; unknown ones are null."""
    body = asdict(estimate)
    body['total_bytes'] = {
        optimizer: {
            str(batch): estimate.total_bytes(optimizer, batch)
            for batch in estimate.activation_bytes
        }
        for optimizer in estimate.static.optimizer_state_bytes
    }
    if estimate.measured is not None:
        body['measured']['error_pct'] = estimate.measured.error_pct
    return to_json(**body)


def _describe(estimate: MemoryEstimate) -> Iterator[Fact]:
    static = estimate.static
    frozen = static.parameter_bytes - static.trainable_bytes
    which = f'; {format_bytes(frozen)} frozen' if frozen else ''
    count = f'({format_count(static.parameters)} numbers{which})'
    yield 'model', estimate.model
    yield 'parameters', f'{format_bytes(static.parameter_bytes)} {count}'
    yield 'gradients', format_bytes(static.gradient_bytes)
    for name, state in static.optimizer_state_bytes.items():
        yield 'optimizer', f'{format_bytes(state)} state of {name}'
    yield 'buffers', format_bytes(static.buffer_bytes)
    if static.ema_bytes:
        yield 'average', f'{format_bytes(static.ema_bytes)} (EMAHook)'
    if estimate.image_size is not None:
        height, width = estimate.image_size
        yield 'image', f'{height}x{width} padded ({estimate.image_size_source})'
    if estimate.fit is not None:
        yield 'activations', _describe_fit(estimate.fit, estimate.mixed_precision)
    if estimate.measured is not None:
        yield 'measured', _describe_measured(estimate.measured)


def _describe_fit(fit: ActivationFit, is_mixed: bool) -> str:
    terms = {
        f'{fit.pixel_bytes:.0f} bytes per padded pixel': fit.pixel_bytes,
        f'{1e6 * fit.squared_pixel_bytes:.0f} bytes per million pixel pairs': (
            fit.squared_pixel_bytes
        ),
        f'{format_bytes(round(fit.image_bytes))} per image': fit.image_bytes,
        f'{format_bytes(round(fit.fixed_bytes))} per batch': fit.fixed_bytes,
    }
    precision = ', mixed precision' if is_mixed else ''
    return (
        f'{" + ".join(words for words, size in terms.items() if size)} kept for the '
        f'backward pass (counted in {len(fit.points)} runs on the CPU{precision}; the '
        f'fit is within {format_pct(fit.residual_pct)})'
    )


def _describe_measured(measured: MeasuredMemory) -> str:
    direction = 'above' if measured.error_pct >= 0 else 'below'
    text = (
        f'{format_bytes(measured.peak_bytes)} peak at batch {measured.batch_size} with '
        f'{format_count(measured.pixels)} pixels per image ({measured.path}); the '
        f'estimate is {format_bytes(measured.predicted_bytes)}, '
        f'{format_pct(abs(measured.error_pct))} {direction}'
    )
    difference = measured.static_difference_bytes
    if difference is None:
        return text
    same = f'differs by {difference} bytes' if difference else 'is the same to the byte'
    return f'{text}; the static part {same}'


def _totals(estimate: MemoryEstimate) -> Table:
    optimizers = list(estimate.static.optimizer_state_bytes)
    rows = [
        (
            batch,
            format_bytes(activations),
            *(format_bytes(estimate.total_bytes(name, batch)) for name in optimizers),
        )
        for batch, activations in estimate.activation_bytes.items()
    ]
    head = ['batch', 'activations', *(f'total, {name}' for name in optimizers)]
    return Table(head, rows, 'Memory of training', texts=0)
