"""What ``mmgpu sweep`` answers: for a terminal, as JSON, as a chart."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmgpu_hooks.recommend.sweep import exceeds_host
from mmgpu_hooks.schema import (
    MEMORY_SOURCES,
    Sweep,
    SweepRow,
    SweepSetting,
)
from mmgpu_hooks.show.charts import Chart, stack
from mmgpu_hooks.show.document import (
    Column,
    Section,
    Table,
    listing,
    tabulate,
    to_json,
)
from mmgpu_hooks.show.figures import format_bytes, format_seconds
from mmgpu_hooks.show.terminal import render

STATUS_WORDS = {
    'failed': 'failed',
    'timed_out': 'out of time',
    'out_of_memory': 'out of memory',
    'interrupted': 'was stopped',
}

_FEW_ROUNDS = 8
"""Rounds of all workers in an epoch, below which its first batches matter."""

OTHERS_CORES = 0.25
"""Cores that other programs used, from which a note says so."""


def render_sweep(sweep: Sweep, **layout: Any) -> str:
    """The answer for a terminal.

    Args:
        sweep: What was measured.
        **layout: As :func:`~mmgpu_hooks.show.terminal.render` takes it.
    """
    title, *more = _sentences(sweep)
    sections = [Section(title, sentences=more)]
    if sweep.rows:
        sections += [Section(table=_table(sweep)), Section(sentences=[_basis(sweep)])]
    sections += listing('Notes', _notes(sweep))
    return render(sections, **layout)


_COLUMNS: Sequence[Column] = (
    ('workers', 'setting.num_workers', str),
    ('batch', 'setting.batch_size', str),
    ('pre-\nfetch', 'setting.prefetch_factor', str),
    ('iteration', 'iter_s.value', format_seconds),
    ('+-', 'iter_s.half_width', format_seconds),
    ('predicted', 'predicted.iter_time_s', format_seconds),
    ('data\nwait', 'data_wait_s', format_seconds),
    ('images\n/s', 'images_per_s', '{:.1f}'.format),
    ('GPU\n%', 'gpu_util_pct', '{:.0f}'.format),
    ('at 0\n%', 'gpu_zero_pct', '{:.0f}'.format),
    ('memory', 'memory_peak_bytes', format_bytes),
    ('CPU\ncores', 'cpu_cores', '{:.1f}'.format),
)


def _table(sweep: Sweep) -> Table:
    """One line a trial; the best of each batch size stand out."""
    best = [n for n, row in enumerate(sweep.rows) if row.setting in sweep.best]

    def judge(row: SweepRow) -> str:
        return _judgement(row) or 'best' * (row.setting in sweep.best)

    return tabulate(sweep.rows, [*_COLUMNS, ('', '', judge)], strong=best)


def _judgement(row: SweepRow) -> str:
    """Why a trial cannot be the best."""
    if row.is_measured and row.is_loss_finite is False:
        return 'loss not finite'
    if row.is_measured and exceeds_host(row):
        return 'beyond the host'
    if row.status != 'completed':
        return STATUS_WORDS.get(row.status, row.status)
    return '' if row.is_measured else 'too short'


def render_sweep_plan(
    settings: Sequence[SweepSetting],
    kept: Sequence[SweepRow],
    *,
    least: Mapping[SweepSetting, int],
    measure_s: float,
    whole_s: float,
    folder: str,
    notes: Sequence[str] = (),
    **layout: Any,
) -> str:
    """What would be run, and for how long.

    Args:
        settings: All that are asked for.
        kept: Those that are measured already.
        least: Iterations that each trains however long they take.
        measure_s: Seconds of measuring, per trial.
        whole_s: Seconds of a whole trial, at most.
        folder: Of the sweep.
        notes: On what is there already.
        **layout: As :func:`~mmgpu_hooks.show.terminal.render` takes it.
    """
    done = {row.setting for row in kept}
    left = [setting for setting in settings if setting not in done]
    turns = len(left)
    facts = [
        (one.name, 'measured already' if one in done else f'{least[one]} iterations')
        for one in settings
    ]
    said = (
        f'Each trains at least the iterations above, and is measured for at most '
        f'{format_seconds(measure_s)} beyond its start and warm-up: about '
        f'{format_seconds(turns * measure_s)} and {turns} start(s), never more than '
        f'{format_seconds(turns * whole_s)} (--time-limit times {turns}). Results '
        f'would go to {folder}. Nothing was trained.'
    )
    title = f'Would train {turns} of {len(settings)} setting(s), in random order:'
    sections = [Section(title, facts=facts), Section(sentences=[said, *notes])]
    return render(sections, **layout)


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
            'The batch size belongs to the recipe (learning rate, schedule): choose it '
            'first, then its fastest setting.'
        )


def _describe(row: SweepRow) -> str:
    assert row.iter_s is not None  # only measured ones are best
    speed = '' if row.images_per_s is None else f'{row.images_per_s:.1f} images/s, '
    seconds, half = map(format_seconds, (row.iter_s.value, row.iter_s.half_width))
    return f'{row.setting.name}: {speed}{seconds} +- {half} per iteration'


def _basis(sweep: Sweep) -> str:
    """What the table rests on, and how the predictions fared."""
    measured = sum(row.is_measured for row in sweep.rows)
    text = (
        f'{measured} of {len(sweep.rows)} trial(s) measured, in random order (seed '
        f'{sweep.seed}), {format_seconds(sweep.seconds)} in all'
    )
    reused = sum(row.is_reused for row in sweep.rows)
    if reused:
        text += f'; {reused} of them by an earlier start'
    if sweep.ranks > 1:
        text += (
            f'; of {sweep.ranks} ranks, figures are those of rank 0, images/s of all'
        )
    text += '. +- is the interval of the mean at 95 %.'
    errors = [e for row in sweep.rows if (e := row.prediction_error) is not None]
    if errors:
        source = ' and '.join(r.setting.name for r in sweep.rows if r.is_calibration)
        off = 100 * statistics.median(map(abs, errors))
        text += f' Predictions are those of the trial with {source}: off by {off:.1f} %'
        text += f' (median of {len(errors)}).'
    return text


def _notes(sweep: Sweep) -> Iterator[str]:
    for row in sweep.rows:
        name = row.setting.name
        if row.status != 'completed':
            why = f' ({row.error})' if row.error else ''
            done = f', {row.iterations} iterations until then' * bool(row.iterations)
            yield f'{name}: {STATUS_WORDS.get(row.status, row.status)}{why}{done}.'
        elif not row.is_measured:
            yield f'{name}: ended before there were iterations enough for an interval.'
        if row.is_loss_finite is False:
            yield f'{name}: a loss was not finite, so it is never recommended.'
    # what others used differs from trial to trial: one reason is enough
    beyond = {
        r.most_workers: r.most_workers_reason for r in filter(exceeds_host, sweep.rows)
    }
    for most, reason in beyond.items():
        yield f'More than {most} worker(s) are more than this host carries: {reason}.'
    short = [row for row in sweep.rows if _is_short(row)]
    if short:
        least = min(row.setting.num_workers for row in short)
        yield (
            f'With few batches in an epoch and {least} workers or more, whole epochs '
            'are slower than it looks here: their first waits are left out.'
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
    rounds = _FEW_ROUNDS * row.setting.num_workers
    return row.is_measured and 0 < (row.batches_per_epoch or 0) < rounds


def render_sweep_json(sweep: Sweep, config: str, folder: str) -> str:
    """The answer as one JSON object; see ``docs/en/sweep.md``."""
    rows = [
        {
            **vars(row),
            'name': row.setting.name,
            'prediction_error': row.prediction_error,
            'exceeds_host': exceeds_host(row),
        }
        for row in sweep.rows
    ]
    body = {**vars(sweep), 'rows': rows}
    return to_json(config=config, folder=folder, **body)


def list_sweep_charts(sweep: Sweep) -> list[Chart]:
    """An iteration of each trial, what of it is data wait, and what was predicted."""
    bars = []
    for row in sweep.rows:
        if row.iter_s is None or row.data_wait_s is None:
            continue
        whole_s = row.iter_s.value
        wait_s = min(row.data_wait_s, whole_s)
        parts = [
            ('data wait', 'data_wait', wait_s),
            ('step and hooks', 'step', whole_s - wait_s),
        ]
        text = format_seconds(whole_s)
        if row.predicted is not None:
            text += f' (predicted {format_seconds(row.predicted.iter_time_s)})'
        bars.append((row.setting.name, parts, text))
    chart = stack('sweep', 'An iteration of each setting, and its data wait', bars)
    return [chart] if chart is not None else []
