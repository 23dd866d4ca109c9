"""What the commands that train have in common: a config that trains, a plan of it."""

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
"""Epochs or iterations that no trial comes to the end of."""


def read_trainable_config(path: Path) -> FlatConfig:
    """Load a config, and see that it says what to train.

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
    """Raise a `UserError` where a loaded config does not say what to train."""
    keys = ('train_dataloader', 'train_cfg')
    missing = [key for key in keys if not config.get((key,))]
    if missing:
        raise UserError(
            phrase(
                '{path}: expected a config that trains, found no {missing} in it; name '
                'the one that you train.',
                path=path,
                missing=' and no '.join(missing),
            )
        )


def lengthen(config: FlatConfig) -> dict[str, Any]:
    """Settings with which a small data set does not end a training early."""
    keys = (('train_cfg', 'max_epochs'), ('train_cfg', 'max_iters'))
    return {'.'.join(key): _ENDLESS for key in keys if config.get(key)}


def choose_folder(
    work_dir: Path | None, config: FlatConfig, path: Path, name: str
) -> Path:
    """The absolute folder of an experiment: ``name`` in the config's work_dir.

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
    """Run a plan with a bar; the arguments are those of :func:`run_plan`."""
    with show_progress() as on_progress:
        return run_plan(plan, store, max_seconds=max_seconds, on_progress=on_progress)
