"""``mmgpu predict``: predicts the iteration time with other loader settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mmgpu_hooks.commands import options
from mmgpu_hooks.commands.output import print_answer
from mmgpu_hooks.commands.read_runs import read_runs
from mmgpu_hooks.commands.setting_options import read_asked, setting_options
from mmgpu_hooks.judge.forecast import Forecast, forecast_memory
from mmgpu_hooks.judge.memory import find_card_room
from mmgpu_hooks.recommend.job import Job
from mmgpu_hooks.recommend.predicted import predict_asked
from mmgpu_hooks.recommend.settings import SETTINGS
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.text import phrase, sentences
from mmgpu_hooks.show.forecasts import describe_forecast, render_forecast_json


@options.command('predict', '0 predicted')
@options.run_folders_argument
@setting_options(
    "by default the run's",
    {'num_workers': (0, 1, 2, 4, 8)},
    num_workers="Numbers of workers, beside the run's.",
    batch_size="Images per batch; by default the run's. Another one needs runs with "
    'several.',
)
@options.as_format
def predict(run_folders: tuple[Path, ...], form: str, **given: Any) -> None:
    """Say what an iteration would take with other settings of the train loader.

    RUN_FOLDER is the work_dir of a training; its newest run is read. Several runs with
    other batch sizes say how step and memory grow. Nothing is trained and nothing is
    written.
    """
    read = read_runs(run_folders)
    run, pool = read.newest.run, read.pool
    if pool.workload is None:
        raise UserError(run.why_no_workload)
    asked = read_asked(given)
    job = Job.of(run.replaced(workload=pool.workload), pool.workload, SETTINGS)
    sizes = tuple(dict.fromkeys(asked['batch_size']))
    carried = job.limits.cap()
    most_asked = max(asked['num_workers'])
    # the run's own is always among them, and batch sizes keep their order
    asked['num_workers'] = sorted({*asked['num_workers'], job.old['num_workers']})
    predictions, reasons = predict_asked(job, asked)
    if not predictions:
        raise UserError(sentences(*reasons, *read.notes))
    notes = [*read.notes, *reasons]
    if most_asked > carried.workers:
        notes.append(
            phrase(
                'More than {workers} may be too many here: {reason}.',
                carried,
            )
        )
    if len(run_folders) > 1 and pool.memory.fit is None:
        notes.append(pool.memory.why_unknown)
    forecast = Forecast(
        run.path, run.status, pool.workload, predictions, notes, own=job.old
    )
    if len(run_folders) > 1:
        forecast = replace(forecast, fitted_runs=pool.fitted)
        if pool.memory.fit is not None:
            card = find_card_room(pool.newest)
            memory = forecast_memory(pool.memory.fit, sizes, card)
            forecast = replace(forecast, memory=memory)
    print_answer(forecast, form, describe_forecast, render_forecast_json)
