"""``mmgpu compare``: which of two runs is slower, and in what."""

from __future__ import annotations

from pathlib import Path

import click

from mmgpu_hooks.commands import exit_codes
from mmgpu_hooks.commands.options import PATH, as_format, command
from mmgpu_hooks.commands.output import print_answer
from mmgpu_hooks.commands.runs import find_run
from mmgpu_hooks.judge.run_comparison import compare_runs
from mmgpu_hooks.show.comparison import describe_compare
from mmgpu_hooks.show.document import to_json


@command(
    'compare',
    '0 compared, 3 the runs cannot be compared (another batch size, model, kind of '
    'host or number of ranks, or too short)',
)
@click.argument('before', type=PATH)
@click.argument('after', type=PATH)
@as_format
def compare(before: Path, after: Path, form: str) -> int:
    """Compare two runs, each named by its work_dir.

    Iteration time and each part of the time ledger, with intervals; and which settings,
    limits of the host and versions are not the same.
    """
    (_, first), (_, second) = map(find_run, (before, after))
    answer = compare_runs(first, second)
    print_answer(answer, form, describe_compare, lambda one: to_json(**vars(one)))
    return exit_codes.INCOMPARABLE if answer.obstacles else exit_codes.OK
