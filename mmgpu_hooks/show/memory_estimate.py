"""The estimate of a training's memory, as text or JSON."""

from __future__ import annotations

import dataclasses
import json

from mmgpu_hooks.schema import ActivationFit, MeasuredMemory, MemoryEstimate
from mmgpu_hooks.show.document import Section, Table
from mmgpu_hooks.show.figures import format_bytes, format_count, format_pct
from mmgpu_hooks.show.terminal import DEFAULT_WIDTH, render

_MODULES = 8

_BESIDE = (
    'On top of these totals a GPU holds the CUDA context (300 to 600 MiB per process), '
    'workspaces of cuDNN, and fragments of the allocator: the peaks that MMDetection '
    'published were 1.15 to 1.9 times such a total for six of seven models, and 6.7 '
    'times for SSD300.'
)


def render_estimate(
    estimate: MemoryEstimate, *, width: int = DEFAULT_WIDTH, color: bool = False
) -> str:
    """The parts, their growth and the totals by batch size and optimizer.

    Args:
        estimate: What was found.
        width: Columns to wrap at.
        color: Whether the terminal shows colours.
    """
    sections = [
        Section(facts=_describe(estimate)),
        Section(table=_totals(estimate)),
        Section(sentences=(*estimate.notes, _BESIDE)),
    ]
    return render(sections, width=width, color=color)


def render_estimate_json(estimate: MemoryEstimate) -> str:
    """Every figure; unknown ones are null."""
    body = dataclasses.asdict(estimate)
    body['total_bytes'] = {
        optimizer: {
            str(batch): estimate.total_bytes(optimizer, batch)
            for batch in estimate.activation_bytes
        }
        for optimizer in estimate.static.optimizer_state_bytes
    }
    if estimate.measured is not None:
        body['measured']['error_pct'] = estimate.measured.error_pct
    return json.dumps(body, indent=2)


def _describe(estimate: MemoryEstimate) -> list[tuple[str, str]]:
    static = estimate.static
    frozen = static.parameter_bytes - static.trainable_bytes
    which = f'; {format_bytes(frozen)} frozen' if frozen else ''
    rows = [
        ('model', estimate.model),
        (
            'parameters',
            f'{format_bytes(static.parameter_bytes)} ({format_count(static.parameters)}'
            f' numbers{which})',
        ),
        ('gradients', format_bytes(static.gradient_bytes)),
    ]
    for name, state in static.optimizer_state_bytes.items():
        rows.append(('optimizer', f'{format_bytes(state)} state of {name}'))
    rows.append(('buffers', format_bytes(static.buffer_bytes)))
    if static.ema_bytes:
        rows.append(('average', f'{format_bytes(static.ema_bytes)} (EMAHook)'))
    if estimate.image_size is not None:
        height, width = estimate.image_size
        source = estimate.image_size_source
        rows.append(('image', f'{height}x{width} padded ({source})'))
    if estimate.fit is not None:
        rows.append(('activations', _describe_fit(estimate, estimate.fit)))
    if estimate.modules:
        rows.append(('largest', _describe_modules(estimate)))
    if estimate.measured is not None:
        rows.append(('measured', _describe_measured(estimate.measured)))
    return rows


def _describe_fit(estimate: MemoryEstimate, fit: ActivationFit) -> str:
    terms = []
    if fit.pixel_bytes:
        terms.append(f'{fit.pixel_bytes:.0f} bytes per padded pixel')
    if fit.squared_pixel_bytes:
        terms.append(
            f'{1e6 * fit.squared_pixel_bytes:.0f} bytes per million pixel pairs'
        )
    if fit.image_bytes:
        terms.append(f'{format_bytes(round(fit.image_bytes))} per image')
    if fit.fixed_bytes:
        terms.append(f'{format_bytes(round(fit.fixed_bytes))} per batch')
    precision = ', mixed precision' if estimate.mixed_precision else ''
    return (
        f'{" + ".join(terms)} kept for the backward pass (counted in '
        f'{len(fit.points)} runs on the CPU{precision}; the fit is within '
        f'{format_pct(fit.residual_pct)})'
    )


def _describe_modules(estimate: MemoryEstimate) -> str:
    shown = estimate.modules[:_MODULES]
    rest = sum(module.share_pct for module in estimate.modules[_MODULES:])
    parts = [f'{module.name} {format_pct(module.share_pct)}' for module in shown]
    return ', '.join([*parts, *([f'rest {format_pct(rest)}'] if rest else [])])


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
    if difference == 0:
        return f'{text}; the static part is the same to the byte'
    return f'{text}; the static part counted there differs by {difference} bytes'


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
