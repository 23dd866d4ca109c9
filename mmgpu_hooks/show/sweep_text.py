"""What ``mmgpu sweep`` answers on a terminal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from mmgpu_hooks.recommend.sweep_choice import exceeds_host
from mmgpu_hooks.recommend.sweep_rows import SETTLED
from mmgpu_hooks.schema import MEMORY_SOURCES, Sweep, SweepRow, SweepSetting
from mmgpu_hooks.show.console import (
    DEFAULT_WIDTH,
    bind_units,
    grid,
    list_answer,
    list_section,
    render,
)
from mmgpu_hooks.show.figures import format_pct, format_seconds
from mmgpu_hooks.show.sweep_batches import list_batch_sections
from mmgpu_hooks.show.sweep_table import (
    DRIFTS,
    STATUS_WORDS,
    format_half_width,
    tabulate_sweep,
)

_FEW_ROUNDS = 8
"""Rounds of all workers in an epoch, below which its first batches matter."""

_STRANGERS_CORES = 0.25
"""Cores that others used, from which it is worth a word."""


def render_sweep(
    sweep: Sweep, *, width: int = DEFAULT_WIDTH, color: bool = False
) -> str:
    """The answer for a terminal.

    Args:
        sweep: What was measured.
        width: Columns to wrap at.
        color: Whether the terminal shows colours.
    """
    parts = list_answer(_sentences(sweep))
    if sweep.rows:
        parts += ['', tabulate_sweep(sweep), '', bind_units(_basis(sweep))]
        parts += list_batch_sections(sweep.rows)
    parts += list_section('Notes', _notes(sweep))
    return render(*parts, width=width, color=color)


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
        f'Would train {len(left)} of {len(settings)} setting(s), {pace}, in random '
        'order:',
        '',
        grid(rows, indent=2),
        '',
        bind_units(
            f'Each is measured for {format_seconds(measure_s)}, after its '
            'start and a warm-up, and less when its interval settles: about '
            f'{format_seconds(turns * measure_s)} and {turns} start(s). '
            f'{_tell_least([least[one] for one in left])}It is never more than '
            f'{format_seconds(turns * whole_s)} (--time-limit times {turns}).{like} '
            f'Results would go to {folder}. Nothing was trained.'
        ),
        *(bind_units(note) for note in notes),
        width=width,
        color=color,
    )


def _tell_least(iterations: Sequence[int]) -> str:
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
    yield f'Fastest that this host carries: {_tell(rows[first])}.'
    for setting in others:
        yield f'Next: {_tell(rows[setting])}.'
    if others:
        yield (
            'Batch size and precision belong to the recipe (learning rate, schedule): '
            'choose those first, then the fastest setting of them.'
        )


def _tell(row: SweepRow) -> str:
    assert row.iter_s is not None  # only measured ones are best
    speed = '' if row.images_per_s is None else f'{row.images_per_s:.1f} images/s, '
    half = format_half_width(row.iter_s)
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
    if crowd >= _STRANGERS_CORES:
        yield (
            f'Others used up to {crowd:.1f} cores of the host meanwhile; repeat it '
            'with --fresh when the host is calm.'
        )
    yield from sweep.notes


def _is_short(row: SweepRow) -> bool:
    """Whether much of an epoch was made in its first wait."""
    workers = row.setting.num_workers
    return row.is_measured and 0 < _batches(row) < _FEW_ROUNDS * workers


def _batches(row: SweepRow) -> int:
    return row.batches_per_epoch or 0
