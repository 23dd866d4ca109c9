"""``mmgpu why``: explains why a run failed or hangs."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import IO, BinaryIO, cast

import click

from mmgpu_hooks.adviser.why import judge_run, judge_start
from mmgpu_hooks.commands import options
from mmgpu_hooks.commands.output import print_answer, show_progress, warner
from mmgpu_hooks.judge.causes import CERTAINTIES
from mmgpu_hooks.judge.console_log import MOST_LOG_BYTES, ConsoleLog, read_log
from mmgpu_hooks.judge.ranks import describe_missing, find_difference
from mmgpu_hooks.judge.why import NamedLog, judge_end
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.figures import format_bytes
from mmgpu_hooks.schema.judged import Why
from mmgpu_hooks.schema.regular import open_regular
from mmgpu_hooks.schema.run import read_evidence, read_other_ranks
from mmgpu_hooks.schema.run_folder import (
    EVIDENCE_NAME,
    Attempt,
    EvidenceError,
    RunFiles,
    find_attempt,
    find_log,
    find_other_ranks,
    find_start_files,
    read_run_folder,
    read_start_time,
)
from mmgpu_hooks.schema.text import Text, phrase, quoted, sentences
from mmgpu_hooks.show.document import BLANK, Fact, Section, to_json
from mmgpu_hooks.show.text import shell_path, short_path

_MOST_LETTERS = 240
"""Maximum number of characters printed of a quoted line of a log."""
_OF_EVIDENCE = '.json', '.jsonl'
_MOST_OF_PIPE, _MOST_OF_FILE = 2**30, 8 * 2**30
"""Largest size in bytes of a log that is accepted: from a pipe, and from a file.

Lines count from the start of the log.
"""
_TIMED_BYTES = 2**20
_TIME = re.compile(rb'((?:\d{4}/)?\d\d/\d\d \d\d:\d\d:\d\d) - \w+ - ')
"""Regex for the timestamp at the start of MMEngine's log lines, with optional year."""
_STATES = {
    'ended': phrase('Dead'),
    'running': phrase('Running'),
    'completed': phrase('Completed'),
}
_UNKNOWN = phrase('Unknown')
_SOURCES = {
    'console': phrase('console'),
    'evidence': phrase('evidence'),
    'host': phrase('host'),
    'kernel': phrase('kernel'),
    'log': phrase('log'),
    'watchdog': phrase('watchdog'),
}


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
            phrase('expected the work_dir of a training or --log FILE, found neither.')
        )
    # anything that is there and no folder is a log: a file, a pipe of the shell's
    is_log = work_dir is not None and work_dir.suffix not in _OF_EVIDENCE
    if work_dir is not None and log is None and is_log and _is_no_folder(work_dir):
        work_dir, log = None, str(work_dir)
    answer = _explain(work_dir, log)
    print_answer(answer, form, _describe, lambda found: to_json(**vars(found)))


def _is_no_folder(path: Path) -> bool:
    return path.exists() and not path.is_dir()


def _explain(work_dir: Path | None, log: str | None) -> Why:
    """Judges why a run ended badly or hangs, by its folder, console output or both."""
    console = None if log is None else _read_console(log)
    if work_dir is None:
        return judge_end(_list_logs(console, []))
    try:
        files = read_run_folder(work_dir)
    except EvidenceError:
        attempt = find_attempt(work_dir)
        if attempt is not None:
            return _judge_attempt(attempt, console)
        found = find_log(work_dir)
        logs = _list_logs(console, [found] if found else _find_any_logs(work_dir))
        if not logs:
            raise
        return judge_end(logs)
    began = read_start_time(files.run_folder)
    attempt = files.newer_attempt
    if attempt is None:
        if console is not None and _is_before(console, began):
            ignored = phrase(
                'left out {log}: it ends before the run began. To judge an older run, '
                'name its own folder.',
                log=log,
            )
            warner('why')(ignored)
            console = None
        return _judge_run(files, console)
    name = attempt.folder.name
    if console is not None and _is_before(console, read_start_time(attempt.folder)):
        ask = f'mmgpu why {shell_path(str(attempt.folder))}'
        note = phrase(
            'A newer attempt, {attempt}, left no evidence: {command}',
            attempt=name,
            command=ask,
        )
        why = _judge_run(files, console)
        return replace(why, notes=(*why.notes, note))
    why = _judge_attempt(attempt, console)
    earlier = files.run_folder.absolute().name
    try:
        older = _judge_run(files, None)
    except EvidenceError as error:
        note = phrase(
            'The run before it, {run}, cannot be judged: {error}',
            run=earlier,
            error=error.said,
        )
    else:
        before = phrase(
            'The run before it, {run}: {state}.',
            run=earlier,
            state=_STATES.get(older.state, _UNKNOWN),
        )
        note = sentences(before, older.sentence)
    return replace(why, notes=(*why.notes, note))


def _judge_attempt(attempt: Attempt, console: _Console | None) -> Why:
    # a rank may be training already
    evidence = attempt.folder / 'vis_data' / EVIDENCE_NAME
    found = [*find_start_files(evidence.parent), *find_other_ranks(evidence)]
    starts = read_other_ranks(found)
    why = judge_start(_list_logs(console, [attempt.log]), starts.ranks)
    why = replace(why, notes=(*why.notes, *starts.notes))
    return _name_run(why, attempt.folder, None)


def _judge_run(files: RunFiles, console: _Console | None) -> Why:
    found = find_log(files.run_folder)
    logs = _list_logs(console, [found] if found else [])
    if files.evidence is None:
        return _name_run(judge_end(logs), files.run_folder, None)
    evidence = read_evidence(files.evidence)
    others = read_other_ranks((*files.other_ranks, *files.starting_ranks))
    ranks, notes = [evidence], list(others.notes)
    for rank in others.ranks:
        difference = find_difference(evidence.run, rank.run)
        if difference is None:
            ranks.append(rank)
            continue
        notes.append(
            phrase(
                '{path} is of another run ({difference}).',
                path=short_path(rank.path),
                difference=difference,
            )
        )
    numbers = {rank.run.rank for rank in ranks}
    notes += describe_missing(evidence.run.world_size, numbers)
    why = judge_run(logs, ranks)
    why = _name_run(why, files.run_folder, evidence.run.started_unix_s)
    return replace(why, notes=(*why.notes, *notes))


def _name_run(why: Why, folder: Path, started_unix_s: float | None) -> Why:
    """Adds a run's folder and start time to the answer of ``mmgpu why``."""
    began = read_start_time(folder)
    if began is None and started_unix_s is not None:
        began = datetime.fromtimestamp(started_unix_s)
    started = None if began is None else f'{began:%Y-%m-%d %H:%M:%S}'
    return replace(why, run=short_path(folder), started=started)


@dataclass(frozen=True)
class _Console:
    """Console output of a run, and the last MMEngine timestamp in it."""

    log: ConsoleLog
    last_time: str | None
    """Last timestamp of MMEngine in the output, as text; ``None`` if it has none."""


def _is_before(console: _Console, began: datetime | None) -> bool:
    """True if console output ended before a run began, by the training host's clock."""
    if began is None or console.last_time is None:
        return False
    last = _parse_time(console.last_time, began)
    return last is not None and last < began


def _parse_time(text: str, near: datetime) -> datetime | None:
    """Parses a timestamp of MMEngine; a missing year is chosen nearest to ``near``.

    Returns:
        ``None`` for digits that are no time.
    """
    years = [near.year - 1, near.year, near.year + 1]
    written = [text] if text.count('/') == 2 else [f'{year}/{text}' for year in years]
    times = []
    for candidate in written:
        # a 29th of February is no day of most years
        with contextlib.suppress(ValueError):
            times.append(datetime.strptime(candidate, '%Y/%m/%d %H:%M:%S'))
    return min(times, key=lambda time: abs(time - near), default=None)


def _list_logs(console: _Console | None, own: Sequence[Path]) -> list[NamedLog]:
    """Reads a run's logs, each named by its source: ``console`` or ``log``.

    Args:
        console: What the user named.
        own: Logs that were found, the likeliest first: the first that can be read
            counts. An empty one is passed over without a word, as a training that has
            just begun leaves it.
    """
    logs = [] if console is None else [NamedLog('console', console.log)]
    for path in own:
        try:
            with open_regular(path) as file:
                if not _measure_size(file):
                    continue
                logs.append(NamedLog('log', _read_log(file, str(path))))
                break
        except OSError as error:
            warner('why')(
                phrase(
                    'left out {path}: {error}.',
                    path=path,
                    error=error.strerror or error,
                )
            )
        except UserError as error:
            warner('why')(phrase('left out a log. {error}', error=error.said))
    return logs


def _find_any_logs(folder: Path) -> list[Path]:
    """Lists a folder's log files not written by MMEngine, in reverse order of names."""
    return sorted((log for log in folder.glob('*.log') if log.is_file()), reverse=True)


def _read_console(name: str) -> _Console:
    """Reads a run's console output from a file, or from a pipe until its end.

    Raises:
        UserError: If it is neither, empty, or too large.
    """
    if name == '-' and sys.stdin is None:
        raise UserError(phrase('--log - reads standard input, which is closed.'))
    shown = phrase('standard input') if name == '-' else name
    try:
        with contextlib.ExitStack() as stack:
            if name == '-':
                file: BinaryIO = sys.stdin.buffer
            else:
                file = stack.enter_context(open_regular(name, or_pipe=True))
            if name == '-' or not os.path.isfile(name):
                spool = stack.enter_context(
                    tempfile.SpooledTemporaryFile(max_size=MOST_LOG_BYTES)
                )
                _spool(file, spool)
                file = cast(BinaryIO, spool)
            last_time = _read_last_time(file)
            return _Console(_read_log(file, shown), last_time)
    except OSError as error:
        raise UserError(
            phrase(
                '{shown}: expected a log that can be read, found {strerror}; name the '
                'file that the console was written to.',
                shown=shown,
                strerror=error.strerror or error,
            )
        ) from None


def _spool(pipe: BinaryIO, spool: IO[bytes]) -> None:
    """Copies a pipe to a temporary file; raises beyond ``_MOST_OF_PIPE`` bytes."""
    while chunk := pipe.read(2**20):
        spool.write(chunk)
        if spool.tell() > _MOST_OF_PIPE:
            most = format_bytes(_MOST_OF_PIPE)
            raise UserError(
                phrase(
                    'expected a log of at most {most} in a pipe, found more; write it '
                    'to a file and name that.',
                    most=most,
                )
            )


def _measure_size(file: BinaryIO) -> int:
    file.seek(0, os.SEEK_END)
    return file.tell()


def _read_last_time(file: BinaryIO) -> str | None:
    """Returns the last timestamp of MMEngine in console output, as text."""
    size = _measure_size(file)
    file.seek(max(size - _TIMED_BYTES, 0))
    times = _TIME.findall(file.read(_TIMED_BYTES))
    return times[-1].decode() if times else None


def _read_log(file: BinaryIO, name: str) -> ConsoleLog:
    """Reads a log file up to its length now, though it may grow meanwhile.

    Raises:
        UserError: If nothing is in it, or too much to be a log.
    """
    size = _measure_size(file)
    if not size:
        raise UserError(
            phrase(
                '{name}: expected a log, found nothing in it to read; name the file '
                'that the console was written to.',
                name=name,
            )
        )
    if size > _MOST_OF_FILE:
        raise UserError(
            phrase(
                '{name}: expected a log of at most {most_of_file_bytes}, found '
                '{size_bytes}; give its end: tail -c 64M FILE | mmgpu why --log -',
                name=name,
                most_of_file_bytes=_MOST_OF_FILE,
                size_bytes=size,
            )
        )
    if size > MOST_LOG_BYTES:
        warner('why')(
            phrase(
                'reading the last {size_bytes} of {name}.',
                size_bytes=MOST_LOG_BYTES,
                name=name,
            )
        )
    file.seek(0)
    with show_progress() as report:
        words = phrase('reading {name}', name=name)
        return read_log(file, size, lambda share: report(words, share, None))


def _describe(answer: Why) -> list[Section]:
    """Makes ``mmgpu why``'s output: how the run ended, evidence, cause, cure."""
    proof = [
        Fact(
            phrase('line {line}', proof)
            if proof.line
            else _SOURCES.get(proof.source) or quoted(proof.source),
            _cut(proof.text),
        )
        for proof in answer.proof
    ]
    cause = None
    if answer.cause is not None:
        cause = phrase('{cause}    mmgpu explain {cause}', answer)
        if answer.cause != answer.certainty:
            certainty = CERTAINTIES[answer.certainty]
            cause = phrase(
                '{cause} ({certainty})    mmgpu explain {cause}',
                answer,
                certainty=certainty,
            )
    run: Text | None = None
    if answer.run:
        run = quoted(Path(answer.run).name)
        if answer.started:
            run = phrase('{run}, started {started}', answer, run=run)
    facts = [
        Fact(phrase('Cause'), cause),
        Fact(phrase('Rank'), answer.rank),
        Fact(phrase('Sample'), answer.sample),
        Fact(phrase('Run'), run),
        *(
            Fact(BLANK if index else phrase('Do'), text)
            for index, text in enumerate(answer.do)
        ),
        *(
            Fact(BLANK if index else phrase('Also'), text)
            for index, text in enumerate(answer.notes)
        ),
    ]
    state = _STATES.get(answer.state, _UNKNOWN)
    title = phrase('{state}: {sentence}', answer, state=state)
    return [Section(title, facts=proof), Section(facts=facts)]


def _cut(words: str) -> str:
    """Cuts text to ``_MOST_LETTERS`` characters, except the package's own sentences."""
    is_ours = isinstance(words, Text) and words.template
    return words if is_ours else words[:_MOST_LETTERS]
