"""What other settings would give, as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Optional

from rich.console import RenderableType
from rich.table import Table

from mmgpu_hooks.model.prediction import LIMITS
from mmgpu_hooks.schema import FittedRun, LoaderWorkload, Prediction
from mmgpu_hooks.show.batch_memory import (
    MemoryReport,
    describe_memory,
    render_memory_json,
    tabulate_rules,
)
from mmgpu_hooks.show.console import (
    DEFAULT_WIDTH,
    bind_units,
    grid,
    list_section,
    render,
)
from mmgpu_hooks.show.figures import format_pct, format_seconds
from mmgpu_hooks.show.fitted_runs import describe_fitted

JSON_VERSION = 1
OWN = "the run's own setting"


@dataclass(frozen=True)
class Forecast:
    """Everything ``mmgpu predict`` has to say."""

    run_path: str
    status: str
    """Of the run, as in its summary."""
    workload: LoaderWorkload | None
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


def _render_workload(workload: LoaderWorkload) -> dict[str, Any]:
    rendered = asdict(workload)
    del rendered['measured_batch_size']
    return rendered


def render_forecast(
    forecast: Forecast, *, width: int = DEFAULT_WIDTH, color: bool = False
) -> str:
    """The answer for a terminal: what was measured, and one line per setting.

    Args:
        forecast: What to say; with predictions.
        width: Columns to wrap at.
        color: Whether the terminal shows colours.
    """
    workload = forecast.workload
    assert workload is not None
    prefetch = workload.prefetch_factor if workload.num_workers else None
    own = (workload.num_workers, prefetch, workload.batch_size)
    parts: list[RenderableType] = [
        _measured(forecast, workload),
        '',
        _table(
            forecast.predictions,
            own,
            has_batches=forecast.is_batch_asked
            or {one.batch_size for one in forecast.predictions}
            != {workload.batch_size},
        ),
    ]
    if any(_setting_of(one) == own for one in forecast.predictions):
        parts += [f'* {OWN}']
    if forecast.memory is not None:
        told = [(n, bind_units(text)) for n, text in describe_memory(forecast.memory)]
        parts += ['', grid(told), '', tabulate_rules(forecast.memory.rules)]
    notes = (*workload.notes, *forecast.notes)
    parts += list_section('Notes', notes)
    return render(*parts, width=width, color=color)


def _measured(forecast: Forecast, workload: LoaderWorkload) -> RenderableType:
    iteration, loading, step = workload.iter_time, workload.occupancy, workload.step
    rows = [
        ('evidence', forecast.run_path),
        *describe_fitted(forecast.fitted),
        (
            'measured',
            f'{format_seconds(iteration.mean_s)} per iteration over '
            f'{workload.iterations} iterations, with {_setting(workload)}',
        ),
        (
            'loading',
            f'{format_seconds(loading.mean_s)} for a batch in a worker, '
            f'{format_seconds(workload.batch_cpu.mean_s)} of it CPU; spread '
            f'{format_pct(100 * loading.variation)}',
        ),
        (
            'step',
            f'{format_seconds(step.mean_s)} with data at hand, and '
            f'{format_seconds(workload.fetch_s)} to fetch it',
        ),
        ('cores', _cores(workload)),
    ]
    return grid([(label, bind_units(text)) for label, text in rows])


def _setting(workload: LoaderWorkload) -> str:
    if not workload.num_workers:
        return 'no workers'
    return (
        f'{workload.num_workers} worker(s), prefetch_factor {workload.prefetch_factor}'
    )


def _cores(workload: LoaderWorkload) -> str:
    text = f'{workload.usable_cores:g} usable'
    if workload.stranger_tasks >= 0.05:
        text += f', wanted by {workload.stranger_tasks:.1f} task(s) of others'
    return text


_Setting = tuple[int, Optional[int], Optional[int]]


def _setting_of(one: Prediction) -> _Setting:
    return one.num_workers, one.prefetch_factor, one.batch_size


def _table(
    predictions: Sequence[Prediction], own: _Setting, *, has_batches: bool
) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style='bold')
    for title in (
        *(('batch',) if has_batches else ()),
        'workers',
        'prefetch',
        'iteration',
        '9 in 10 within',
        'data wait',
        'images/s',
        'busy' if has_batches else 'workers busy',
    ):
        table.add_column(title, justify='right', no_wrap=True)
    table.add_column('limited by', no_wrap=True)
    for one in predictions:
        mark = '* ' if _setting_of(one) == own else ''
        table.add_row(
            *((f'{one.batch_size}',) if has_batches else ()),
            f'{mark}{one.num_workers}',
            '-' if one.prefetch_factor is None else f'{one.prefetch_factor}',
            format_seconds(one.iter_time_s),
            f'{format_seconds(one.iter_time_low_s)} to '
            f'{format_seconds(one.iter_time_high_s)}',
            format_seconds(one.data_wait_s),
            'unknown' if one.images_per_s is None else f'{one.images_per_s:.1f}',
            '-'
            if one.worker_utilisation is None
            else format_pct(100 * one.worker_utilisation),
            LIMITS[one.limit],
        )
    return table
