"""``mmgpu predict``: what other settings of the loader would give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mmgpu_hooks.commands import options
from mmgpu_hooks.commands.output import print_answer
from mmgpu_hooks.commands.read_runs import read_runs
from mmgpu_hooks.judge.forecast import Forecast, forecast_memory
from mmgpu_hooks.judge.memory import find_card_room
from mmgpu_hooks.model.prediction import predict_setting
from mmgpu_hooks.model.workload import Workload, at_batch_size
from mmgpu_hooks.recommend.choice import DEFAULT_PREFETCH, cap_workers
from mmgpu_hooks.schema.errors import NoPredictionError, UserError
from mmgpu_hooks.schema.figures import plural
from mmgpu_hooks.show.forecasts import describe_forecast, render_forecast_json


@options.command('predict', '0 predicted')
@options.run_folders_argument
@options.num_workers("Numbers of workers, beside the run's.", default=(0, 1, 2, 4, 8))
@options.batch_size(
    "Images per batch; by default the run's. Another one needs runs with several."
)
@options.as_format
def predict(
    run_folders: tuple[Path, ...],
    num_workers: Sequence[int],
    batch_size: Sequence[int],
    form: str,
) -> None:
    """Say what an iteration would take with other settings of the train loader.

    RUN_FOLDER is the work_dir of a training; its newest run is read. Several runs with
    other batch sizes say how step and memory grow. Nothing is trained and nothing is
    written.
    """
    newest, pool, said = read_runs(run_folders)
    run = newest.run
    if pool.workload is None:
        raise UserError(run.why_no_workload)
    asked = tuple(dict.fromkeys(batch_size))
    sizes = asked or (pool.workload.batch_size,)
    sized, reasons = list[Workload](), list[str]()
    for size in sizes:
        try:
            sized.append(at_batch_size(pool.workload, size))
        except NoPredictionError as error:
            reasons.append(str(error))
    if not sized:
        raise UserError(' '.join([reasons[0], *said]))
    notes = [*said, *reasons]
    carried = cap_workers(run)
    if max(num_workers) > carried.workers:
        most = plural(carried.workers, 'worker')
        notes.append(f'More than {most} may be too many here: {carried.reason}.')
    if len(run_folders) > 1 and pool.memory.fit is None:
        notes.append(pool.memory.why_unknown)
    predictions = [
        predict_setting(
            workload, workers, max(workload.prefetch_factor, DEFAULT_PREFETCH)
        )
        for workload in sized
        for workers in sorted({*num_workers, workload.num_workers})
    ]
    forecast = Forecast(run.path, run.status, pool.workload, predictions, notes)
    if len(run_folders) > 1:
        forecast = replace(forecast, fitted_runs=pool.fitted)
        if pool.memory.fit is not None:
            card = find_card_room(pool.newest)
            memory = forecast_memory(pool.memory.fit, asked, card)
            forecast = replace(forecast, memory=memory)
    print_answer(forecast, form, describe_forecast, render_forecast_json)
