"""``mmgpu estimate-memory``: will it fit, before there is a GPU."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from mmgpu_hooks.commands import options
from mmgpu_hooks.commands.options import (
    PATH,
    as_format,
    command,
    config_argument,
    flag,
    parsed,
    several,
)
from mmgpu_hooks.commands.output import print_answer, warner
from mmgpu_hooks.commands.runs import find_evidence
from mmgpu_hooks.memory.estimate import (
    CONFIG_OPTIMIZER,
    OPTIMIZERS,
)
from mmgpu_hooks.memory.estimate import (
    estimate_memory as estimate,
)
from mmgpu_hooks.model.training_memory import compare_with_run
from mmgpu_hooks.schema import MemoryEstimate
from mmgpu_hooks.schema.reader import read_evidence
from mmgpu_hooks.show.memory_estimate import render_estimate, render_estimate_json


def _parse_size(match: re.Match[str]) -> tuple[int, int] | None:
    height, width = int(match[1]), int(match[2] or match[1])
    return (height, width) if height and width else None


IMAGE_SIZE = parsed(
    r'(\d{1,9})(?:[x,](\d{1,9}))?', _parse_size, 'height and width such as 800x1344'
)


@command('estimate-memory', '0 estimated')
@config_argument
@options.batch_size("Images per batch and GPU; by default the config's.")
@several(
    '--optimizer',
    click.Choice((CONFIG_OPTIMIZER, *OPTIMIZERS), case_sensitive=False),
    'Optimizers to count the state of.',
    default=(CONFIG_OPTIMIZER,),
    metavar=f'[{"|".join((CONFIG_OPTIMIZER, *OPTIMIZERS))}]...',
)
@click.option(
    '--image-size',
    type=IMAGE_SIZE,
    metavar='HxW',
    help="Padded size in pixels, such as 800x1344; by default the config's.",
)
@flag('--amp', 'Mixed precision, also if the config has none.')
@click.option(
    '--run',
    'run_folder',
    type=PATH,
    metavar='DIR',
    help='work_dir of a training of this config: says how far off the estimate is.',
)
@as_format
def estimate_memory(
    config: Path,
    batch_size: Sequence[int],
    optimizer: Sequence[str],
    image_size: tuple[int, int] | None,
    amp: bool,
    run_folder: Path | None,
    form: str,
) -> None:
    """Estimate what memory the training of a config takes, by batch size.

    Builds its model and runs it on the CPU at small batches: parameters, gradients,
    optimizer state, and the activations kept for the backward pass. A model that cannot
    be run on the CPU gets its static part. Nothing is downloaded.
    """
    files = None if run_folder is None else find_evidence(run_folder)
    say = warner('estimate-memory')
    estimated = estimate(
        config,
        tuple(dict.fromkeys(batch_size)),
        tuple(dict.fromkeys(optimizer)),
        image_size=image_size,
        mixed_precision=amp,
        on_step=(lambda what: say(f'{what} ...'))
        if sys.stderr.isatty()
        else (lambda what: None),
    )
    if files is not None and files.evidence is not None:
        estimated = _add_measured(estimated, files.evidence)
    print_answer(estimated, form, render_estimate, render_estimate_json)


def _add_measured(estimated: MemoryEstimate, evidence: Path) -> MemoryEstimate:
    # the first that was asked for stands for the run's own
    optimizer = next(iter(estimated.static.optimizer_state_bytes))
    measured = compare_with_run(estimated, optimizer, read_evidence(evidence))
    if isinstance(measured, str):
        return replace(estimated, notes=(*estimated.notes, measured))
    return replace(estimated, measured=measured)
