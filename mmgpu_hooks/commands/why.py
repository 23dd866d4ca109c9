"""``mmgpu why``: why a run ended badly or stands still."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import stat
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click

from mmgpu_hooks.commands.options import PATH, as_format, command, flag
from mmgpu_hooks.commands.output import print_answer
from mmgpu_hooks.judge.standstill import Rank
from mmgpu_hooks.judge.why import judge_end, read_host, read_log
from mmgpu_hooks.schema import Why
from mmgpu_hooks.schema.reader import read_evidence, read_other_ranks
from mmgpu_hooks.schema.run_folder import EvidenceError, RunFiles, read_run_folder
from mmgpu_hooks.show.escaping import visible

_LOOK_S = 2.0
_MOST_LINES = 3
"""That one proof may take."""


@command('why', '0 an answer: a cause, or that nothing ended badly')
@click.argument('work_dir', type=PATH, required=False)
@click.option(
    '--log', metavar='FILE', help='What the console showed; - reads standard input.'
)
@flag('--watch', 'Judge again until the run has ended.')
@as_format
def why(work_dir: Path | None, log: str | None, watch: bool, form: str) -> None:
    """Say why a run ended badly or stands still.

    From its evidence, MMEngine's log, the host and what the console showed
    (slurm-123.out, the output of tools/train.py).
    """
    if work_dir is None and log is None:
        raise EvidenceError(
            'expected the work_dir of a training or --log FILE, found neither; name '
            'what the console showed, such as --log slurm-123.out.'
        )
    if watch and log == '-':
        raise EvidenceError('--watch reads a log again and again: name a file.')
    answer = explain_run(work_dir, log)
    while watch and answer.state in ('running', 'unknown'):
        shown = answer.state, answer.cause
        _print(answer, form)
        while shown == (answer.state, answer.cause):
            time.sleep(_LOOK_S)
            answer = explain_run(work_dir, log)
    _print(answer, form)


def explain_run(work_dir: Path | None, log: str | None) -> Why:
    """Judge a run by its folder, by what its console showed, or by both.

    Args:
        work_dir: What `read_run_folder` takes, or a folder with MMEngine's log alone.
        log: A file; ``-`` is standard input.

    Raises:
        EvidenceError: If one of them cannot be read.
    """
    logs = []
    if log is not None:
        with _opened(log) as file:
            logs.append(('console', read_log(file)))
    if work_dir is None:
        return judge_end(logs)
    try:
        files = read_run_folder(work_dir)
    except EvidenceError:
        files = RunFiles(None, None, None)
    found = files.evidence or files.plain
    is_run = found is not None and found.parent.name == 'vis_data'
    folder = found.parent.parent if found is not None and is_run else work_dir
    # MMEngine names its log as the folder of the run, by its start
    for path in sorted([*folder.glob('*.log'), *folder.glob('*/*.log')])[-1:]:
        with contextlib.suppress(EvidenceError), _opened(str(path)) as file:
            logs.append(('log', read_log(file)))
    if files.evidence is None:
        if not logs:
            read_run_folder(work_dir)  # says what is wrong with it
        return judge_end(logs)
    try:
        evidence = read_evidence(files.evidence)
    except EvidenceError as error:
        if files.evidence != work_dir:
            raise
        raise EvidenceError(
            f'{error} Is it what the console showed? Then: --log {work_dir}'
        ) from error
    others, _ = read_other_ranks(files.other_ranks)
    return judge_end(logs, [Rank(one, read_host(one)) for one in (evidence, *others)])


@contextlib.contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == '-':
        if sys.stdin is None:
            raise EvidenceError('--log - reads standard input, which is closed.')
        yield sys.stdin.buffer
        return
    try:
        kind = os.stat(name).st_mode
        # a shell's <(command) is a pipe; another one might be waited for for ever
        if not (stat.S_ISREG(kind) or name.startswith(('/dev/fd/', '/proc/self/fd/'))):
            raise EvidenceError(
                f'{name}: expected a file with what the console showed, found a '
                'folder, a pipe or a device; use --log - to read standard input.'
            )
        with open(name, 'rb') as file:
            yield file
    except OSError as error:
        raise EvidenceError(
            f'{name}: expected a file that can be read, found "{error.strerror}"; '
            'check the path and its permissions.'
        ) from error


def _print(answer: Why, form: str) -> None:
    print_answer(answer, form, render_why, _render_json)
    sys.stdout.flush()


def _render_json(answer: Why) -> str:
    return json.dumps(dataclasses.asdict(answer), indent=2)


def render_why(why: Why, *, width: int, color: bool = False) -> str:
    """The answer as text: what, its proof, its cause, and what to do."""
    states = {'ended': 'Dead', 'running': 'Running', 'completed': 'Completed'}
    lines = [f'{states.get(why.state, "Unknown")}: {why.sentence}']
    for proof in why.proof:
        place = f'line {proof.line}' if proof.line else proof.source
        space = ' ' * (len(place) + 4)
        text = textwrap.wrap(visible(proof.text), max(width - len(space), 40))
        lines.append(f'  {place}  ' + f'\n{space}'.join(text[:_MOST_LINES]))
    rows = []
    if why.cause is not None:
        more = '' if why.cause == why.certainty else f' ({why.certainty})'
        rows.append(('Cause', f'{why.cause}{more}    mmgpu explain {why.cause}'))
    if why.rank is not None:
        rows.append(('Rank', str(why.rank)))
    if why.sample is not None:
        rows.append(('Sample', visible(why.sample)))
    rows += [('' if index else 'Do', text) for index, text in enumerate(why.do)]
    return '\n'.join([*lines, '', *(f'{label:<9} {text}' for label, text in rows)])
