"""``mmgpu profile``: profiles a train step to show why it is compute-bound."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from mmgpu_hooks.commands import exit_codes, options, trials
from mmgpu_hooks.commands.output import print_answer, warner
from mmgpu_hooks.experiment.engine import Plan, Turn
from mmgpu_hooks.experiment.profile import (
    PROFILE_FOLDER,
    count_iterations,
    read_profile,
)
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.schema.tried import TrialSpec
from mmgpu_hooks.show.document import to_json
from mmgpu_hooks.show.experiments import describe_profile


def _count_cpus(given: Mapping[str, Any]) -> int:
    """Returns the CPUs to request from SLURM for profiling: loader workers plus one."""
    loaded = trials.read_trainable_config(given['config'])
    workers = loaded.get(('train_dataloader', 'num_workers'))
    return (workers if isinstance(workers, int) else 0) + 1


@options.command('profile', '0 profiled')
@options.config_argument
@click.option(
    '--iterations',
    type=options.WholeNumber(1, 50),
    default=20,
    help='To profile; a few more are trained before.',
)
@options.time_limit
@options.work_dir("The trace goes to DIR/profile; by default to the config's work_dir.")
@options.slurm(_count_cpus)
@options.as_format
def profile(
    config: Path, iterations: int, time_limit: float, work_dir: Path | None, form: str
) -> int:
    """Say what a training step is spent on, with torch.profiler.

    Trains a config for a few iterations: forward, backward, optimizer, copies, idle
    time inside the step, whether launches or kernels decide, TF32, cuDNN and AMP, and
    the five modules that take most.
    """
    loaded = trials.read_trainable_config(config)
    trained = count_iterations(iterations)
    spec = TrialSpec(
        os.path.abspath(config),
        str(trials.choose_folder(work_dir, loaded, config, PROFILE_FOLDER)),
        trials.lengthen(loaded),
        hook=None,
        profiled=iterations,
    )
    turn = Turn('profile', spec, (trained,), time_limit_s=time_limit)
    outcome = trials.train(Plan([turn]))
    if outcome.is_interrupted:
        warner('profile')(phrase('stopped.'))
        return exit_codes.INTERRUPTED
    answer = read_profile(outcome.trials[0], iterations)
    print_answer(answer, form, describe_profile, lambda found: to_json(**vars(found)))
    return exit_codes.OK
