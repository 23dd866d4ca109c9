"""Renders answers of ``mmgpu predict`` (speed) and ``estimate-memory`` (memory)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mmgpu_hooks.judge.forecast import Forecast, MemoryForecast
from mmgpu_hooks.schema.figures import (
    format_bytes,
    format_seconds,
)
from mmgpu_hooks.schema.judged import Prediction
from mmgpu_hooks.schema.memory import CardFit, MemoryEstimate
from mmgpu_hooks.schema.text import Text, listed, phrase, quoted
from mmgpu_hooks.show.document import (
    BLANK,
    Fact,
    Section,
    Table,
    TableColumn,
    listing,
    tabulate,
    tabulate_setting,
    to_json,
)

_LIMIT_NAMES: dict[str, Text] = {
    'step': phrase('step'),
    'workers': phrase('workers'),
    'cores': phrase('cores'),
}
_MEMORY_PARTS: dict[str, Text] = {
    'parameter_bytes': phrase('parameter bytes'),
    'gradient_bytes': phrase('gradient bytes'),
    'buffer_bytes': phrase('buffer bytes'),
    'ema_bytes': phrase('ema bytes'),
    'optimizer_state_bytes': phrase('optimizer state bytes'),
}
"""Labels of the parts of a model's GPU memory, by field of `StaticBytes`."""


def phrase_limit(limit: str) -> Text:
    """Names the resource that limits an iteration's speed."""
    return _LIMIT_NAMES.get(limit) or quoted(limit)


def tabulate_predictions(
    predictions: Sequence[Prediction],
    own_batch: int | None,
    marks: Mapping[int, Text],
    own: Mapping[str, Any] | None = None,
) -> Table:
    """Tabulates predicted iteration times, one row per combination of settings.

    Args:
        predictions: In the order of the rows.
        own_batch: Batch size of the run.
        marks: What stands beside some numbers of workers, at this batch size.
        own: The run's own values of all settings, where others were asked for.
    """
    own, asked = own or {}, predictions[0].settings if predictions else {}
    others = [name for name in asked if name not in ('num_workers', 'batch_size')]

    def mark(prediction: Prediction) -> Text:
        values = prediction.settings
        is_own = prediction.batch_size == own_batch and all(
            values[name] == own.get(name) for name in others
        )
        return marks.get(prediction.num_workers, BLANK) if is_own else BLANK

    def interval(prediction: Prediction) -> Text:
        return phrase('{iter_time_low_s} to {iter_time_high_s}', prediction)

    columns = [
        TableColumn(phrase('workers'), 'num_workers', str),
        TableColumn(BLANK, '', mark),
        TableColumn(phrase('batch'), 'batch_size', str),
        *(tabulate_setting(name, 'settings') for name in others),
        TableColumn(phrase('iteration'), 'iter_time_s', format_seconds),
        TableColumn(phrase('9 in 10 within'), '', interval),
    ]
    if others:
        # the whole training shows what no iteration does
        columns += [
            TableColumn(phrase('training'), 'training_s', format_seconds),
            TableColumn(phrase('limited\nby'), 'limit', phrase_limit),
        ]
    else:
        columns += [
            TableColumn(phrase('data wait'), 'data_wait_s', format_seconds),
            TableColumn(phrase('images/s'), 'images_per_s', '{:.1f}'.format),
            TableColumn(phrase('limited by'), 'limit', phrase_limit),
        ]
    if all(prediction.batch_size == own_batch for prediction in predictions):
        columns = [column for column in columns if column.label != 'batch']
    return tabulate(predictions, columns, phrase('Predicted with other settings'))


def describe_forecast(forecast: Forecast) -> list[Section]:
    """Makes sections of ``mmgpu predict``: the measured run, a row per prediction."""
    workload = forecast.workload
    marks = {workload.num_workers: quoted('*')}
    table = tabulate_predictions(
        forecast.predictions, workload.batch_size, marks, forecast.own
    )
    fitted = forecast.fitted_runs or {}
    runs = listed(
        phrase('{path} (batch {batch_size})', path=str(path), batch_size=size)
        for path, size in fitted.items()
    )
    measured = phrase(
        '{mean_s} per iteration, mean of {iterations:d} (*)',
        workload,
        mean_s=workload.iter_time.mean_s,
    )
    facts = [
        Fact(phrase('evidence'), forecast.run),
        Fact(phrase('fitted'), runs or None),
        Fact(phrase('measured'), measured),
    ]
    memory = list(_describe_memory(forecast.memory))
    return [
        Section(facts=facts),
        Section(table=table),
        *([Section(facts=memory)] if memory else []),
        *listing(phrase('Notes'), (*workload.notes, *forecast.notes)),
    ]


def render_forecast_json(forecast: Forecast) -> str:
    """Renders ``mmgpu predict``'s answer as JSON.

    Keys:
        run (str): The evidence file.
        status (str): How the run ended, as in the answer of ``mmgpu recommend``.
        workload (Workload): What was measured of the run.
        predictions (Tuple[Prediction]): One for each combination of settings.
        notes (Tuple[str]): What is not predicted, and why: sentences.
        fitted_runs (Mapping[str, int | None]): Only with several runs: batch size by
            evidence file, the newest first.
        memory (MemoryForecast | None): Only with several runs; ``None`` where memory is
            unknown.
    """
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
    """Yields facts on memory by batch size: fitted line, peaks, largest batch."""
    if memory is None:
        return
    sizes = phrase('{fixed_bytes} and {image_bytes} per image', memory)
    yield Fact(phrase('memory'), sizes)
    for asked in memory.peaks:
        peak = phrase(
            'peak {peak_bytes} ({low_bytes} to {high_bytes}, 9 times in 10)', asked
        )
        yield Fact(phrase('batch {batch_size}', asked), peak)
    if memory.card_bytes is not None:
        fits = phrase('{card_bytes}; a batch of {safe_batch_size} fits safely', memory)
        if memory.oom_batch_size is not None:
            fits = phrase(
                '{card_bytes}; a batch of {safe_batch_size} fits safely, out of memory '
                'is expected from {oom_batch_size} on',
                memory,
            )
        yield Fact(phrase('GPU'), fits)


def describe_estimate(estimate: MemoryEstimate) -> list[Section]:
    """Makes sections of a memory estimate: bytes by use, and totals by batch size."""
    static, size, image = estimate.static, estimate.image_size, None
    if size is not None:
        image = phrase(
            '{size} ({source})',
            size=f'{size.height}x{size.width}',
            source=estimate.image_size_source,
        )
    parts = {
        name: value for name, value in vars(static).items() if name.endswith('_bytes')
    }
    model = phrase(
        '{model}, {parameters:count} parameters',
        model=estimate.model,
        parameters=static.parameters,
    )
    facts = [
        Fact(phrase('model'), model),
        Fact(phrase('optimizer'), static.optimizer),
        *(
            Fact(_MEMORY_PARTS[name], format_bytes(part))
            for name, part in parts.items()
        ),
        Fact(phrase('image'), image),
    ]
    if estimate.fit is not None:
        fitted = phrase(
            'fitted to {runs} on the CPU, within {residual_pct:exact}',
            estimate.fit,
            runs=len(estimate.fit.points),
        )
        if estimate.mixed_precision:
            fitted = phrase(
                'fitted to {runs} in mixed precision on the CPU, within '
                '{residual_pct:exact}',
                estimate.fit,
                runs=len(estimate.fit.points),
            )
        facts.append(Fact(phrase('activations'), fitted))
    totals = [
        (batch, format_bytes(size), format_bytes(estimate.total_bytes(batch)))
        for batch, size in estimate.activation_bytes.items()
    ]
    beside = phrase(
        'On top of these totals a training needs the CUDA context (300 to 600 MiB), '
        "cuDNN's workspaces, tensors that live briefly, and room for fragments: "
        'published peaks of the allocator were {least_ratio:g} to {most_ratio:g} times '
        'such a total.',
        least_ratio=estimate.peak_factors.least,
        most_ratio=estimate.peak_factors.most,
    )
    head = [phrase('batch'), phrase('activations'), phrase('total')]
    return [
        Section(facts=facts),
        Section(table=Table(head, totals, texts=0)),
        Section(facts=_describe_card(estimate.card)),
        Section(sentences=(*estimate.notes, beside)),
    ]


def _describe_card(card: CardFit | None) -> list[Fact]:
    """Phrases a GPU's largest batch sizes: by estimate, and with a safety margin."""
    if card is None:
        return []
    text = phrase('unknown, see below')
    if card.batch_size is not None:
        text = phrase(
            'batch {batch_size} by the estimate; {safe_batch_size} to be safe, with a '
            'peak of {peak_ratio:.3g} times the estimate',
            batch_size=card.batch_size or phrase('none'),
            safe_batch_size=card.safe_batch_size or phrase('none'),
            peak_ratio=card.factor,
        )
    return [Fact(phrase('{card_bytes} card', card), text)]


def render_estimate_json(estimate: MemoryEstimate) -> str:
    """Renders a memory estimate as JSON; unknown values are ``null``.

    Keys:
        total_bytes (Mapping[str, int | None]): Everything together, by batch size.
    """
    totals = {str(n): estimate.total_bytes(n) for n in estimate.activation_bytes}
    return to_json(**asdict(estimate), total_bytes=totals)
