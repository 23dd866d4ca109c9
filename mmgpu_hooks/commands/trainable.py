"""Reads a config that is to be trained for a while."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mmgpu_hooks.commands.number_types import seconds_above_0
from mmgpu_hooks.config.loading import FlatConfig, LoadError, read_config
from mmgpu_hooks.experiment.trial import DEFAULT_TIME_LIMIT_S
from mmgpu_hooks.schema.errors import UserError


def add_time_limit(parser: argparse.ArgumentParser) -> None:
    """Add the argument that says how long each training may take."""
    parser.add_argument(
        '--time-limit',
        type=seconds_above_0,
        default=DEFAULT_TIME_LIMIT_S,
        metavar='SECONDS',
        help='of each training, its start included; default: %(default)g',
    )


def add_fresh(parser: argparse.ArgumentParser) -> None:
    """Add the argument that forgets what an earlier start has measured."""
    parser.add_argument(
        '--fresh', action='store_true', help='forget what was measured before'
    )


def read_trainable_config(path: Path) -> FlatConfig:
    """Load a config, and see that it says what to train.

    Raises:
        UserError: If it is missing, does not load, or trains nothing.
    """
    if not path.is_file():
        raise UserError(f'{path}: expected a config file, found nothing there.')
    try:
        config = read_config(path)
    except LoadError as error:
        raise UserError(
            f'{path}: expected a config that MMEngine loads, found {error}'
        ) from error
    missing = [
        key for key in ('train_dataloader', 'train_cfg') if not config.get((key,))
    ]
    if missing:
        raise UserError(
            f'{path}: expected a config that trains, found none of '
            f'{" and ".join(missing)} in it; name the one that you train.'
        )
    return config


def lengthen(config: FlatConfig, iterations: int) -> dict[str, Any]:
    """Settings with which a small data set does not end a training early.

    Args:
        config: As loaded.
        iterations: That it must have at least.
    """
    settings: dict[str, Any] = {}
    for key in ('max_epochs', 'max_iters'):
        now = config.get(('train_cfg', key))
        if isinstance(now, int) and now < iterations:
            settings[f'train_cfg.{key}'] = iterations
    return settings
