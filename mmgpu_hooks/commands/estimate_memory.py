"""``mmgpu estimate-memory``: predicts on the CPU what GPU memory a training takes."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from mmgpu_hooks.commands import options
from mmgpu_hooks.commands.output import print_answer, warner
from mmgpu_hooks.commands.read_runs import read_run
from mmgpu_hooks.judge.figures import find_fullest_bytes
from mmgpu_hooks.memory import estimate
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.memory import ImageSize, MeasuredPeak
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show import forecasts as show


def _parse_size(match: re.Match[str]) -> ImageSize | None:
    height, width = int(match[1]), int(match[2] or match[1])
    return ImageSize(height, width) if height and width else None


@options.command('estimate-memory', '0 estimated')
@options.config_argument
@options.batch_size("Images per batch and GPU; by default the config's.")
@click.option(
    '--image-size',
    type=options.parsed(
        r'(\d{1,9})(?:[x,](\d{1,9}))?',
        _parse_size,
        phrase('height and width such as 800x1344'),
    ),
    metavar='HxW',
    help="Padded size in pixels, such as 800x1344; by default the config's.",
)
@click.option(
    '--fit',
    type=options.SIZE,
    metavar='SIZE',
    help='Largest batch size for a card of 24GiB, 24g (GiB) or 24GB (10^9 bytes).',
)
@click.option(
    '--run',
    type=options.PATH,
    metavar='RUN_FOLDER',
    help='A training of this config: its peak corrects --fit.',
)
@options.flag('--amp', 'Mixed precision, also if the config has none.')
@options.as_format
def estimate_memory(
    config: Path,
    batch_size: Sequence[int],
    image_size: ImageSize | None,
    fit: int | None,
    run: Path | None,
    amp: bool,
    form: str,
) -> None:
    """Estimate what memory the training of a config takes, by batch size.

    Builds its model and runs it on the CPU at small batches: parameters, gradients,
    optimizer state, and the activations kept for the backward pass. A model that cannot
    be run on the CPU gets its static part. Nothing is downloaded.
    """
    if run is not None and fit is None:
        raise click.UsageError(
            phrase('--run corrects --fit; say how large the card is.')
        )
    measured = None if run is None else _read_peak(run)
    if sys.stderr.isatty():
        warner('estimate-memory')(
            phrase('running the model on the CPU, up to some minutes')
        )
    sizes = tuple(dict.fromkeys(batch_size))
    estimated = estimate.estimate_memory(
        config, sizes, image_size=image_size, mixed_precision=amp
    )
    if fit is not None:
        estimated = estimate.fit_card(estimated, fit, measured)
    print_answer(estimated, form, show.describe_estimate, show.render_estimate_json)


def _read_peak(folder: Path) -> MeasuredPeak:
    """Reads peak GPU memory (bytes) and batch size of a folder's newest run."""
    run = read_run(folder).run
    batch_size = run.meta.loader.batch_size
    peak_bytes = find_fullest_bytes(run)
    if not batch_size or not peak_bytes:
        raise UserError(
            phrase(
                '{path}: expected the batch size and the peak of a card, found them '
                'unknown; on the CPU there is no such peak.',
                path=run.path,
            )
        )
    return MeasuredPeak(batch_size, peak_bytes)
