"""``mmgpu compare``: which of two runs is slower, and in what."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from mmgpu_hooks.commands import exit_codes
from mmgpu_hooks.commands.terminal import terminal_layout
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.run_comparison import compare_runs
from mmgpu_hooks.schema.run_folder import EvidenceError, read_run_folder
from mmgpu_hooks.show.comparison import (
    CompareAnswer,
    render_compare_json,
    render_compare_text,
)

NAME = 'compare'
HELP = 'tell two runs apart'
DESCRIPTION = """\
Set two runs against each other: iteration time, images per second and each part of the
time ledger, with intervals, and which settings, limits of the host and versions are
not the same."""
EPILOG = """\
exit codes: 0 compared, and within --max-regression; 1 the second run is slower than
--max-regression allows, its whole interval; 2 input that cannot be used (one sentence
on standard error says why); 3 the runs cannot be compared (another batch size, model,
kind of host or number of ranks, or too short)"""

_PERCENTAGE = re.compile(r'^(\d+(?:\.\d+)?) ?%$')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument('before', type=Path, help='work_dir of the run compared with')
    parser.add_argument('after', type=Path, help='work_dir of the other run')
    parser.add_argument(
        '--max-regression',
        type=_share,
        metavar='PERCENT',
        help='exit 1 when an iteration is longer by more than that, such as 5%%, and '
        'its whole interval says so',
    )
    parser.add_argument(
        '--format', choices=('text', 'json'), default='text', help='default: text'
    )


def run(arguments: argparse.Namespace) -> int:
    """Compare and print."""
    try:
        before, after = _read(arguments.before), _read(arguments.after)
    except EvidenceError as error:
        print(f'mmgpu compare: {error}', file=sys.stderr)
        return exit_codes.BAD_INPUT
    answer = CompareAnswer(
        before.path, after.path, compare_runs(before, after), arguments.max_regression
    )
    if arguments.format == 'json':
        print(render_compare_json(answer))
    else:
        print(render_compare_text(answer, **terminal_layout(sys.stdout)))
    if answer.comparison.obstacles or answer.comparison.iter_ratio is None:
        return exit_codes.INCOMPARABLE
    return exit_codes.REGRESSION if answer.is_regression else exit_codes.OK


def _share(text: str) -> float:
    match = _PERCENTAGE.match(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(
            f'expected a percentage from 0 on, such as 5%, found {text}'
        )
    return float(match[1]) / 100


def _read(path: Path) -> Run:
    files = read_run_folder(path)
    if files.evidence is None:
        raise EvidenceError(
            f'{path}: expected the evidence of GPUEfficiencyHook, found only '
            "MMEngine's log; is the hook in the config?"
        )
    return Run.read(files.evidence)
