"""``mmgpu sweep``: which setting is fastest here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from mmgpu_hooks.commands import exit_codes, options, trials
from mmgpu_hooks.commands.output import print_answer
from mmgpu_hooks.experiment import sweep as plans
from mmgpu_hooks.experiment.store import open_store, read_identity
from mmgpu_hooks.schema.tried import Sweep
from mmgpu_hooks.show import experiments as show
from mmgpu_hooks.show.document import to_json


@options.command('sweep', '0 measured (after Ctrl-C the same command goes on)')
@options.config_argument
@options.num_workers('Numbers of loader workers.', default=(0, 1, 2, 4, 8))
@options.batch_size("Images per batch; by default the config's.")
@click.option(
    '--seconds',
    type=options.SECONDS,
    default=60.0,
    metavar='SECONDS',
    help='Time to measure each after its warm-up; it ends earlier when its interval is '
    'within 3 %.',
)
@options.time_limit
@options.work_dir("Results go to DIR/sweep; by default to the config's work_dir.")
@options.fresh
@options.as_format
def sweep(
    config: Path,
    num_workers: Sequence[int],
    batch_size: Sequence[int],
    seconds: float,
    time_limit: float,
    work_dir: Path | None,
    fresh: bool,
    form: str,
) -> int:
    """Train a config for a short while with each combination of settings.

    One after another in random order; says what an iteration takes, what it waits for
    and what it needs.
    """
    loaded = trials.read_trainable_config(config)
    own = loaded.get(('train_dataloader', 'batch_size'))
    plan = plans.SweepPlan(
        config=os.path.abspath(config),
        folder=trials.choose_folder(work_dir, loaded, config, 'sweep'),
        settings=plans.list_settings(
            num_workers, batch_size or (own if isinstance(own, int) else None,)
        ),
        measure_s=seconds,
        whole_s=time_limit,
        lengthened=trials.lengthen(loaded),
    )

    def render_json(answer: Sweep) -> str:
        return to_json(config=str(config), folder=str(plan.folder), **vars(answer))

    limits = {'--seconds': seconds, '--time-limit': time_limit}
    identity = read_identity(loaded, **limits)
    with open_store(plan.folder, identity, fresh=fresh) as store:
        answer = plan.finish(trials.train(plan, store))
    print_answer(answer, form, show.describe_sweep, render_json)
    return exit_codes.INTERRUPTED if answer.is_interrupted else exit_codes.OK
