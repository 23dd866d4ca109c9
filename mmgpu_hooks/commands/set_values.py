"""``mmgpu set``: checks settings that the user names, and writes them to a config."""

from __future__ import annotations

from pathlib import Path

import click

from mmgpu_hooks.commands.options import command, config_argument
from mmgpu_hooks.commands.rewriting import CODES, print_outcome, target_options
from mmgpu_hooks.config.rewrite import Options, rewrite_config
from mmgpu_hooks.config.settings import parse_assignments

SET_SUFFIX = '_set'
"""Suffix in the file name of the config copy that ``mmgpu set`` writes."""


@command('set', CODES)
@config_argument
@click.argument('settings', nargs=-1, required=True, metavar='KEY=VALUE...')
@target_options(in_place=True)
def set_values(
    config: Path,
    settings: tuple[str, ...],
    output: Path | None,
    in_place: bool,
    dry_run: bool,
    check: bool,
    form: str,
) -> int:
    """Change settings of a config, such as train_dataloader.num_workers=8.

    Only settings of the dataloaders, of GPUEfficiencyHook, OpenCV's threads, and
    val_evaluator.type=mmgpu_hooks.FastCocoMetric. Comments, order and _base_ stay, and
    MMEngine loads the result as proof. Writes a copy beside the config, NAME_set.py.
    """
    target = Options(output, in_place, dry_run or check, SET_SUFFIX)
    outcome = rewrite_config(config, parse_assignments(settings), **vars(target))
    return print_outcome(outcome, form, dry=dry_run, check=check)
