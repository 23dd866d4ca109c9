"""The memory of training by part: the static ones are exact, one is what is left."""

from __future__ import annotations

from dataclasses import dataclass

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.show.figures import format_bytes
from mmgpu_hooks.show.pictures.bars import Bar, Segment
from mmgpu_hooks.show.pictures.chart import Chart, NoChart, chart_bars


@dataclass(frozen=True)
class MemoryPart:
    """One part of the memory of training."""

    name: str
    size: int | None
    """Bytes; ``None`` where the reason says why."""
    role: str
    reason: str = ''


def split_memory(summary: Run) -> list[MemoryPart]:
    """Static parts, then activations and workspace = peak - static.

    Empty without anything known of the model.
    """
    model = summary.model
    if model is None:
        return []
    static = [
        MemoryPart('parameters', model.parameter_bytes, 'step'),
        MemoryPart('gradients', model.gradient_bytes, 'hooks'),
        MemoryPart('optimizer state', model.optimizer_state_bytes, 'checkpoint_save'),
        MemoryPart('buffers', model.buffer_bytes, 'validation'),
    ]
    if model.ema_bytes:
        static.append(MemoryPart('averaged copy', model.ema_bytes, 'startup'))
    return [*static, _activations(summary, static)]


def _activations(summary: Run, static: list[MemoryPart]) -> MemoryPart:
    name, role, peak = 'activations', 'data_wait', summary.gpu_mem_peak_bytes
    if peak is None:
        why = summary.unknown.get('GPU memory')
        if why is None and summary.run.device != 'cuda':
            why = f'training runs on the {summary.run.device.upper()}'
        return MemoryPart(name, None, role, f'no peak: {why or "no interval has it"}')
    missing = [part.name for part in static if part.size is None]
    if missing:
        return MemoryPart(name, None, role, f'unknown: {", ".join(missing)}')
    left = peak - sum(part.size or 0 for part in static)
    if left < 0:
        return MemoryPart(name, None, role, 'the static parts exceed the peak')
    return MemoryPart(name, left, role)


def chart_memory(summary: Run) -> Chart | NoChart:
    """One bar of all that is known."""
    name, title = 'memory', 'Memory by part'
    parts = split_memory(summary)
    known = [part for part in parts if part.size]
    if not known:
        why = summary.unknown.get('model bytes', 'this evidence does not count them')
        return NoChart(name, title, f'Parts of the memory are unknown: {why}.')
    segments = tuple(
        Segment(part.name, float(part.size or 0), format_bytes(part.size), part.role)
        for part in known
    )
    whole = format_bytes(sum(part.size or 0 for part in known))
    said = '; '.join(f'{segment.name} {segment.text}' for segment in segments)
    unknown = [f'{p.name} unknown ({p.reason})' for p in parts if p.size is None]
    said = '; '.join([said, *unknown])
    return chart_bars(name, title, f'{said}.', [Bar('', segments, whole)])
