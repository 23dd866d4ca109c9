"""What other settings would give, as sections or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mmgpu_hooks.judge.memory import CardRoom
from mmgpu_hooks.model.batches import (
    MemoryFit,
    find_largest_batch,
    find_oom_batch,
    predict_peak,
)
from mmgpu_hooks.model.prediction import LIMITS
from mmgpu_hooks.model.workload import Workload
from mmgpu_hooks.schema import FittedRun, Prediction
from mmgpu_hooks.show.document import (
    Column,
    Fact,
    Section,
    Table,
    listing,
    tabulate,
    to_json,
)
from mmgpu_hooks.show.figures import (
    format_bytes,
    format_count,
    format_interval,
    format_seconds,
)
from mmgpu_hooks.show.recommendation import describe_fitted
from mmgpu_hooks.show.terminal import render


@dataclass(frozen=True)
class MemoryReport:
    """What is said of memory against batch size."""

    fit: MemoryFit
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
    fitted: dict[str, Any] = {}
    if forecast.fitted:
        memory = _memory_json(forecast.memory) if forecast.memory else None
        fitted = {'fitted_runs': forecast.fitted, 'memory': memory}
    return to_json(
        run=forecast.run_path,
        status=forecast.status,
        workload=forecast.workload,
        predictions=forecast.predictions,
        reason=forecast.reason,
        notes=forecast.notes,
        **fitted,
    )


def _memory_json(report: MemoryReport) -> dict[str, Any]:
    """With stable keys; ``docs/en/batch-size.md`` documents them."""
    fit, card = report.fit, report.card
    return {
        'fixed_bytes': round(fit.fixed_bytes),
        'image_bytes': round(fit.image_bytes),
        'image_pixels': fit.image_pixels,
        'static_bytes': fit.static_bytes,
        'workspace_bytes': fit.workspace_bytes,
        'relative_error': fit.relative_error,
        'peaks': [
            {'batch_size': batch, **predict_peak(fit, batch)._asdict()}
            for batch in report.batch_sizes
        ],
        'card_bytes': card.total_bytes if card else None,
        'oom_batch_size': find_oom_batch(fit, card.room_bytes) if card else None,
        'safe_batch_size': find_largest_batch(fit, card.safe_bytes) if card else None,
    }


def render_forecast(forecast: Forecast, **layout: Any) -> str:
    """The answer for a terminal: one line per setting.

    Args:
        forecast: What to say; with predictions.
        **layout: As :func:`~mmgpu_hooks.show.terminal.render` takes it.
    """
    workload = forecast.workload
    assert workload is not None
    facts = [
        ('evidence', forecast.run_path),
        *describe_fitted(forecast.fitted),
        (
            'measured',
            f'{format_seconds(workload.iter_time.mean_s)} per iteration over '
            f'{workload.iterations}, with num_workers={workload.num_workers} (*)',
        ),
    ]
    sections = [Section(facts=facts), Section(table=_table(forecast, workload))]
    if forecast.memory is not None:
        sections.append(Section(facts=list(_describe_memory(forecast.memory))))
    sections += listing('Notes', (*workload.notes, *forecast.notes))
    return render(sections, **layout)


def _table(forecast: Forecast, workload: Workload) -> Table:
    """One line a setting; what is the same in all has no column."""
    predictions = forecast.predictions
    prefetch = workload.prefetch_factor if workload.num_workers else None
    own = (workload.num_workers, prefetch, workload.batch_size)
    batches = {one.batch_size for one in predictions}
    has_batches = forecast.is_batch_asked or batches != {workload.batch_size}
    has_factors = len({one.prefetch_factor for one in predictions} - {None}) > 1

    def mark(one: Prediction) -> str:
        is_own = (one.num_workers, one.prefetch_factor, one.batch_size) == own
        return f'{one.num_workers}{" *" if is_own else "  "}'

    batch: Column = ('batch', 'batch_size', str)
    factor: Column = ('prefetch', 'prefetch_factor', str)
    columns: Sequence[Column] = (
        *((batch,) if has_batches else ()),
        ('workers', '', mark),
        *((factor,) if has_factors else ()),
        ('iteration', 'iter_time_s', format_seconds),
        ('9 in 10 within', '', format_interval),
        ('data wait', 'data_wait_s', format_seconds),
        ('images/s', 'images_per_s', '{:.1f}'.format),
        ('limited by', 'limit', LIMITS.__getitem__),
    )
    return tabulate(predictions, columns)


def _describe_memory(report: MemoryReport) -> Iterator[Fact]:
    """Memory against batch size, the peaks that were asked for, the card."""
    fit, card = report.fit, report.card
    where = ''
    if fit.image_pixels is not None:
        where = f' of {format_count(round(fit.image_pixels))} padded pixels'
    static = ''
    if fit.static_bytes is not None:
        static = f' (model and optimizer take {format_bytes(fit.static_bytes)})'
    yield (
        'memory',
        f'{format_bytes(round(fit.fixed_bytes))} with any batch{static} and '
        f'{format_bytes(round(fit.image_bytes))} per image{where}, fitted to '
        f'{len(fit.points)} peaks',
    )
    for batch in report.batch_sizes:
        seen = predict_peak(fit, batch)
        low, high = format_bytes(seen.low_bytes), format_bytes(seen.high_bytes)
        peak = f'{format_bytes(seen.peak_bytes)} at its peak'
        yield f'batch {batch}', f'{peak} ({low} to {high}, 9 times in 10)'
    if card is not None:
        text = f'{format_bytes(card.total_bytes)} in all'
        if card.beside_bytes:
            text += f', {format_bytes(card.beside_bytes)} not for tensors'
        oom = find_oom_batch(fit, card.room_bytes)
        if oom is not None:
            text += f'; out of memory is expected from a batch of {oom} on'
        yield 'card', f'{text}; {find_largest_batch(fit, card.safe_bytes)} fit safely'
