"""Answers without a training: ``mmgpu predict`` and ``mmgpu estimate-memory``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mmgpu_hooks.judge.forecast import Forecast, MemoryForecast
from mmgpu_hooks.schema.figures import (
    format_bytes,
    format_count,
    format_pct,
    format_seconds,
    plural,
)
from mmgpu_hooks.schema.judged import Prediction
from mmgpu_hooks.schema.memory import CardFit, MemoryEstimate
from mmgpu_hooks.show.document import (
    Fact,
    Section,
    Table,
    TableColumn,
    listing,
    tabulate,
    tabulate_setting,
    to_json,
)


def tabulate_predictions(
    predictions: Sequence[Prediction],
    own_batch: int | None,
    marks: Mapping[int, str],
    own: Mapping[str, Any] | None = None,
) -> Table:
    """A row a setting; batch sizes where they are not all the run's own.

    Args:
        predictions: In the order of the rows.
        own_batch: Batch size of the run.
        marks: What stands beside some numbers of workers, at this batch size.
        own: The run's own values of all settings, where others were asked for.
    """
    own, asked = own or {}, predictions[0].settings if predictions else {}
    others = [name for name in asked if name not in ('num_workers', 'batch_size')]

    def mark(prediction: Prediction) -> str:
        values = prediction.settings
        is_own = prediction.batch_size == own_batch and all(
            values[name] == own.get(name) for name in others
        )
        return marks.get(prediction.num_workers, '') if is_own else ''

    def interval(prediction: Prediction) -> str:
        low, high = prediction.iter_time_low_s, prediction.iter_time_high_s
        return f'{format_seconds(low)} to {format_seconds(high)}'

    columns: Sequence[TableColumn] = (
        TableColumn('workers', 'num_workers', str),
        TableColumn('', '', mark),
        TableColumn('batch', 'batch_size', str),
        TableColumn('iteration', 'iter_time_s', format_seconds),
        TableColumn('9 in 10 within', '', interval),
        TableColumn('data wait', 'data_wait_s', format_seconds),
        TableColumn('images/s', 'images_per_s', '{:.1f}'.format),
        TableColumn('limited by', 'limit', str),
    )
    if others:
        # the whole training shows what no iteration does
        shown = [tabulate_setting(name, 'settings') for name in others]
        training = TableColumn('training', 'training_s', format_seconds)
        workers, mark_column, batch, iteration, within = columns[:5]
        limit = TableColumn('limited\nby', 'limit', str)
        columns = [
            workers,
            mark_column,
            batch,
            *shown,
            iteration,
            within,
            training,
            limit,
        ]
    if all(prediction.batch_size == own_batch for prediction in predictions):
        columns = [column for column in columns if column.label != 'batch']
    return tabulate(predictions, columns, 'Predicted with other settings')


def describe_forecast(forecast: Forecast) -> list[Section]:
    """Sections of a forecast: what was measured, then one line a setting."""
    workload = forecast.workload
    marks = {workload.num_workers: '*'}
    table = tabulate_predictions(
        forecast.predictions, workload.batch_size, marks, forecast.own
    )
    mean = format_seconds(workload.iter_time.mean_s)
    fitted = forecast.fitted_runs or {}
    runs = [f'{path} (batch {size})' for path, size in fitted.items()]
    measured = f'{mean} per iteration, mean of {workload.iterations} (*)'
    facts = [
        Fact('evidence', forecast.run),
        Fact('fitted', ', '.join(runs) or None),
        Fact('measured', measured),
    ]
    memory = list(_describe_memory(forecast.memory))
    return [
        Section(facts=facts),
        Section(table=table),
        *([Section(facts=memory)] if memory else []),
        *listing('Notes', (*workload.notes, *forecast.notes)),
    ]


def render_forecast_json(forecast: Forecast) -> str:
    """The forecast with stable keys; ``docs/en/predict.md`` documents them."""
    several: dict[str, object] = {}
    if forecast.fitted_runs is not None:
        several = {'fitted_runs': forecast.fitted_runs, 'memory': forecast.memory}
    return to_json(
        run=forecast.run,
        status=forecast.status,
        workload=forecast.workload,
        predictions=forecast.predictions,
        notes=forecast.notes,
        **several,
    )


def _describe_memory(memory: MemoryForecast | None) -> Iterator[Fact]:
    """Memory against batch size, the peaks that were asked for, the card."""
    if memory is None:
        return
    fixed, image = format_bytes(memory.fixed_bytes), format_bytes(memory.image_bytes)
    yield Fact('memory', f'{fixed} and {image} per image')
    for asked in memory.peaks:
        peak = format_bytes(asked.peak_bytes)
        low, high = format_bytes(asked.low_bytes), format_bytes(asked.high_bytes)
        text = f'peak {peak} ({low} to {high}, 9 times in 10)'
        yield Fact(f'batch {asked.batch_size}', text)
    if memory.card_bytes is not None:
        oom, fits = memory.oom_batch_size, memory.safe_batch_size
        full = f', out of memory is expected from {oom} on' if oom is not None else ''
        size = format_bytes(memory.card_bytes)
        yield Fact('GPU', f'{size}; a batch of {fits} fits safely{full}')


def describe_estimate(estimate: MemoryEstimate) -> list[Section]:
    """The parts of a training's memory, and the totals by batch size."""
    static, size, image = estimate.static, estimate.image_size, None
    if size is not None:
        shown = f'{size.height}x{size.width}'
        image = f'{shown} ({estimate.image_size_source})'
    parts = {
        name: value for name, value in vars(static).items() if name.endswith('_bytes')
    }
    parameters = format_count(static.parameters)
    facts = [
        Fact('model', f'{estimate.model}, {parameters} parameters'),
        Fact('optimizer', static.optimizer),
        *(
            Fact(name.replace('_', ' '), format_bytes(part))
            for name, part in parts.items()
        ),
        Fact('image', image),
    ]
    if estimate.fit is not None:
        runs = plural(len(estimate.fit.points), 'run')
        runs += ' in mixed precision' * estimate.mixed_precision
        within = format_pct(estimate.fit.residual_pct)
        fitted = f'fitted to {runs} on the CPU, within {within}'
        facts.append(Fact('activations', fitted))
    totals = [
        (batch, format_bytes(size), format_bytes(estimate.total_bytes(batch)))
        for batch, size in estimate.activation_bytes.items()
    ]
    factors = estimate.peak_factors
    beside = (
        'On top of these totals a training needs the CUDA context (300 to 600 MiB), '
        "cuDNN's workspaces, tensors that live briefly, and room for fragments: "
        f'published peaks of the allocator were {factors.least:g} to '
        f'{factors.most:g} times such a total.'
    )
    return [
        Section(facts=facts),
        Section(table=Table(['batch', 'activations', 'total'], totals, texts=0)),
        Section(facts=_describe_card(estimate.card)),
        Section(sentences=(*estimate.notes, beside)),
    ]


def _describe_card(card: CardFit | None) -> list[Fact]:
    """Batch sizes that fit by the estimate, and that are safe."""
    if card is None:
        return []
    text = 'unknown, see below'
    if card.batch_size is not None:
        text = (
            f'batch {card.batch_size or "none"} by the estimate; '
            f'{card.safe_batch_size or "none"} to be safe, with a peak of '
            f'{card.factor:.3g} times the estimate'
        )
    return [Fact(f'{format_bytes(card.card_bytes)} card', text)]


def render_estimate_json(estimate: MemoryEstimate) -> str:
    """Every figure; unknown ones are null."""
    totals = {str(n): estimate.total_bytes(n) for n in estimate.activation_bytes}
    return to_json(**asdict(estimate), total_bytes=totals)
