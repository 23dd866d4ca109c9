"""``mmgpu estimate-memory``: will it fit, before there is a GPU."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from mmgpu_hooks.commands import options
from mmgpu_hooks.commands.output import print_answer, warner
from mmgpu_hooks.memory import estimate
from mmgpu_hooks.show import forecasts as show

_OPTIMIZERS = (estimate.CONFIG_OPTIMIZER, *estimate.OPTIMIZERS)


def _parse_size(match: re.Match[str]) -> tuple[int, int] | None:
    height, width = int(match[1]), int(match[2] or match[1])
    return (height, width) if height and width else None


@options.command('estimate-memory', '0 estimated')
@options.config_argument
@options.batch_size("Images per batch and GPU; by default the config's.")
@options.several(
    '--optimizer',
    click.Choice(_OPTIMIZERS, case_sensitive=False),
    'Optimizers to count the state of.',
    default=_OPTIMIZERS[:1],
    metavar=f'[{"|".join(_OPTIMIZERS)}]...',
)
@click.option(
    '--image-size',
    type=options.parsed(
        r'(\d{1,9})(?:[x,](\d{1,9}))?', _parse_size, 'height and width such as 800x1344'
    ),
    metavar='HxW',
    help="Padded size in pixels, such as 800x1344; by default the config's.",
)
@options.flag('--amp', 'Mixed precision, also if the config has none.')
@options.as_format
def estimate_memory(
    config: Path,
    batch_size: Sequence[int],
    optimizer: Sequence[str],
    image_size: tuple[int, int] | None,
    amp: bool,
    form: str,
) -> None:
    """Estimate what memory the training of a config takes, by batch size.

    Builds its model and runs it on the CPU at small batches: parameters, gradients,
    optimizer state, and the activations kept for the backward pass. A model that cannot
    be run on the CPU gets its static part. Nothing is downloaded.
    """
    say = warner('estimate-memory')
    estimated = estimate.estimate_memory(
        config,
        tuple(dict.fromkeys(batch_size)),
        tuple(dict.fromkeys(optimizer)),
        image_size=image_size,
        mixed_precision=amp,
        on_step=lambda what: say(f'{what} ...') if sys.stderr.isatty() else None,
    )
    print_answer(estimated, form, show.describe_estimate, show.render_estimate_json)
