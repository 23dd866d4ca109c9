"""``mmgpu compare``: compares two runs' seconds per iteration, and where they go."""

from __future__ import annotations

from pathlib import Path

import click

from mmgpu_hooks.commands import exit_codes
from mmgpu_hooks.commands.options import PATH, as_format, command, parsed
from mmgpu_hooks.commands.output import print_answer
from mmgpu_hooks.commands.read_runs import find_run
from mmgpu_hooks.judge.run_comparison import compare_runs
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show.comparison import describe_compare
from mmgpu_hooks.show.document import to_json

PERCENTAGE = parsed(
    r'(\d{1,9}(?:\.\d+)?) ?%',
    lambda match: float(match[1]),
    phrase('a percentage such as 5%'),
)


@command(
    'compare',
    '0 compared, 1 an iteration is longer by more than --max-regression, 3 the runs '
    'cannot be compared (another batch size, model, kind of host or number of ranks, '
    'or too short)',
)
@click.argument('before', type=PATH)
@click.argument('after', type=PATH)
@click.option(
    '--max-regression',
    type=PERCENTAGE,
    metavar='PERCENT',
    help='Exit with 1 when the whole interval of the slowdown is past it, such as 5%.',
)
@as_format
def compare(before: Path, after: Path, max_regression: float | None, form: str) -> int:
    """Compare two runs, each named by its work_dir.

    Iteration time and each part of the time ledger, with intervals; and which settings,
    limits of the host and versions are not the same.
    """
    first, second = (find_run(folder).run for folder in (before, after))
    answer = compare_runs(first, second)
    print_answer(
        answer, form, describe_compare, lambda compared: to_json(**vars(compared))
    )
    iteration = answer.figures[0]
    mean, change = iteration.before, iteration.difference
    if answer.verdict is None or mean is None or change is None:
        return exit_codes.INCOMPARABLE
    if max_regression is not None and 100 * change.low > max_regression * mean.value:
        return exit_codes.NO
    return exit_codes.OK
