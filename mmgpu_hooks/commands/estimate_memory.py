"""``mmgpu estimate-memory``: will it fit, before there is a GPU."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace
from pathlib import Path

from mmgpu_hooks.commands import exit_codes
from mmgpu_hooks.commands.terminal import terminal_layout
from mmgpu_hooks.memory.estimate import (
    CONFIG_OPTIMIZER,
    OPTIMIZERS,
    estimate_memory,
)
from mmgpu_hooks.model.training_memory import compare_with_run
from mmgpu_hooks.schema import MemoryEstimate, RunEvidence
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.reader import read_evidence
from mmgpu_hooks.schema.run_folder import EvidenceError, read_run_folder
from mmgpu_hooks.show.memory_estimate import render_estimate, render_estimate_json

NAME = 'estimate-memory'
HELP = 'estimate the memory of a training, without a GPU'
DESCRIPTION = """\
Build the model of a config, run it on the CPU at small batches, and say what memory
its training takes: parameters, gradients, optimizer state and the activations kept
for the backward pass, by batch size. Nothing is downloaded."""
EPILOG = """\
A model that cannot be run on the CPU gets its static part, with a note that says why.

exit codes: 0 estimated, 2 input that cannot be used (one sentence on standard error
says why)"""

_SIZE = re.compile(r'(\d+)(?:[x,](\d+))?')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument('config', type=Path, help='the config to train')
    parser.add_argument(
        '--batch-size',
        type=_batch_size,
        nargs='+',
        default=[],
        metavar='N',
        help="images per batch and GPU (default: the config's)",
    )
    parser.add_argument(
        '--optimizer',
        choices=(CONFIG_OPTIMIZER, *OPTIMIZERS),
        type=str.lower,
        nargs='+',
        default=[CONFIG_OPTIMIZER],
        metavar='NAME',
        help=f"{', '.join(OPTIMIZERS)}, or config (default: the config's)",
    )
    parser.add_argument(
        '--image-size',
        type=parse_image_size,
        metavar='HxW',
        help="padded size in pixels, such as 800x1344 (default: the config's)",
    )
    parser.add_argument(
        '--amp',
        action='store_true',
        help='mixed precision, also if the config has none',
    )
    parser.add_argument(
        '--run',
        type=Path,
        metavar='DIR',
        dest='run_folder',
        help='work_dir of a training of this config: says how far off the estimate is',
    )
    parser.add_argument(
        '--format', choices=('text', 'json'), default='text', help='default: text'
    )


def run(arguments: argparse.Namespace) -> int:
    """Estimate and print."""
    try:
        evidence = _read_evidence(arguments.run_folder)
        estimate = estimate_memory(
            arguments.config,
            tuple(dict.fromkeys(arguments.batch_size)),
            tuple(dict.fromkeys(arguments.optimizer)),
            image_size=arguments.image_size,
            mixed_precision=arguments.amp,
            on_step=_tell if sys.stderr.isatty() else lambda what: None,
        )
    except (UserError, EvidenceError) as error:
        print(f'mmgpu {NAME}: {error}', file=sys.stderr)
        return exit_codes.BAD_INPUT
    if evidence is not None:
        estimate = _add_measured(estimate, evidence)
    if arguments.format == 'json':
        print(render_estimate_json(estimate))
    else:
        print(render_estimate(estimate, **terminal_layout(sys.stdout)))
    return exit_codes.OK


def _read_evidence(folder: Path | None) -> RunEvidence | None:
    if folder is None:
        return None
    files = read_run_folder(folder)
    if files.evidence is None:
        raise EvidenceError(
            f'expected evidence of GPUEfficiencyHook in {folder}, found only the log '
            'of MMEngine, which tells no size of a batch; train with the hook.'
        )
    return read_evidence(files.evidence)


def _add_measured(estimate: MemoryEstimate, evidence: RunEvidence) -> MemoryEstimate:
    # the first that was asked for stands for the run's own
    optimizer = next(iter(estimate.static.optimizer_state_bytes))
    measured = compare_with_run(estimate, optimizer, evidence)
    if isinstance(measured, str):
        return replace(estimate, notes=(*estimate.notes, measured))
    return replace(estimate, measured=measured)


def parse_image_size(text: str) -> tuple[int, int]:
    """Height and width out of ``800x1344`` or ``640``.

    Raises:
        argparse.ArgumentTypeError: If it is neither.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or '0' in (match[1], match[2]):
        raise argparse.ArgumentTypeError(
            f'expected height and width such as 800x1344, found {text!r}'
        )
    return int(match[1]), int(match[2] or match[1])


def _batch_size(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'expected 1 or more images, found {text!r}')
    return int(text)


def _tell(what: str) -> None:
    print(f'mmgpu {NAME}: {what} ...', file=sys.stderr, flush=True)
