"""What other settings would give, as sections or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mmgpu_hooks.judge.memory import CardRoom
from mmgpu_hooks.model.batches import (
    MemoryFit,
    MemoryRuleRow,
    find_largest_batch,
    find_oom_batch,
    predict_peak,
)
from mmgpu_hooks.model.prediction import LIMITS
from mmgpu_hooks.model.workload import Workload
from mmgpu_hooks.schema import FittedRun, Prediction
from mmgpu_hooks.show.document import Section, Table, listing
from mmgpu_hooks.show.figures import (
    format_bytes,
    format_count,
    format_pct,
    format_seconds,
)
from mmgpu_hooks.show.recommendation import describe_fitted
from mmgpu_hooks.show.terminal import DEFAULT_WIDTH, render

JSON_VERSION = 1


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


@dataclass(frozen=True)
class Forecast:
    """Everything ``mmgpu predict`` has to say."""

    run_path: str
    status: str
    """Of the run, as in its summary."""
    workload: Workload | None
    """``None`` when nothing can be predicted from the run."""
    predictions: tuple[Prediction, ...] = ()
    reason: str | None = None
    """Why there is no prediction."""
    notes: tuple[str, ...] = ()
    fitted: tuple[FittedRun, ...] = ()
    """The runs that were fitted; empty when one was asked for."""
    is_batch_asked: bool = False
    """Whether batch sizes were asked for by number."""
    memory: MemoryReport | None = None
    """``None`` where several batch sizes of a card were not measured."""


def render_forecast_json(forecast: Forecast) -> str:
    """The answer as one JSON object; the field names are stable."""
    workload = forecast.workload
    body: dict[str, Any] = {
        'version': JSON_VERSION,
        'run': forecast.run_path,
        'status': forecast.status,
        'workload': _render_workload(workload) if workload else None,
        'predictions': [asdict(one) for one in forecast.predictions],
        'reason': forecast.reason,
        'notes': list(forecast.notes),
    }
    if forecast.fitted:
        body['fitted_runs'] = [asdict(one) for one in forecast.fitted]
        memory = forecast.memory
        body['memory'] = render_memory_json(memory) if memory else None
    return json.dumps(body, indent=2)


def _render_workload(workload: Workload) -> dict[str, Any]:
    rendered = asdict(workload)
    del rendered['measured_batch_size']
    return rendered


def render_forecast(
    forecast: Forecast, *, width: int = DEFAULT_WIDTH, color: bool = False
) -> str:
    """The answer for a terminal: one line per setting.

    Args:
        forecast: What to say; with predictions.
        width: Columns to wrap at; the table needs 80 at most.
        color: Whether the terminal shows colours.
    """
    workload = forecast.workload
    assert workload is not None
    sections = [
        Section(
            facts=[
                ('evidence', forecast.run_path),
                *describe_fitted(forecast.fitted),
                *_describe_workload(workload),
            ]
        ),
        Section(table=_table(forecast, workload)),
    ]
    if forecast.memory is not None:
        sections += memory_sections(forecast.memory)
    sections += listing('Notes', (*workload.notes, *forecast.notes))
    return render(sections, width=width, color=color)


def _describe_workload(workload: Workload) -> Iterator[tuple[str, str]]:
    iteration, loading = workload.iter_time, workload.batch_time
    yield (
        'measured',
        f'{format_seconds(iteration.mean_s)} per iteration over '
        f'{workload.iterations}, with num_workers={workload.num_workers}',
    )
    yield (
        'loading',
        f'{format_seconds(loading.mean_s)} for a batch in a worker, '
        f'{format_seconds(workload.batch_cpu.mean_s)} of it CPU; spread '
        f'{format_pct(100 * loading.variation)}',
    )
    yield (
        'step',
        f'{format_seconds(workload.step.mean_s)} with data at hand, and '
        f'{format_seconds(workload.fetch_s)} to fetch it',
    )
    cores = f'{workload.usable_cores:g} usable'
    if workload.other_tasks >= 0.05:
        cores += f', wanted by {workload.other_tasks:.1f} task(s) of others'
    yield 'cores', cores


def _table(forecast: Forecast, workload: Workload) -> Table:
    """One line a setting; what is the same in all has no column."""
    predictions = forecast.predictions
    prefetch = workload.prefetch_factor if workload.num_workers else None
    own = (workload.num_workers, prefetch, workload.batch_size)
    batches = {one.batch_size for one in predictions}
    has_batches = forecast.is_batch_asked or batches != {workload.batch_size}
    factors = {one.prefetch_factor for one in predictions} - {None}
    has_factors = len(factors) > 1
    head = [
        *(('batch',) if has_batches else ()),
        'workers',
        *(('prefetch',) if has_factors else ()),
        *('iteration', '9 in 10 within', 'data wait', 'images/s', 'limited by'),
    ]
    rows = []
    for one in predictions:
        is_own = (one.num_workers, one.prefetch_factor, one.batch_size) == own
        low, high = one.iter_time_low_s, one.iter_time_high_s
        rate = one.images_per_s
        rows.append(
            (
                *((one.batch_size,) if has_batches else ()),
                f'{one.num_workers}{" *" if is_own else "  "}',
                *((one.prefetch_factor or '-',) if has_factors else ()),
                format_seconds(one.iter_time_s),
                f'{format_seconds(low)} to {format_seconds(high)}',
                format_seconds(one.data_wait_s),
                'unknown' if rate is None else f'{rate:.1f}',
                LIMITS[one.limit],
            )
        )
    return Table(head, rows, texts=0)


def memory_sections(report: MemoryReport) -> list[Section]:
    """Memory against batch size, and two rules beside what was measured."""
    return [
        Section(facts=describe_memory(report)),
        Section(table=tabulate_rules(report.rules)),
    ]


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


def tabulate_rules(rules: Sequence[MemoryRuleRow]) -> Table:
    """Measured peaks beside what two rules say of them unseen."""
    rows = [
        (
            row.batch_size,
            format_bytes(row.peak_bytes),
            _with_error(row, row.fit_bytes),
            _with_error(row, row.proportional_bytes),
        )
        for row in rules
    ]
    head = ['batch', 'measured', 'fit of the others', 'proportional']
    return Table(head, rows, 'Peak memory', texts=0)


def render_memory_json(report: MemoryReport) -> dict[str, Any]:
    """The same with stable keys; ``docs/en/batch-size.md`` documents them."""
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
                'fit_error_pct': row.error_pct(row.fit_bytes),
                'proportional_bytes': row.proportional_bytes,
                'proportional_error_pct': row.error_pct(row.proportional_bytes),
            }
            for row in report.rules
        ],
        'card_bytes': card.total_bytes if card else None,
        'oom_batch_size': find_oom_batch(fit, card.room_bytes) if card else None,
        'safe_batch_size': find_largest_batch(fit, card.safe_bytes) if card else None,
    }


def _peak(fit: MemoryFit, batch: int) -> dict[str, int]:
    return {'batch_size': batch, **predict_peak(fit, batch)._asdict()}


def _with_error(row: MemoryRuleRow, size: int | None) -> str:
    error_pct = row.error_pct(size)
    if size is None or error_pct is None:
        return '-'
    direction = 'above' if error_pct >= 0 else 'below'
    return f'{format_bytes(size)} ({format_pct(abs(error_pct))} {direction})'
