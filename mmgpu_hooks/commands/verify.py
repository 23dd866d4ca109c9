"""``mmgpu verify``: what a change of settings really gives."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import click

from mmgpu_hooks.commands import exit_codes, options, trials
from mmgpu_hooks.commands.output import print_answer, warner
from mmgpu_hooks.commands.runs import find_config, find_run
from mmgpu_hooks.experiment.store import open_store, read_identity
from mmgpu_hooks.experiment.verify import VerifyPlan
from mmgpu_hooks.recommend.policy import (
    WORKERS_KEY,
    pair_settings,
    recommend_settings,
    sum_predicted_gain,
)
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.tried import TrialSpec
from mmgpu_hooks.show.document import to_json
from mmgpu_hooks.show.experiments import describe_verify


@options.command('verify', '0 measured (after Ctrl-C the same command goes on)')
@click.argument('run_folder', type=options.PATH)
@click.option(
    '--config',
    type=options.PATH,
    help='Config to train; by default the one the run used.',
)
@options.work_dir('Where logs go; by default the folder of the run.')
@click.option(
    '--max-minutes',
    type=options.above_0('minutes'),
    default=5.0,
    metavar='MINUTES',
    help='Time budget, the start of the trainings included.',
)
@options.fresh
@options.as_format
def verify(
    run_folder: Path,
    config: Path | None,
    work_dir: Path | None,
    max_minutes: float,
    fresh: bool,
    form: str,
) -> int:
    """Train two settings in turns and measure the gain.

    Trains the settings of a run (RUN_FOLDER is its work_dir) and the recommended ones
    in short alternating blocks, and says what the change really gives, beside what was
    predicted.
    """
    files, run = find_run(run_folder)
    recommendation = recommend_settings(run)
    settings = pair_settings(run, recommendation)
    if settings is None:
        reason = recommendation.reason or 'No change of the train loader.'
        raise UserError(
            f'{run_folder}: expected a recommendation to verify, found none. {reason}'
        )
    # the run's own copy holds --cfg-options too
    config = config or files.config_copy or find_config(run, None)
    loaded = trials.read_trainable_config(config)
    parent = run_folder if run_folder.is_dir() else run_folder.parent
    folder = ((work_dir or parent) / 'verify').absolute()
    own = loaded.get(('train_dataloader', 'num_workers')) or 0
    first, second = (
        TrialSpec(os.path.abspath(config), str(folder / name), side)
        for name, side in zip(('first', 'second'), settings)
    )
    before, after = (int(side.get(WORKERS_KEY, own)) for side in settings)
    plan = VerifyPlan((first, second), (before, after), 60 * max_minutes)
    identity = read_identity(loaded, settings=[*settings])
    with open_store(folder, identity, fresh=fresh) as store:
        outcome = trials.train(plan, store, max_seconds=plan.budget_s)
        if outcome.is_interrupted:
            warner('verify')('stopped; the same command goes on from there.')
            return exit_codes.INTERRUPTED
        measured = plan.finish(outcome)
        # a finished measurement is printed; the same command starts anew
        store.clear()
    gain, notes, ranks = sum_predicted_gain(run, recommendation), [], run.run.world_size
    if ranks > 1:
        notes.append(
            f'The run had {ranks} ranks and this is one of them alone: cores that the '
            'others would use are free here.'
        )
    answer = replace(
        measured,
        predicted_gain=gain,
        notes=(*notes, *measured.notes),
        before=settings[0],
        after=settings[1],
        folder=str(folder),
        batches_per_epoch=run.run.loader.batches_per_epoch,
    )
    print_answer(answer, form, describe_verify, lambda one: to_json(**vars(one)))
    return exit_codes.OK
