"""``mmgpu why``: why a run ended badly or stands still."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from mmgpu_hooks.commands import options
from mmgpu_hooks.commands.output import print_answer, show_progress, warner
from mmgpu_hooks.judge.console_log import MOST_BYTES, ConsoleLog, read_log
from mmgpu_hooks.judge.standstill import Rank
from mmgpu_hooks.judge.why import judge_end, read_host
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.figures import format_bytes
from mmgpu_hooks.schema.judged import Why
from mmgpu_hooks.schema.run import read_evidence, read_other_ranks
from mmgpu_hooks.schema.run_folder import EvidenceError, RunFiles, read_run_folder
from mmgpu_hooks.show.document import Section, to_json

_MOST_LETTERS = 240
"""Of one proof."""
_STATES = {'ended': 'Dead', 'running': 'Running', 'completed': 'Completed'}


@options.command('why', '0 an answer: a cause, or that nothing ended badly')
@click.argument('work_dir', type=options.PATH, required=False, metavar='[WORK_DIR|LOG]')
@click.option(
    '--log', metavar='FILE', help='What the console showed; - reads standard input.'
)
@options.as_format
def why(work_dir: Path | None, log: str | None, form: str) -> None:
    """Say why a run ended badly or stands still.

    From its evidence, MMEngine's log, the host and what the console showed
    (slurm-123.out, the output of tools/train.py), which may be named alone.
    """
    if work_dir is None and log is None:
        raise UserError(
            'expected the work_dir of a training or --log FILE, found neither.'
        )
    is_evidence = work_dir is not None and work_dir.suffix in ('.json', '.jsonl')
    if work_dir is not None and log is None and not is_evidence and work_dir.is_file():
        work_dir, log = None, str(work_dir)
    answer = _explain(work_dir, log)
    print_answer(answer, form, _describe, lambda one: to_json(**asdict(one)))


def _explain(work_dir: Path | None, log: str | None) -> Why:
    """Judge a run by its folder, by what its console showed, or by both."""
    logs = [] if log is None else [('console', _read_log(log))]
    if work_dir is None:
        return judge_end(logs)
    try:
        files = read_run_folder(work_dir)
    except EvidenceError:
        files = RunFiles(work_dir)
    is_run = files.folder.name == 'vis_data'
    folder = files.folder.parent if is_run else work_dir
    # MMEngine names its log as the folder of the run, by its start
    for path in sorted([*folder.glob('*.log'), *folder.glob('*/*.log')])[-1:]:
        with contextlib.suppress(OSError):
            logs.append(('log', _read_log(str(path))))
    if files.evidence is None:
        if not logs:
            read_run_folder(work_dir)  # says what is wrong with it
        return judge_end(logs)
    evidence = read_evidence(files.evidence)
    others, _ = read_other_ranks(files.other_ranks)
    return judge_end(logs, [Rank(one, read_host(one)) for one in (evidence, *others)])


def _read_log(name: str) -> ConsoleLog:
    if name == '-':
        if sys.stdin is None:
            raise UserError('--log - reads standard input, which is closed.')
        return read_log(sys.stdin.buffer)
    with open(name, 'rb') as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            warner('why')(f'reading the last {format_bytes(MOST_BYTES)} of {name}.')
        with show_progress() as report:
            return read_log(file, size, partial(report, f'reading {name}'))


def _describe(answer: Why) -> list[Section]:
    """What happened, its proof, its cause, and what to do."""
    proof = [
        (f'line {one.line}' if one.line else one.source, one.text[:_MOST_LETTERS])
        for one in answer.proof
    ]
    cause = None
    if answer.cause is not None:
        sure = '' if answer.cause == answer.certainty else f' ({answer.certainty})'
        cause = f'{answer.cause}{sure}    mmgpu explain {answer.cause}'
    steps = [('' if index else 'Do', text) for index, text in enumerate(answer.do)]
    facts = [('Cause', cause), ('Rank', answer.rank), ('Sample', answer.sample), *steps]
    title = f'{_STATES.get(answer.state, "Unknown")}: {answer.sentence}'
    return [Section(title, facts=proof), Section(facts=facts)]
