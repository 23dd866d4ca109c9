"""``mmgpu predict``: what other settings of the loader would give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from mmgpu_hooks.commands import options
from mmgpu_hooks.commands.options import as_format, command, run_folders_argument
from mmgpu_hooks.commands.output import print_answer
from mmgpu_hooks.commands.runs import ReadRuns, read_runs
from mmgpu_hooks.judge.memory import fold_card_room
from mmgpu_hooks.judge.run_pool import RunPool
from mmgpu_hooks.model.prediction import predict_setting
from mmgpu_hooks.model.workload import Workload, at_batch_size
from mmgpu_hooks.schema import NoPrediction, Prediction
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.show.predictions import (
    Forecast,
    MemoryReport,
    render_forecast,
    render_forecast_json,
)


@command('predict', '0 predicted')
@run_folders_argument
@options.num_workers('Numbers of workers.', default=(0, 1, 2, 4, 8))
@options.prefetch_factor('Batches in flight per worker.', default=(2,))
@options.batch_size(
    "Images per batch; by default the run's. Another one needs runs with several."
)
@as_format
def predict(
    run_folders: tuple[Path, ...],
    num_workers: Sequence[int],
    prefetch_factor: Sequence[int],
    batch_size: Sequence[int],
    form: str,
) -> None:
    """Say what an iteration would take with other settings of the train loader.

    RUN_FOLDER is the work_dir of a training; its newest run is read. Several runs with
    other batch sizes say how step and memory grow. Nothing is trained and nothing is
    written.
    """
    settings = [
        (workers, prefetch)
        for workers in dict.fromkeys(num_workers)
        # without workers nothing is prefetched
        for prefetch in dict.fromkeys(prefetch_factor if workers else (2,))
    ]
    read = read_runs(run_folders)
    forecast = _predict(read, settings, tuple(dict.fromkeys(batch_size)))
    if len(run_folders) > 1:
        forecast = replace(forecast, fitted=read.pool.fitted)
    if form == 'json' or forecast.reason is None:
        print_answer(forecast, form, render_forecast, render_forecast_json)
    if forecast.reason is not None:
        raise UserError(forecast.reason)


def _predict(
    read: ReadRuns, settings: Sequence[tuple[int, int]], asked: tuple[int, ...]
) -> Forecast:
    """What is predicted, and why some of what was asked for is not."""
    run, pool = read.newest.run, read.pool
    notes = (*read.newest.notes, *read.notes, *pool.notes)
    forecast = Forecast(run.path, run.status, pool.workload, notes=notes)
    if pool.workload is None:
        return replace(forecast, reason=run.why_no_workload)
    predictions, reasons = _predict_each(pool.workload, settings, asked)
    if not predictions:
        reason = ' '.join([*reasons[:1], *read.notes, *pool.notes])
        return replace(forecast, workload=None, reason=reason)
    memory = None
    if not isinstance(pool.memory, NoPrediction):
        card = fold_card_room(pool.newest)
        memory = MemoryReport(pool.memory, asked, card)
    return replace(
        forecast,
        predictions=predictions,
        is_batch_asked=bool(asked),
        notes=(*notes, *reasons, *_warn_of_batches(asked, pool)),
        memory=memory,
    )


def _predict_each(
    workload: Workload,
    settings: Sequence[tuple[int, int]],
    asked: Sequence[int],
) -> tuple[tuple[Prediction, ...], list[str]]:
    """The predictions, and why others cannot be made, each reason once."""
    sizes = asked or (workload.batch_size,)
    sized = [at_batch_size(workload, batch) for batch in sizes]
    predictions = tuple(
        predict_setting(one, *setting)
        for one in sized
        if isinstance(one, Workload)
        for setting in settings
    )
    return predictions, [one.reason for one in sized if isinstance(one, NoPrediction)]


def _warn_of_batches(asked: Sequence[int], pool: RunPool) -> Iterator[str]:
    measured = {run.batch_size for run in pool.fitted if run.batch_size}
    far = [size for size in asked if measured and size > 2 * max(measured)]
    if far:
        yield (
            f'A batch size of {min(far)} is more than twice the largest that was '
            f'measured ({max(measured)}): the step against batch size may bend there.'
        )
    if len(measured) > 1 and isinstance(pool.memory, NoPrediction):
        yield pool.memory.reason
