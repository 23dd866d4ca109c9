"""The trials of a sweep as a table, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Callable

from rich.table import Table
from rich.text import Text

from mmgpu_hooks.recommend.sweep_choice import exceeds_host
from mmgpu_hooks.schema import Estimate, Prediction, Sweep, SweepRow, SweepSetting
from mmgpu_hooks.show.figures import format_bytes, format_seconds
from mmgpu_hooks.show.sweep_batches import render_batches_json

JSON_VERSION = 1
"""Raised when a key of the JSON answer changes its meaning or goes away."""

DRIFTS = '(drifts)'
"""Half an interval that counts for hardly two independent values: anybody's guess."""

STATUS_WORDS = {
    'failed': 'failed',
    'timed_out': 'out of time',
    'out_of_memory': 'out of memory',
    'interrupted': 'was stopped',
}


@dataclass(frozen=True)
class _Column:
    """A column that is left out where it is empty all along."""

    title: str
    read: Callable[[SweepRow], str | None]


_COLUMNS = (
    _Column('workers', lambda row: str(row.setting.num_workers)),
    _Column('batch', lambda row: _text(row.setting.batch_size)),
    _Column('pre-\nfetch', lambda row: _text(row.setting.prefetch_factor)),
    _Column('pinned', lambda row: _yes(row.setting.pin_memory)),
    _Column('AMP', lambda row: _yes(row.setting.amp)),
    _Column(
        'iteration', lambda row: _seconds(row.iter_s.value if row.iter_s else None)
    ),
    _Column('+-', lambda row: format_half_width(row.iter_s) if row.iter_s else None),
    _Column('predicted', lambda row: _predicted(row.predicted, row.is_calibration)),
    _Column('data\nwait', lambda row: _seconds(row.data_wait_s)),
    _Column('images\n/s', lambda row: _number(row.images_per_s)),
    _Column('GPU\n%', lambda row: _number(row.gpu_util_pct, 0)),
    _Column('at 0\n%', lambda row: _number(row.gpu_zero_pct, 0)),
    _Column('swing\npoints', lambda row: _number(row.gpu_swing_pct, 0)),
    _Column('memory', lambda row: _bytes(row.memory_peak_bytes)),
    _Column('CPU\ncores', lambda row: _number(row.cpu_cores)),
    _Column('save', lambda row: _seconds(row.save_s)),
)


def format_half_width(iter_s: Estimate) -> str:
    """``10.0 ms``, or :data:`DRIFTS`."""
    return format_seconds(iter_s.half_width) if iter_s.low > 0 else DRIFTS


def tabulate_sweep(sweep: Sweep) -> Table:
    """One line a trial; the best of each batch size and precision stand out."""
    cells = [[column.read(row) for column in _COLUMNS] for row in sweep.rows]
    used = [
        index for index in range(len(_COLUMNS)) if any(line[index] for line in cells)
    ]
    table = Table(box=None, pad_edge=False, header_style='bold', collapse_padding=True)
    for index in used:
        table.add_column(
            _COLUMNS[index].title, justify='right', no_wrap=True, vertical='bottom'
        )
    table.add_column('', vertical='bottom')
    for row, line in zip(sweep.rows, cells):
        is_best = row.setting in sweep.best
        table.add_row(
            *(line[index] or '-' for index in used),
            Text(_judgement(row, is_best), style='red' if row.error else ''),
            style='bold' if is_best else '',
        )
    return table


def render_sweep_json(sweep: Sweep, config: str, folder: str) -> str:
    """The answer as one JSON object; see ``docs/sweep.md``."""
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
    body = {**body, **asdict(sweep), 'rows': rows, **render_batches_json(sweep.rows)}
    return json.dumps(body, indent=2)


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


def _predicted(prediction: Prediction | None, is_calibration: bool) -> str | None:
    if prediction is None:
        return None
    mark = '*' if is_calibration else ''
    return mark + format_seconds(prediction.iter_time_s)


def _seconds(seconds: float | None) -> str | None:
    return None if seconds is None else format_seconds(seconds)


def _bytes(size: int | None) -> str | None:
    return None if size is None else format_bytes(size)


def _number(value: float | None, digits: int = 1) -> str | None:
    return None if value is None else f'{value:.{digits}f}'


def _yes(value: bool | None) -> str | None:
    return None if value is None else 'yes' if value else 'no'


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)
