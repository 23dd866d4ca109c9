"""Loads configs and runs short trainings (trials) for the commands that train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmgpu_hooks.commands.output import show_progress
from mmgpu_hooks.config.loading import FlatConfig, LoadError, expect_file, read_config
from mmgpu_hooks.experiment.engine import Outcome, Plan, run_plan
from mmgpu_hooks.experiment.store import TrialStore
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.text import phrase

_ENDLESS = 10**6
"""Number of epochs or iterations that no trial (short training) ever reaches."""


def read_trainable_config(path: Path) -> FlatConfig:
    """Loads a config, and raises a `UserError` if it does not define a training.

    Raises:
        UserError: If it is missing, does not load, or trains nothing.
    """
    expect_file(path)
    try:
        config = read_config(path)
    except LoadError as error:
        raise UserError(
            phrase(
                '{path}: expected a config that MMEngine loads, found {error}',
                path=path,
                error=error,
            )
        ) from error
    expect_training(path, config)
    return config


def expect_training(path: Path, config: FlatConfig) -> None:
    """Raises a `UserError` if a loaded config does not define a training."""
    keys = ('train_dataloader', 'train_cfg')
    missing = [key for key in keys if not config.get((key,))]
    if len(missing) > 1:
        raise UserError(
            phrase(
                '{path}: expected a config that trains, found no {first} and no '
                '{second} in it; name the one that you train.',
                path=path,
                first=missing[0],
                second=missing[1],
            )
        )
    if missing:
        raise UserError(
            phrase(
                '{path}: expected a config that trains, found no {key} in it; name the '
                'one that you train.',
                path=path,
                key=missing[0],
            )
        )


def lengthen(config: FlatConfig) -> dict[str, Any]:
    """Returns settings (max epochs or iterations) that make a training endless."""
    keys = (('train_cfg', 'max_epochs'), ('train_cfg', 'max_iters'))
    return {'.'.join(key): _ENDLESS for key in keys if config.get(key)}


def choose_folder(
    work_dir: Path | None, config: FlatConfig, path: Path, name: str
) -> Path:
    """Returns the absolute folder of an experiment: ``name`` below the work_dir.

    Args:
        work_dir: Takes its place.
        config: As loaded.
        path: Of the config; the work_dir is ``work_dirs/CONFIG`` where it names none.
        name: Of the experiment.
    """
    own = config.get(('work_dir',)) or Path('work_dirs', path.stem)
    return (work_dir or Path(str(own))).absolute() / name


def train(
    plan: Plan, store: TrialStore | None = None, *, max_seconds: float = float('inf')
) -> Outcome:
    """Runs an experiment's trainings with a progress bar; returns the outcome."""
    with show_progress() as on_progress:
        return run_plan(plan, store, max_seconds=max_seconds, on_progress=on_progress)
