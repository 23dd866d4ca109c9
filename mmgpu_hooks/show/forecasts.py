"""What nothing was trained for: ``mmgpu predict`` and ``mmgpu estimate-memory``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mmgpu_hooks.judge.memory import CardRoom
from mmgpu_hooks.model.batches import (
    MemoryFit,
    find_largest_batch,
    find_oom_batch,
    predict_peak,
)
from mmgpu_hooks.model.workload import Workload
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
    Column,
    Fact,
    Section,
    Table,
    listing,
    tabulate,
    to_json,
)


def answer_memory(
    fit: MemoryFit, batch_sizes: Sequence[int], card: CardRoom | None
) -> dict[str, Any]:
    """Memory against batch size; ``docs/en/batch-size.md`` documents the keys.

    Args:
        fit: To measured peaks.
        batch_sizes: Asked for.
        card: ``None`` when its size is unknown.
    """
    return {
        'fixed_bytes': round(fit.fixed_bytes),
        'image_bytes': round(fit.image_bytes),
        'relative_error': fit.relative_error,
        'peaks': [
            {'batch_size': batch, **predict_peak(fit, batch)._asdict()}
            for batch in batch_sizes
        ],
        'card_bytes': card.total_bytes if card else None,
        'oom_batch_size': find_oom_batch(fit, card.room_bytes) if card else None,
        'safe_batch_size': find_largest_batch(fit, card.safe_bytes) if card else None,
    }


def tabulate_predictions(
    predictions: Sequence[Prediction], own_batch: int | None, marks: Mapping[int, str]
) -> Table:
    """A row a setting; batch sizes where they are not all the run's own.

    Args:
        predictions: In the order of the rows.
        own_batch: Batch size of the run.
        marks: What stands beside some numbers of workers, at this batch size.
    """

    def mark(one: Prediction) -> str:
        return marks.get(one.num_workers, '') if one.batch_size == own_batch else ''

    def interval(one: Prediction) -> str:
        low, high = one.iter_time_low_s, one.iter_time_high_s
        return f'{format_seconds(low)} to {format_seconds(high)}'

    columns: Sequence[Column] = (
        ('workers', 'num_workers', str),
        ('', '', mark),
        ('batch', 'batch_size', str),
        ('iteration', 'iter_time_s', format_seconds),
        ('9 in 10 within', '', interval),
        ('data wait', 'data_wait_s', format_seconds),
        ('images/s', 'images_per_s', '{:.1f}'.format),
        ('limited by', 'limit', str),
    )
    if all(one.batch_size == own_batch for one in predictions):
        columns = [one for one in columns if one[0] != 'batch']
    return tabulate(predictions, columns, 'Predicted with other settings')


def describe_forecast(answer: Mapping[str, Any]) -> list[Section]:
    """What was measured, then one line a setting.

    Args:
        answer: As its JSON; ``docs/en/predict.md`` documents the keys.
    """
    workload: Workload = answer['workload']
    marks = {workload.num_workers: '*'}
    table = tabulate_predictions(answer['predictions'], workload.batch_size, marks)
    mean = format_seconds(workload.iter_time.mean_s)
    fitted = answer.get('fitted_runs', {})
    runs = [f'{path} (batch {size})' for path, size in fitted.items()]
    facts = [
        ('evidence', answer['run']),
        ('fitted', ', '.join(runs) or None),
        ('measured', f'{mean} per iteration, mean of {workload.iterations} (*)'),
    ]
    memory = list(_describe_memory(answer.get('memory')))
    return [
        Section(facts=facts),
        Section(table=table),
        *([Section(facts=memory)] if memory else []),
        *listing('Notes', (*workload.notes, *answer['notes'])),
    ]


def _describe_memory(memory: Mapping[str, Any] | None) -> Iterator[Fact]:
    """Memory against batch size, the peaks that were asked for, the card."""
    if memory is None:
        return
    image = format_bytes(memory['image_bytes'])
    yield 'memory', f'{format_bytes(memory["fixed_bytes"])} and {image} per image'
    for asked in memory['peaks']:
        batch, *sizes = asked.values()
        peak, low, high = map(format_bytes, sizes)
        yield f'batch {batch}', f'peak {peak} ({low} to {high}, 9 times in 10)'
    if memory['card_bytes'] is not None:
        oom, fits = memory['oom_batch_size'], memory['safe_batch_size']
        full = f', out of memory is expected from {oom} on' if oom is not None else ''
        size = format_bytes(memory['card_bytes'])
        yield 'GPU', f'{size}; a batch of {fits} fits safely{full}'


def describe_estimate(estimate: MemoryEstimate) -> list[Section]:
    """The parts of a training's memory, and the totals by batch size."""
    static, size = estimate.static, estimate.image_size
    facts: list[Fact] = [
        ('model', f'{estimate.model}, {format_count(static.parameters)} parameters'),
        ('optimizer', static.optimizer),
        *(
            (name.replace('_', ' '), format_bytes(part))
            for name, part in vars(static).items()
            if name.endswith('_bytes')
        ),
        ('image', size and f'{size[0]}x{size[1]} ({estimate.image_size_source})'),
    ]
    if estimate.fit is not None:
        runs = plural(len(estimate.fit.points), 'run')
        runs += ' in mixed precision' * estimate.mixed_precision
        within = format_pct(estimate.fit.residual_pct)
        facts.append(('activations', f'fitted to {runs} on the CPU, within {within}'))
    totals = [
        (batch, format_bytes(size), format_bytes(estimate.total_bytes(batch)))
        for batch, size in estimate.activation_bytes.items()
    ]
    least, most = estimate.peak_factors
    beside = (
        'On top of these totals a training needs the CUDA context (300 to 600 MiB), '
        "cuDNN's workspaces, tensors that live briefly, and room for fragments: "
        f'published peaks of the allocator were {least:g} to {most:g} times such '
        'a total.'
    )
    return [
        Section(facts=facts),
        Section(table=Table(['batch', 'activations', 'total'], totals, texts=0)),
        Section(facts=_describe_card(estimate.card)),
        Section(sentences=(*estimate.notes, beside)),
    ]


def _describe_card(card: CardFit | None) -> list[Fact]:
    """What fits by the estimate, and what is safe."""
    if card is None:
        return []
    text = 'unknown, see below'
    if card.batch_size is not None:
        text = (
            f'batch {card.batch_size or "none"} by the estimate; '
            f'{card.safe_batch_size or "none"} to be safe, with a peak of '
            f'{card.factor:.3g} times the estimate'
        )
    return [(f'{format_bytes(card.card_bytes)} card', text)]


def render_estimate_json(estimate: MemoryEstimate) -> str:
    """Every figure; unknown ones are null."""
    totals = {str(n): estimate.total_bytes(n) for n in estimate.activation_bytes}
    return to_json(**asdict(estimate), total_bytes=totals)
