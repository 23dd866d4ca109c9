"""What ``mmgpu sweep`` answers: for a terminal, as CSV, as JSON, as charts."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Callable

from mmgpu_hooks.model.batches import KNEE_SHARE, predict_peak
from mmgpu_hooks.recommend.sweep_batches import (
    CARD_MEMORY,
    BatchSizes,
    PrecisionRow,
    compare_precisions,
    fold_batch_sizes,
)
from mmgpu_hooks.recommend.sweep_choice import exceeds_host
from mmgpu_hooks.recommend.sweep_rows import SETTLED
from mmgpu_hooks.schema import (
    MEMORY_SOURCES,
    Estimate,
    MemoryFit,
    NoPrediction,
    Sweep,
    SweepRow,
    SweepSetting,
)
from mmgpu_hooks.show.charts import Chart, Panel, Series
from mmgpu_hooks.show.document import Fact, Section, Table, listing
from mmgpu_hooks.show.figures import format_bytes, format_pct, format_seconds
from mmgpu_hooks.show.predictions import (
    MemoryReport,
    describe_memory,
    render_memory_json,
    tabulate_rules,
)
from mmgpu_hooks.show.run_charts import scale_seconds, stack
from mmgpu_hooks.show.terminal import DEFAULT_WIDTH, render

JSON_VERSION = 1
"""Raised when a key of the JSON answer changes its meaning or goes away."""

DRIFTS = '(drifts)'
"""Half an interval that rests on hardly two independent values: it says nothing."""

STATUS_WORDS = {
    'failed': 'failed',
    'timed_out': 'out of time',
    'out_of_memory': 'out of memory',
    'interrupted': 'was stopped',
}

PRECISIONS = {None: '', False: 'full precision', True: 'mixed precision'}
"""How a precision is called; the config's own needs no word."""

_FEW_ROUNDS = 8
"""Rounds of all workers in an epoch, below which its first batches matter."""

OTHERS_CORES = 0.25
"""Cores that other programs used, from which a note says so."""

_FIT_POINTS = 32


def render_sweep(
    sweep: Sweep, *, width: int = DEFAULT_WIDTH, color: bool = False
) -> str:
    """The answer for a terminal.

    Args:
        sweep: What was measured.
        width: Columns to wrap at.
        color: Whether the terminal shows colours.
    """
    title, *more = _sentences(sweep)
    sections = [Section(title, sentences=more)]
    if sweep.rows:
        sections += [
            Section(table=_table(sweep)),
            Section(sentences=[_basis(sweep)]),
            *_batch_sections(sweep.rows),
        ]
    sections += listing('Notes', _notes(sweep))
    return render(sections, width=width, color=color)


def _optional(write: Callable[[Any], str]) -> Callable[[Any], str | None]:
    return lambda value: None if value is None else write(value)


_text = _optional(str)
_seconds = _optional(format_seconds)
_yes = _optional(lambda value: 'yes' if value else 'no')
_whole = _optional(lambda value: f'{value:.0f}')
_tenth = _optional(lambda value: f'{value:.1f}')


def _half_width(iter_s: Estimate) -> str:
    """``10.0 ms``, or :data:`DRIFTS`."""
    return format_seconds(iter_s.half_width) if iter_s.low > 0 else DRIFTS


def _predicted(row: SweepRow) -> str | None:
    if row.predicted is None:
        return None
    mark = '*' if row.is_calibration else ''
    return mark + format_seconds(row.predicted.iter_time_s)


_COLUMNS: dict[str, Callable[[SweepRow], str | None]] = {
    'workers': lambda row: str(row.setting.num_workers),
    'batch': lambda row: _text(row.setting.batch_size),
    'pre-\nfetch': lambda row: _text(row.setting.prefetch_factor),
    'pinned': lambda row: _yes(row.setting.pin_memory),
    'AMP': lambda row: _yes(row.setting.amp),
    'iteration': lambda row: _seconds(row.iter_s and row.iter_s.value),
    '+-': lambda row: _half_width(row.iter_s) if row.iter_s else None,
    'predicted': _predicted,
    'data\nwait': lambda row: _seconds(row.data_wait_s),
    'images\n/s': lambda row: _tenth(row.images_per_s),
    'GPU\n%': lambda row: _whole(row.gpu_util_pct),
    'at 0\n%': lambda row: _whole(row.gpu_zero_pct),
    'swing\npoints': lambda row: _whole(row.gpu_swing_pct),
    'memory': lambda row: _optional(format_bytes)(row.memory_peak_bytes),
    'CPU\ncores': lambda row: _tenth(row.cpu_cores),
    'save': lambda row: _seconds(row.save_s),
}
"""A column that is empty in all rows is left out."""


def _table(sweep: Sweep) -> Table:
    """One line a trial; the best of each batch size and precision stand out."""
    cells = [[read(row) for read in _COLUMNS.values()] for row in sweep.rows]
    used = [n for n in range(len(_COLUMNS)) if any(line[n] for line in cells)]
    rows = [
        (*(line[n] or '-' for n in used), _judgement(row, row.setting in sweep.best))
        for row, line in zip(sweep.rows, cells)
    ]
    strong = [n for n, row in enumerate(sweep.rows) if row.setting in sweep.best]
    head = [list(_COLUMNS)[n] for n in used]
    return Table([*head, ''], rows, texts=0, strong=strong)


def _judgement(row: SweepRow, is_best: bool) -> str:
    if row.status != 'completed' and not row.is_measured:
        return STATUS_WORDS.get(row.status, row.status)
    if not row.is_measured:
        return 'too short'
    if row.is_loss_finite is False:
        return 'loss not finite'
    if exceeds_host(row):
        return 'beyond the host'
    if row.status != 'completed':
        return STATUS_WORDS.get(row.status, row.status)
    return 'best' if is_best else ''


def render_sweep_plan(
    settings: Sequence[SweepSetting],
    kept: Sequence[SweepRow],
    *,
    least: Mapping[SweepSetting, int],
    side_by_side: int = 1,
    measure_s: float,
    whole_s: float,
    folder: str,
    notes: Sequence[str] = (),
    width: int = DEFAULT_WIDTH,
    color: bool = False,
) -> str:
    """What would be run, and for how long.

    Args:
        settings: All that are asked for.
        kept: Those that are measured already.
        least: Iterations that each trains however long they take.
        side_by_side: Trials at a time.
        measure_s: Seconds of measuring, per trial.
        whole_s: Seconds of a whole trial, at most.
        folder: Of the sweep.
        notes: On what is there already.
        width: Columns to wrap at.
        color: Whether the terminal shows colours.
    """
    done = {row.setting for row in kept}
    rows = [
        (setting.name, 'measured already' if setting in done else 'to be trained')
        for setting in settings
    ]
    left = [setting for setting in settings if setting not in done]
    turns = math.ceil(len(left) / side_by_side)
    pace = 'one at a time' if side_by_side == 1 else f'{side_by_side} at a time'
    known = [row.seconds for row in kept]
    like = ''
    if known and left:
        each_s = statistics.fmean(known)
        like = (
            f' Like those that are measured, {format_seconds(each_s)} each, they would '
            f'take about {format_seconds(each_s * turns)}.'
        )
    return render(
        [
            Section(
                f'Would train {len(left)} of {len(settings)} setting(s), {pace}, in '
                'random order:',
                facts=rows,
            ),
            Section(
                sentences=[
                    f'Each is measured for {format_seconds(measure_s)}, after its '
                    'start and a warm-up, and less when its interval settles: about '
                    f'{format_seconds(turns * measure_s)} and {turns} start(s). '
                    f'{_least_iterations([least[one] for one in left])}It is never '
                    f'more than {format_seconds(turns * whole_s)} (--time-limit times '
                    f'{turns}).{like} Results would go to {folder}. Nothing was '
                    'trained.',
                    *notes,
                ]
            ),
        ],
        width=width,
        color=color,
    )


def _least_iterations(iterations: Sequence[int]) -> str:
    """What no limit of measuring makes shorter."""
    if not iterations:
        return ''
    low, high = min(iterations), max(iterations)
    span = f'{low}' if low == high else f'{low} (few workers) to {high} (many)'
    return (
        f'Where iterations are slow it is longer: each trains at least {span} of them. '
    )


def _sentences(sweep: Sweep) -> Iterator[str]:
    """The answer, then what belongs to it."""
    if sweep.is_interrupted:
        yield (
            f'Stopped when {len(sweep.rows)} of {sweep.asked} settings were trained; '
            'the same command goes on from here.'
        )
    rows = {row.setting: row for row in sweep.rows}
    if not sweep.best:
        if sweep.rows:
            yield 'No setting can be recommended: none was measured that may be.'
        elif not sweep.is_interrupted:
            yield 'Nothing was trained.'
        return
    first, *others = sweep.best
    yield f'Fastest that this host carries: {_describe(rows[first])}.'
    for setting in others:
        yield f'Next: {_describe(rows[setting])}.'
    if others:
        yield (
            'Batch size and precision belong to the recipe (learning rate, schedule): '
            'choose those first, then the fastest setting of them.'
        )


def _describe(row: SweepRow) -> str:
    assert row.iter_s is not None  # only measured ones are best
    speed = '' if row.images_per_s is None else f'{row.images_per_s:.1f} images/s, '
    half = _half_width(row.iter_s)
    spread = f' {half}' if half == DRIFTS else f' +- {half}'
    return (
        f'{row.setting.name}: {speed}{format_seconds(row.iter_s.value)}{spread} per '
        'iteration'
    )


def _basis(sweep: Sweep) -> str:
    measured = sum(row.is_measured for row in sweep.rows)
    reused = sum(row.is_reused for row in sweep.rows)
    text = (
        f'{measured} of {len(sweep.rows)} trial(s) measured, in random order (seed '
        f'{sweep.seed}), {format_seconds(sweep.seconds)} in all'
    )
    if reused:
        text += f'; {reused} of them by an earlier start'
    if sweep.ranks > 1:
        text += (
            f'; {sweep.ranks} ranks trained together: figures are those of rank 0, '
            'images/s those of all'
        )
    return f'{text}. +- is the interval of the mean at 95 %.{_accuracy(sweep)}'


def _accuracy(sweep: Sweep) -> str:
    """How the predictions fared."""
    known = [row for row in sweep.rows if row.prediction_error is not None]
    if not known:
        return ''
    error = statistics.median(abs(row.prediction_error or 0.0) for row in known)
    inside = 0
    for row in known:
        predicted, measured = row.predicted, row.iter_s
        assert predicted is not None and measured is not None
        low, high = predicted.iter_time_low_s, predicted.iter_time_high_s
        inside += low <= measured.value <= high
    return (
        f' Predictions are those of one trial (* in the table): off by '
        f'{100 * error:.1f} % (median of {len(known)}), {inside} of {len(known)} '
        'within their interval.'
    )


def _notes(sweep: Sweep) -> Iterator[str]:
    for row in sweep.rows:
        name = row.setting.name
        if row.status != 'completed':
            words = STATUS_WORDS.get(row.status, row.status)
            why = f' ({row.error})' if row.error else ''
            until = (
                f', {row.iterations} iterations until then' if row.iterations else ''
            )
            yield f'{name}: {words}{why}{until}.'
        elif not row.is_measured:
            yield f'{name}: ended before there were iterations enough for an interval.'
        if row.is_loss_finite is False:
            yield f'{name}: a loss was not finite, so it is never recommended.'
    # what others used differs from trial to trial: one reason is enough
    beyond = {
        row.most_workers: row.most_workers_reason
        for row in sweep.rows
        if exceeds_host(row)
    }
    for most, reason in beyond.items():
        yield f'More than {most} worker(s) are more than this host carries: {reason}.'
    loose = sum(row.is_measured and not row.is_settled for row in sweep.rows)
    if loose:
        yield (
            f'{loose} trial(s) ended before their interval was within '
            f'{format_pct(100 * SETTLED)}; --seconds gives them more time.'
        )
    short = [row for row in sweep.rows if _is_short(row)]
    if short:
        yield (
            f'An epoch has few batches ({min(map(_batches, short))}) beside the '
            f'workers (from {min(r.setting.num_workers for r in short)} on): the first '
            'wait of an epoch is left out, in which they made what comes next, so over '
            'whole epochs such settings are slower than they look here.'
        )
    yield from dict.fromkeys(r.unpredicted for r in sweep.rows if r.unpredicted)
    sources = {row.memory_source for row in sweep.rows if row.memory_peak_bytes}
    for source in sorted(filter(None, sources)):
        yield f'Peak memory is that of {MEMORY_SOURCES[source]}.'
    crowd = max((row.external_cpu_cores or 0.0 for row in sweep.rows), default=0.0)
    if crowd >= OTHERS_CORES:
        yield (
            f'Other programs used up to {crowd:.1f} cores of the host meanwhile; '
            'repeat it with --fresh when the host is calm.'
        )
    yield from sweep.notes


def _is_short(row: SweepRow) -> bool:
    """Whether much of an epoch was made in its first wait."""
    workers = row.setting.num_workers
    return row.is_measured and 0 < _batches(row) < _FEW_ROUNDS * workers


def _batches(row: SweepRow) -> int:
    return row.batches_per_epoch or 0


def _batch_sections(rows: Sequence[SweepRow]) -> Iterator[Section]:
    """What the trials say of batch sizes, and of mixed precision beside full."""
    for group in fold_batch_sizes(rows):
        words = PRECISIONS[group.amp]
        title = 'Batch size against memory and speed'
        yield Section(
            f'{title}, {words}' if words else title,
            table=tabulate_rules(group.rules),
            facts=list(_describe_batches(group)),
        )
    facts = [(f'batch {r.batch_size}', _ratios(r)) for r in compare_precisions(rows)]
    if facts:
        yield Section('Mixed precision beside full', facts=facts)


def _describe_batches(group: BatchSizes) -> Iterator[Fact]:
    if isinstance(group.memory, NoPrediction):
        yield 'memory', group.memory.reason
    else:
        rows = describe_memory(_memory(group, group.memory))
        yield from (row for row in rows if row[0] in ('memory', 'card'))
    if group.source is not None and group.source != CARD_MEMORY:
        yield (
            'card',
            f'unknown: peaks are those of {MEMORY_SOURCES[group.source]}; what they '
            'would take of a card, and where it would be full, is not known from them',
        )
    for batch in group.without_room:
        yield f'batch {batch}', _describe_full(group, batch)
    if group.images_per_s:
        yield 'speed', _describe_speed(group)


def _describe_full(group: BatchSizes, batch: int) -> str:
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


def _describe_speed(group: BatchSizes) -> str:
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


def _memory(group: BatchSizes, fit: MemoryFit) -> MemoryReport:
    """What is said of memory, and of the batch sizes that had none left."""
    return MemoryReport(fit, group.rules, group.without_room, group.card)


def render_sweep_json(sweep: Sweep, config: str, folder: str) -> str:
    """The answer as one JSON object; see ``docs/en/sweep.md``."""
    rows = [
        {
            **asdict(row),
            'name': row.setting.name,
            'prediction_error': row.prediction_error,
            'exceeds_host': exceeds_host(row),
        }
        for row in sweep.rows
    ]
    body: dict[str, Any] = {
        'version': JSON_VERSION,
        'config': config,
        'folder': folder,
    }
    body = {**body, **asdict(sweep), 'rows': rows}
    body['batch_sizes'] = [_batch_json(group) for group in fold_batch_sizes(sweep.rows)]
    body['mixed_precision'] = [asdict(row) for row in compare_precisions(sweep.rows)]
    return json.dumps(body, indent=2)


def _batch_json(group: BatchSizes) -> dict[str, Any]:
    memory, reason = None, None
    if isinstance(group.memory, NoPrediction):
        reason = group.memory.reason
    else:
        memory = render_memory_json(_memory(group, group.memory))
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


def render_sweep_csv(rows: Sequence[SweepRow]) -> str:
    """One line a trial, one column a figure; an empty cell is unknown."""
    lines = [_flatten(row) for row in rows]
    buffer = io.StringIO()
    names = list(_flatten(SweepRow(SweepSetting(0), 'completed')))
    writer = csv.DictWriter(buffer, names, lineterminator='\n')
    writer.writeheader()
    writer.writerows(lines)
    return buffer.getvalue()


def _flatten(row: SweepRow) -> dict[str, object]:
    body = asdict(row)
    setting = body.pop('setting')
    predicted, measured = row.predicted, row.iter_s
    del body['predicted'], body['iter_s']
    return {
        **setting,
        'iter_s': measured and measured.value,
        'iter_low_s': measured and measured.low,
        'iter_high_s': measured and measured.high,
        'intervals': measured and measured.count,
        'predicted_iter_s': predicted and predicted.iter_time_s,
        'predicted_low_s': predicted and predicted.iter_time_low_s,
        'predicted_high_s': predicted and predicted.iter_time_high_s,
        **body,
    }


def list_sweep_charts(sweep: Sweep) -> list[Chart]:
    """Every chart of a sweep that there are figures for."""
    charts = [
        _chart_predicted(sweep.rows),
        _chart_iteration(sweep.rows),
        *map(_chart_batches, fold_batch_sizes(sweep.rows)),
    ]
    return [chart for chart in charts if chart is not None]


def _chart_predicted(rows: Sequence[SweepRow]) -> Chart | None:
    """Iterations, measured as marks and predicted from one trial as a band."""
    rows = [row for row in rows if row.iter_s is not None or row.predicted is not None]
    if not rows:
        return None
    measured = [row.iter_s for row in rows]
    predicted = [row.predicted for row in rows]
    highest = [one.high for one in measured if one]
    highest += [one.iter_time_high_s for one in predicted if one]
    factor, unit = scale_seconds(max(highest))

    def line(values: Sequence[Any], field: str) -> list[float | None]:
        return [factor * getattr(one, field) if one else None for one in values]

    series = [
        Series(
            'measured',
            line(measured, 'value'),
            'data_wait',
            line(measured, 'low'),
            line(measured, 'high'),
            'marks',
        )
    ]
    if any(predicted):
        fields = ('iter_time_s', 'iter_time_low_s', 'iter_time_high_s')
        middle, low, high = (line(predicted, field) for field in fields)
        words = 'predicted, 9 in 10 within the band'
        series.append(Series(words, middle, 'step', low, high))
    names = [row.setting.name.split(', ') for row in rows]
    return Chart(
        'sweep-predicted',
        'Iterations, measured and predicted from one run',
        '; '.join(
            f'{row.setting.name}: {_seconds(row.iter_s and row.iter_s.value)}'
            for row in rows
        ),
        labels=['\n'.join([name[0].split(' ')[0], *name[1:]]) for name in names],
        panels=[Panel(f'Iteration, {unit}', series)],
        x_title='num_workers',
    )


def _chart_iteration(rows: Sequence[SweepRow]) -> Chart | None:
    """What of an iteration is waiting for data."""
    bars = []
    for row in rows:
        if row.iter_s is None or row.data_wait_s is None:
            continue
        whole_s = row.iter_s.value
        wait_s = min(row.data_wait_s, whole_s)
        parts = [
            ('data wait', 'data_wait', wait_s),
            ('step and hooks', 'step', whole_s - wait_s),
        ]
        bars.append((row.setting.name, parts, format_seconds(whole_s)))
    title = 'An iteration, and what of it waits for data'
    return stack('sweep-iteration', title, bars)


def _chart_batches(group: BatchSizes) -> Chart | None:
    """Memory and speed over the batch size: measured, and the fit with its band."""
    batches = sorted({row.batch_size for row in group.rules} | {*group.images_per_s})
    if not batches:
        return None
    peaks = {row.batch_size: row.peak_bytes for row in group.rules}
    gib = 2.0**-30
    top = 1.1 * batches[-1]
    steps = {max(round(top * n / _FIT_POINTS), 1) for n in range(1, _FIT_POINTS + 1)}
    xs = sorted({*steps, *batches})
    series = [
        Series(
            'measured',
            [peaks[x] * gib if x in peaks else None for x in xs],
            'data_wait',
            style='marks',
        )
    ]
    if isinstance(group.memory, MemoryFit):
        seen = [predict_peak(group.memory, x) for x in xs]
        series.append(
            Series(
                'fit, 9 in 10 within the band',
                [one.peak_bytes * gib for one in seen],
                'step',
                [one.low_bytes * gib for one in seen],
                [one.high_bytes * gib for one in seen],
            )
        )
    if group.card is not None:
        full = [group.card.room_bytes * gib] * len(xs)
        series.append(Series('the card is full', full, 'problem', style='dashed'))
    panels = [Panel('Peak memory, GiB', series)] if peaks else []
    if group.images_per_s:
        speeds = [group.images_per_s.get(x) for x in xs]
        panels.append(Panel('Images per second', [Series('measured', speeds, 'gpu')]))
    words = PRECISIONS[group.amp]
    said = [f'batch {b}: {format_bytes(peak)}' for b, peak in peaks.items()]
    said += [
        f'batch {b}: {rate:.1f} images/s' for b, rate in group.images_per_s.items()
    ]
    return Chart(
        f'sweep-batch-size{"-" + words.split()[0] if words else ""}',
        f'Batch size against memory and speed{", " + words if words else ""}',
        f'{"; ".join(said)}.',
        panels=panels,
        x=[float(x) for x in xs],
        x_title='batch_size',
    )
