"""Batch size against memory and speed in a sweep: for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from mmgpu_hooks.model.batches import KNEE_SHARE, predict_peak
from mmgpu_hooks.recommend.sweep_batches import (
    CARD_MEMORY,
    BatchSizes,
    PrecisionRow,
    compare_precisions,
    fold_batch_sizes,
)
from mmgpu_hooks.schema import MEMORY_SOURCES, MemoryFit, NoPrediction, SweepRow
from mmgpu_hooks.show.batch_memory import (
    MemoryReport,
    describe_memory,
    render_memory_json,
    tabulate_rules,
)
from mmgpu_hooks.show.console import bind_units, grid
from mmgpu_hooks.show.figures import format_bytes, format_pct

PRECISIONS = {None: '', False: 'full precision', True: 'mixed precision'}
"""How a precision is called; the config's own needs no word."""

_TITLE = 'Batch size against memory and speed'


def list_batch_sections(rows: Sequence[SweepRow]) -> Iterator[RenderableType]:
    """What the trials tell of batch sizes, and of mixed precision beside full.

    Args:
        rows: All trials.

    Yields:
        Nothing where one batch size was trained, in one precision.
    """
    for group in fold_batch_sizes(rows):
        words = PRECISIONS[group.amp]
        yield ''
        yield Text(f'{_TITLE}, {words}' if words else _TITLE, style='bold')
        told = [(name, bind_units(text)) for name, text in _describe(group)]
        yield grid(told, indent=2)
        if group.rules:
            yield ''
            yield tabulate_rules(group.rules)
    compared = compare_precisions(rows)
    if compared:
        yield ''
        yield Text('Mixed precision beside full', style='bold')
        told = [
            (f'batch {row.batch_size}', bind_units(_ratios(row))) for row in compared
        ]
        yield grid(told, indent=2)


def render_batches_json(rows: Sequence[SweepRow]) -> dict[str, Any]:
    """The same with stable keys; ``docs/sweep.md`` documents them."""
    return {
        'batch_sizes': [_render(group) for group in fold_batch_sizes(rows)],
        'mixed_precision': [asdict(row) for row in compare_precisions(rows)],
    }


def report_memory(group: BatchSizes, fit: MemoryFit) -> MemoryReport:
    """What is said of memory, and of the batch sizes that had none left."""
    return MemoryReport(fit, group.rules, group.without_room, group.card)


def _describe(group: BatchSizes) -> Iterator[tuple[str, str]]:
    if isinstance(group.memory, NoPrediction):
        yield 'memory', group.memory.reason
    else:
        rows = describe_memory(report_memory(group, group.memory))
        yield from (row for row in rows if row[0] in ('memory', 'card'))
    if group.source is not None and group.source != CARD_MEMORY:
        yield (
            'card',
            f'unknown: peaks are those of {MEMORY_SOURCES[group.source]}; what they '
            'would take of a card, and where it would be full, is not known from them',
        )
    for batch in group.without_room:
        yield f'batch {batch}', _tell_full(group, batch)
    if group.images_per_s:
        yield 'speed', _tell_speed(group)


def _tell_full(group: BatchSizes, batch: int) -> str:
    """Of a batch size that ran out of memory, what the others say of it."""
    text = 'ran out of memory'
    if isinstance(group.memory, NoPrediction):
        return text
    seen = predict_peak(group.memory, batch)
    return (
        f'{text}; the fit expects {format_bytes(seen.peak_bytes)} '
        f'({format_bytes(seen.low_bytes)} to {format_bytes(seen.high_bytes)}, 9 times '
        'in 10)'
    )


def _tell_speed(group: BatchSizes) -> str:
    speeds = group.images_per_s
    listed = ', '.join(
        f'{speed:.1f} with a batch of {batch}' for batch, speed in speeds.items()
    )
    text = f'images/s, with the fastest setting of the loader: {listed}'
    if group.knee is None:
        return text
    if group.knee == max(speeds):
        return (
            f'{text}; it still rises at the largest, so the knee is there or beyond it'
        )
    return (
        f'{text}; the knee is {group.knee}, the smallest within '
        f'{format_pct(100 * KNEE_SHARE)} of the fastest'
    )


def _ratios(row: PrecisionRow) -> str:
    parts = []
    if row.memory_ratio is not None:
        parts.append(f'{format_pct(100 * row.memory_ratio)} of the memory')
    if row.speed_ratio is not None:
        parts.append(f'{row.speed_ratio:.2f} times the images/s')
    return ', '.join(parts)


def _render(group: BatchSizes) -> dict[str, Any]:
    memory, reason = None, None
    if isinstance(group.memory, NoPrediction):
        reason = group.memory.reason
    else:
        memory = render_memory_json(report_memory(group, group.memory))
    return {
        'amp': group.amp,
        'memory_source': group.source,
        'memory': memory,
        'memory_reason': reason,
        'out_of_memory': list(group.without_room),
        'images_per_s': [
            {'batch_size': batch, 'images_per_s': speed}
            for batch, speed in group.images_per_s.items()
        ],
        'knee_batch_size': group.knee,
    }
