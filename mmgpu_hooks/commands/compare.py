"""``mmgpu compare``: which of two runs is slower, and in what."""

from __future__ import annotations

from pathlib import Path

import click

from mmgpu_hooks.commands import exit_codes
from mmgpu_hooks.commands.options import PATH, as_format, command, parsed
from mmgpu_hooks.commands.output import print_answer
from mmgpu_hooks.commands.runs import find_run
from mmgpu_hooks.judge.run_comparison import compare_runs
from mmgpu_hooks.show.comparison import (
    CompareAnswer,
    describe_compare,
    render_compare_json,
)

PERCENTAGE = parsed(
    r'(\d{1,9}(?:\.\d+)?) ?%',
    lambda match: float(match[1]) / 100,
    'a percentage from 0 on, such as 5%',
)


@command(
    'compare',
    '0 compared, and within --max-regression, 1 the second run is slower than that, '
    'its whole interval, 3 the runs cannot be compared (another batch size, model, '
    'kind of host or number of ranks, or too short)',
)
@click.argument('before', type=PATH)
@click.argument('after', type=PATH)
@click.option(
    '--max-regression',
    type=PERCENTAGE,
    metavar='PERCENT',
    help='Exit with 1 when an iteration is longer by more than that, such as 5%.',
)
@as_format
def compare(before: Path, after: Path, max_regression: float | None, form: str) -> int:
    """Set two runs against each other, each named by its work_dir.

    Iteration time, images per second and each part of the time ledger, with intervals;
    and which settings, limits of the host and versions are not the same.
    """
    (_, first), (_, second) = map(find_run, (before, after))
    comparison = compare_runs(first, second)
    answer = CompareAnswer(first.path, second.path, comparison, max_regression)
    print_answer(answer, form, describe_compare, render_compare_json)
    if comparison.obstacles or comparison.iter_ratio is None:
        return exit_codes.INCOMPARABLE
    return exit_codes.NO if answer.is_regression else exit_codes.OK
