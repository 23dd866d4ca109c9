"""Memory against batch size, as rows, a table and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from mmgpu_hooks.judge.memory import CardRoom
from mmgpu_hooks.model.batches import (
    find_largest_batch,
    find_oom_batch,
    predict_peak,
)
from mmgpu_hooks.schema import MemoryFit, MemoryRuleRow
from mmgpu_hooks.show.console import bind_units
from mmgpu_hooks.show.figures import format_bytes, format_count, format_pct


@dataclass(frozen=True)
class MemoryReport:
    """What is said of memory against batch size."""

    fit: MemoryFit
    rules: tuple[MemoryRuleRow, ...]
    """What was measured beside what the fit and the proportional rule say of it."""
    batch_sizes: tuple[int, ...]
    """Asked for."""
    card: CardRoom | None
    """``None`` when the card's size is unknown."""


def describe_memory(report: MemoryReport) -> list[tuple[str, str]]:
    """What the fit says, in labelled sentences."""
    fit = report.fit
    where = ''
    if fit.image_pixels is not None:
        where = f' of {format_count(round(fit.image_pixels))} padded pixels'
    parts = f'{format_bytes(round(fit.fixed_bytes))} with any batch'
    if fit.static_bytes is not None:
        parts += f' (model and optimizer take {format_bytes(fit.static_bytes)})'
    parts += f' and {format_bytes(round(fit.image_bytes))} per image{where}'
    rows = [('memory', f'{parts}, fitted to {len(fit.points)} peaks')]
    for batch in report.batch_sizes:
        seen = predict_peak(fit, batch)
        rows.append(
            (
                f'batch {batch}',
                f'{format_bytes(seen.peak_bytes)} at its peak '
                f'({format_bytes(seen.low_bytes)} to {format_bytes(seen.high_bytes)}, '
                '9 times in 10)',
            )
        )
    if report.card is not None:
        oom = find_oom_batch(fit, report.card.room_bytes)
        safe = find_largest_batch(fit, report.card.safe_bytes)
        text = f'{format_bytes(report.card.total_bytes)} in all'
        if report.card.beside_bytes:
            text += f', {format_bytes(report.card.beside_bytes)} not for tensors'
        if oom is not None:
            text += f'; out of memory is expected from a batch of {oom} on'
        rows.append(('card', f'{text}; {safe} fit safely'))
    return rows


def tabulate_rules(rules: Sequence[MemoryRuleRow]) -> RenderableType:
    """Measured peaks beside what two rules say of them unseen."""
    table = Table(box=None, pad_edge=False, header_style='bold')
    for title in ('batch', 'measured', 'fit of the others', 'proportional'):
        table.add_column(title, justify='right')
    for row in rules:
        cells = (
            str(row.batch_size),
            format_bytes(row.peak_bytes),
            _with_error(row.fit_bytes, row.fit_error_pct),
            _with_error(row.proportional_bytes, row.proportional_error_pct),
        )
        table.add_row(*(bind_units(cell) for cell in cells))
    return table


def render_memory_json(report: MemoryReport) -> dict[str, Any]:
    """The same with stable keys; ``docs/batch-size.md`` documents them."""
    fit, card = report.fit, report.card
    workspace = fit.workspace_bytes
    return {
        'fixed_bytes': round(fit.fixed_bytes),
        'image_bytes': round(fit.image_bytes),
        'image_pixels': fit.image_pixels,
        'static_bytes': fit.static_bytes,
        'workspace_bytes': None if workspace is None else round(workspace),
        'relative_error': fit.relative_error,
        'peaks': [_peak(fit, batch) for batch in report.batch_sizes],
        'rules': [
            {
                'batch_size': row.batch_size,
                'peak_bytes': row.peak_bytes,
                'fit_bytes': row.fit_bytes,
                'fit_error_pct': row.fit_error_pct,
                'proportional_bytes': row.proportional_bytes,
                'proportional_error_pct': row.proportional_error_pct,
            }
            for row in report.rules
        ],
        'card_bytes': card.total_bytes if card else None,
        'oom_batch_size': find_oom_batch(fit, card.room_bytes) if card else None,
        'safe_batch_size': find_largest_batch(fit, card.safe_bytes) if card else None,
    }


def _peak(fit: MemoryFit, batch: int) -> dict[str, int]:
    seen = predict_peak(fit, batch)
    return {
        'batch_size': batch,
        'peak_bytes': seen.peak_bytes,
        'low_bytes': seen.low_bytes,
        'high_bytes': seen.high_bytes,
    }


def _with_error(size: int | None, error_pct: float | None) -> str:
    if size is None or error_pct is None:
        return '-'
    direction = 'above' if error_pct >= 0 else 'below'
    return f'{format_bytes(size)} ({format_pct(abs(error_pct))} {direction})'
