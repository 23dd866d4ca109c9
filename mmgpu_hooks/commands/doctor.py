"""``mmgpu doctor``: checks this machine and environment."""

from __future__ import annotations

from pathlib import Path

import click

from mmgpu_hooks.commands import exit_codes, options
from mmgpu_hooks.commands.output import print_answer
from mmgpu_hooks.experiment.doctor import examine_machine
from mmgpu_hooks.judge.doctor import count_problems, judge_machine
from mmgpu_hooks.show.checkup import describe_checkup, render_checkup_json


@options.command('doctor', '0 nothing is wrong, 1 something is')
@click.argument('config', type=options.PATH, required=False)
@options.as_format
def doctor(config: Path | None, form: str) -> int:
    """Say what this machine and environment are, and what is wrong with them.

    Cores, memory, /dev/shm, open files, file systems, GPUs and packages; with CONFIG
    also what its loader needs, where its data lies, and the hooks that its custom_hooks
    dropped. Each thing that is wrong has its cure. Nothing is trained or written.
    """
    machine = examine_machine(config)
    rows = judge_machine(machine)
    print_answer(
        rows, form, describe_checkup, lambda some: render_checkup_json(machine, some)
    )
    return exit_codes.NO if count_problems(rows) else exit_codes.OK
