"""Sets what was predicted of a sweep's trials beside what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.harness import Figure, render_table, render_value
from mmgpu_hooks.recommend.sweep_batches import fold_batch_sizes
from mmgpu_hooks.schema import Sweep, SweepRow

MEDIAN_TARGET_PCT, COVERED_TARGET_PCT = 5.0, 90.0
"""Those of ``make bench-predict``, on a real detector."""

TIMER_TARGET_PCT = 2.0
"""What is measured must be what anybody else's clock says."""


def fold_figures(sweep: Sweep, others_s: list[float | None]) -> Iterator[Figure]:
    """The lines of the table of figures.

    Args:
        sweep: As it was measured.
        others_s: What MMEngine timed of each row.
    """
    yield _judge_timer(sweep.rows, others_s)
    measured = [row for row in sweep.rows if row.is_measured]
    yield Figure('trials measured', len(measured), f'of {sweep.asked}')
    known = [row for row in sweep.rows if row.prediction_error is not None]
    errors = [100 * abs(row.prediction_error or 0.0) for row in known]
    median = statistics.median(errors) if errors else None
    yield Figure(
        'iteration, predicted from one run: error, median',
        median,
        '%',
        f'<= {MEDIAN_TARGET_PCT:g}',
        median is not None and median <= MEDIAN_TARGET_PCT,
        f'{len(errors)} predictions; worst {max(errors):.1f} %' if errors else '',
    )
    inside = [_is_inside(row) for row in known]
    covered = 100 * sum(inside) / len(inside) if inside else None
    yield Figure(
        'intervals that hold the truth',
        covered,
        '%',
        f'>= {COVERED_TARGET_PCT:g}',
        covered is not None and covered >= COVERED_TARGET_PCT,
        f'{sum(inside)} of {len(inside)}',
    )
    for batch in sorted({row.setting.batch_size or 0 for row in known}):
        some = [
            error
            for row, error in zip(known, errors)
            if row.setting.batch_size == batch
        ]
        name = f'batch {batch}: error, median'
        yield Figure(
            name, statistics.median(some), '%', note=f'{len(some)} predictions'
        )
    waits = [
        abs(row.predicted.data_wait_s - row.data_wait_s)
        for row in known
        if row.predicted is not None and row.data_wait_s is not None
    ]
    if waits:
        note = 'share of the iteration is what counts: see the table'
        value = 1000 * statistics.median(waits)
        yield Figure('data wait, predicted: error, median', value, 'ms', note=note)
    yield from _judge_best(sweep)
    yield from _show_memory(sweep.rows)


def _judge_timer(rows: Sequence[SweepRow], others_s: Sequence[float | None]) -> Figure:
    off = [
        100 * abs(row.iter_s.value / other_s - 1)
        for row, other_s in zip(rows, others_s)
        if row.iter_s is not None and other_s
    ]
    value = statistics.median(off) if off else None
    return Figure(
        "iteration, measured, against MMEngine's own timer: median",
        value,
        '% off',
        f'<= {TIMER_TARGET_PCT:g}',
        value is not None and value <= TIMER_TARGET_PCT,
        f'{len(off)} trials; worst {max(off):.1f} %' if off else '',
    )


def _is_inside(row: SweepRow) -> bool:
    assert row.predicted is not None and row.iter_s is not None
    low, high = row.predicted.iter_time_low_s, row.predicted.iter_time_high_s
    return low <= row.iter_s.value <= high


def _judge_best(sweep: Sweep) -> Iterator[Figure]:
    """What whoever trusts the prediction loses of the images per second."""
    for batch in sorted({row.setting.batch_size or 0 for row in sweep.rows}):
        rows = [
            row
            for row in sweep.rows
            if row.setting.batch_size == batch and row.predicted and row.is_measured
        ]
        if len(rows) < 2:
            continue
        chosen = min(rows, key=lambda row: row.predicted.iter_time_s)  # type: ignore[union-attr]
        fastest = min(rows, key=lambda row: row.iter_s.value)  # type: ignore[union-attr]
        assert chosen.iter_s is not None and fastest.iter_s is not None
        lost = 100 * (1 - fastest.iter_s.value / chosen.iter_s.value)
        note = (
            f'{chosen.setting.num_workers} workers are predicted to be fastest, '
            f'{fastest.setting.num_workers} are'
        )
        name = f'batch {batch}: lost by the setting predicted fastest'
        yield Figure(name, lost, '%', note=note)


def _show_memory(rows: Sequence[SweepRow]) -> Iterator[Figure]:
    """The worst errors of the fit and of the proportional rule, of unseen peaks."""
    for group in fold_batch_sizes(rows):
        for name, errors in (
            ('fit of the others', [row.fit_error_pct for row in group.rules]),
            ('in proportion', [row.proportional_error_pct for row in group.rules]),
        ):
            known = [abs(error) for error in errors if error is not None]
            if known:
                note = f'{len(known)} batch sizes, {group.source}'
                yield Figure(f'peak memory, {name}: worst', max(known), '%', note=note)


HEADER = (
    *('batch', 'workers', 'iteration, ms', '+-', 'predicted', '9 in 10 within'),
    *('error, %', 'images/s', 'data wait, ms', 'predicted', 'CPU cores', 'peak, MiB'),
    *('GPU, %', 'at 0, %', 'ended'),
)


def render_trials(rows: Sequence[SweepRow]) -> str:
    """Predicted beside measured, one line a trial."""
    return render_table(HEADER, [_cells(row) for row in rows])


def _cells(row: SweepRow) -> list[str]:
    predicted, measured, error = row.predicted, row.iter_s, row.prediction_error
    peak = row.memory_peak_bytes
    return [
        str(row.setting.batch_size),
        str(row.setting.num_workers),
        _ms(measured and measured.value),
        _ms(measured and measured.half_width),
        _ms(predicted and predicted.iter_time_s),
        f'{_ms(predicted.iter_time_low_s)} to {_ms(predicted.iter_time_high_s)}'
        if predicted
        else row.unpredicted or '',
        'the one run'
        if row.is_calibration
        else ''
        if error is None
        else f'{100 * error:+.1f}',
        _plain(row.images_per_s),
        _ms(row.data_wait_s),
        _ms(predicted and predicted.data_wait_s),
        _plain(row.cpu_cores),
        '' if peak is None else f'{peak / 2**20:.0f}',
        _plain(row.gpu_util_pct),
        _plain(row.gpu_zero_pct),
        row.status
        if row.status != 'completed'
        else 'settled'
        if row.is_settled
        else 'time',
    ]


def _ms(seconds: float | None) -> str:
    return '' if seconds is None else render_value(round(1000 * seconds, 1))


def _plain(value: float | None) -> str:
    return '' if value is None else f'{value:.1f}'
