"""Runs a command as one SLURM job: submits it, shows its output, returns its exit code.

The job is the same command line, in the same folder, environment and Python. Its batch
script becomes the command (``exec``): ``srun`` could bind it to less than the job has,
and signals need no care. ``scancel``, a time limit and a preemption send it SIGTERM,
which ends a command as Ctrl-C does. State and exit code come from ``scontrol``, which
works without accounting.

The batch script goes to the standard input of ``sbatch``. The job is named after the
line, so the same line finds it again. Standard error is followed in its file; the
answer goes to another one that each start writes anew, so that a requeue leaves no half
answer.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mmgpu_hooks.commands import exit_codes
from mmgpu_hooks.commands.output import warner
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.text import phrase

FOLDER = Path('work_dirs', 'slurm')
"""Name of the folder, in the working directory, for SLURM jobs' scripts and output."""

_COPY_S = 0.2
_ASK_S, _LONGEST_ASK_S = 2.0, 10.0
"""Shortest and longest interval in seconds between two status queries to SLURM."""

_ENDED = {
    'BOOT_FAIL',
    'CANCELLED',
    'COMPLETED',
    'DEADLINE',
    'FAILED',
    'NODE_FAIL',
    'OUT_OF_MEMORY',
    'PREEMPTED',
    'REVOKED',
    'TIMEOUT',
}
"""Names of the states in which SLURM reports a job that has ended."""

_FORGOTTEN = 'Invalid job id specified'
_LAST_SIGNAL = 64
"""Highest number that SLURM reports for a signal; 125 means out of memory."""

_REFUSED = {
    'array': 'a',
    'chdir': 'D',
    'error': 'e',
    'job-name': 'J',
    'open-mode': '',
    'output': 'o',
    'quiet': 'Q',
    'test-only': '',
    'wait': 'W',
    'wrap': '',
}
"""Options of ``sbatch`` that are refused, as the job's output could be lost."""

_CPU_OPTIONS = ('-c', '--cpus-per-', '--exclusive')
_CPU_VARIABLES = ('SBATCH_CPUS_PER_GPU', 'SBATCH_EXCLUSIVE')
_KEPT_VARIABLES = ('SLURM_CONF', 'SLURM_JWT')


def run_as_job(
    name: str,
    words: Sequence[str],
    options: Sequence[str],
    count_cpus: Callable[[], int | None],
) -> int:
    """Runs a command as a SLURM job or follows its unfinished one; returns exit code.

    Args:
        name: Of the command.
        words: Its arguments, without ``--slurm``.
        options: Of sbatch, as the user gave them.
        count_cpus: Checks the arguments as far as that is possible before a job waits
            for hours, and returns the CPUs that it needs; ``None`` leaves that to
            SLURM.

    Returns:
        The exit code of the command in the job.

    Raises:
        UserError: If there is no SLURM, if it does not take the job, or if it does not
            know any more how the job ended.
        KeyboardInterrupt: On a second Ctrl-C. The first one ends the job.
    """
    _expect_options(options)
    say = warner(name)
    command = [sys.executable, '-m', 'mmgpu_hooks', name]
    folder = FOLDER.absolute()
    digest = hashlib.sha256(repr((command, list(words), os.getcwd())).encode())
    job_name = f'mmgpu-{name}-{digest.hexdigest()[:12]}'
    with _surviving_hangup():
        job = _find_job(job_name)
        if job is not None:
            say(
                phrase(
                    'following job {job}, which this very command has started before; '
                    'its options stay as they were.',
                    job=job,
                )
            )
        else:
            own = [*_list_cpus(options, count_cpus()), *options]
            folder.mkdir(parents=True, exist_ok=True)
            script = render_script(command, words, folder)
            job = _submit(job_name, own, script, folder)
            say(
                phrase(
                    'submitted job {job}; what it prints is in {folder}/{job}.err',
                    job=job,
                    folder=folder,
                )
            )
        return _follow(job, folder, say)


def _expect_options(options: Sequence[str]) -> None:
    """Raises a `UserError` for words that are not allowed options of ``sbatch``."""
    for before, word in zip(('', *options), options):
        # sbatch would take the word for the script to run
        is_value = re.fullmatch(r'-\w|--[^=]+', before) is not None
        if word in ('--', ':') or not (word.startswith('-') or is_value):
            raise UserError(
                phrase(
                    "--slurm: expected options of sbatch, such as '-p gpu "
                    "--gres=gpu:1 -t 1:00:00', found {options!r}.",
                    options=word,
                )
            )
    for word in options:
        typed = word.partition('=')[0]
        for long, letter in _REFUSED.items():
            is_long = len(typed) > 3 and f'--{long}'.startswith(typed)
            if is_long or (letter and typed.startswith(f'-{letter}')):
                raise UserError(
                    phrase(
                        '--slurm: expected options of a single job, found {word}: this '
                        'command names the job and its files itself; leave it out.',
                        word=word,
                    )
                )


def _list_cpus(options: Sequence[str], cpus: int | None) -> list[str]:
    """Options of sbatch that request CPUs, unless the user or the site sets them."""
    is_said = any(word.startswith(_CPU_OPTIONS) for word in options)
    if cpus is None or is_said or any(name in os.environ for name in _CPU_VARIABLES):
        return []
    return [f'--cpus-per-task={cpus}']


def render_script(command: Sequence[str], words: Sequence[str], folder: Path) -> str:
    """Returns the text of a SLURM job's batch script; no I/O.

    A start that a requeue cut short must leave no half answer before the whole one, so
    each start writes a new one. It must not forget what it has measured either:
    ``--fresh`` is for the first start alone.

    Args:
        command: The program and the name of the command.
        words: Its arguments.
        folder: Gets ``JOB.out``.
    """
    first, others = '', list(words)
    if '--fresh' in words:
        others.remove('--fresh')
        first = '[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || fresh=--fresh\n'
    answer = f'{shlex.quote(str(folder))}/"$SLURM_JOB_ID".out'
    line = f'{shlex.join(command)} $fresh {shlex.join(others)}'
    return f'#!/bin/bash\nfresh=\n{first}exec {line} > {answer}\n'


def _find_job(job_name: str) -> str | None:
    """Finds the number of the user's unfinished SLURM job of a given name, if any."""
    states = 'PENDING,CONFIGURING,RUNNING,SUSPENDED'
    words = ('squeue', '-h', '-u', str(os.getuid()), '-n', job_name, '-t', states)
    found = _expect_answer(_call(*words, '-o', '%A')).split()
    return found[0] if found else None


def _submit(job_name: str, options: Sequence[str], script: str, folder: Path) -> str:
    """Submits a SLURM job and returns the job's number.

    Raises:
        UserError: If SLURM does not take it.
    """
    log = f'{str(folder).replace("%", "%%")}/%j.err'
    # of an option that is given twice sbatch takes the last
    ours = (
        '--parsable',
        f'--job-name={job_name}',
        f'--output={log}',
        f'--error={log}',
        '--open-mode=append',
        # settings are compared on one node
        '--nodes=1',
        '--ntasks=1',
    )
    try:
        done = _call('sbatch', '--requeue', *options, *ours, text=script)
    except KeyboardInterrupt:
        # it may have been taken
        _call('scancel', f'--user={os.getuid()}', f'--name={job_name}')
        raise
    answer = _expect_answer(done).split(';')[0].strip()
    # sites say what a job costs, and the like
    print(done.stderr, end='', file=sys.stderr, flush=True)
    if not answer.isdigit():
        raise UserError(
            phrase(
                'expected sbatch to print the number of a job, found {answer!r}.',
                answer=answer,
            )
        )
    return answer


def _follow(job: str, folder: Path, say: Callable[[str], None]) -> int:
    """Prints a job's output until the job has ended; returns the exit code."""
    log, watch = _Log(folder / f'{job}.err'), _Watch(job, say)
    is_cancelled = False
    while not watch.has_ended:
        try:
            watch.ask()
            log.show()
            if not watch.has_ended:
                time.sleep(_COPY_S)
        except KeyboardInterrupt:
            if is_cancelled:
                raise
            is_cancelled = True
            say(phrase('cancelling job {job}; what it has measured is kept.', job=job))
            _call('scancel', job)
            watch.hurry()
    log.show(is_whole=True)
    answer = folder / f'{job}.out'
    with contextlib.suppress(FileNotFoundError):
        print(answer.read_text(errors='replace'), end='', flush=True)
    if watch.is_forgotten:
        raise UserError(
            phrase(
                'expected SLURM to say how job {job} ended, found that it has '
                'forgotten the job; all that it printed is above, and in {folder}.',
                job=job,
                folder=folder,
            )
        )
    if watch.state in ('COMPLETED', 'FAILED') and not answer.exists():
        raise UserError(
            phrase(
                'expected the answer of job {job} in {answer}, found no such file; is '
                'the working directory shared with the nodes?',
                job=job,
                answer=answer,
            )
        )
    ending = read_ending(watch.known)
    if ending.is_cut_short:
        say(
            phrase(
                'job {job} ended as {state}{reason}; the same command goes on from '
                'what is stored.',
                job=job,
                state=watch.state,
                reason=watch.reason,
            )
        )
    return ending.exit_code


class JobEnding(NamedTuple):
    """Exit code of an ended SLURM job, and if the job was cut short."""

    exit_code: int
    """Exit code as a shell reports it: 128 plus the signal for a killed job."""
    is_cut_short: bool
    """True if SLURM ended the job before its command did, as at a time limit."""


def read_ending(job: Mapping[str, str]) -> JobEnding:
    """Parses how a job ended from the output of ``scontrol show job``."""
    state = job['JobState']
    code, _, number = job.get('ExitCode', '0:0').partition(':')
    ended, killed = int(code), int(number or 0)
    if state == 'COMPLETED':
        return JobEnding(ended, False)
    if state == 'FAILED' and ended and not killed:
        return JobEnding(ended, False)
    if 0 < killed <= _LAST_SIGNAL:
        return JobEnding(128 + killed, True)
    return JobEnding(ended or exit_codes.INTERRUPTED, True)


class _Watch:
    """Polls SLURM for a job's state at intervals, and prints each change.

    Args:
        job: Its number.
        say: Prints a sentence.
    """

    def __init__(self, job: str, say: Callable[[str], None]) -> None:
        self._job, self._say = job, say
        self._begun_s, self._due_s = time.monotonic(), 0.0
        self._said = ''
        self.known: Mapping[str, str] = {}
        self.is_forgotten = False

    @property
    def state(self) -> str:
        return self.known.get('JobState', '')

    @property
    def reason(self) -> str:
        reason = self.known.get('Reason', 'None')
        return '' if reason in ('None', '') else f' ({reason})'

    @property
    def has_ended(self) -> bool:
        return self.is_forgotten or self.state in _ENDED

    def hurry(self) -> None:
        """Makes the next call of `ask` query SLURM at once, before its usual time."""
        self._due_s = 0.0

    def ask(self) -> None:
        """Queries SLURM for the job's state if that is due, and prints changes."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        done = _call('scontrol', 'show', 'job', '-o', self._job)
        waited_s = now_s - self._begun_s
        self._due_s = now_s + min(_ASK_S + waited_s / 100, _LONGEST_ASK_S)
        if done.returncode:
            self.is_forgotten = _FORGOTTEN in done.stderr
            if not self.is_forgotten:
                self._tell(
                    phrase(
                        'SLURM does not answer ({last_line})',
                        last_line=_last_line(done.stderr),
                    )
                )
            return
        # a comment of the user's comes later and may look like anything
        pairs = re.findall(r'(\w+)=(\S*)', done.stdout)
        self.known = dict(reversed(pairs))
        if self.state == 'PENDING':
            self._tell(phrase('PENDING{reason}', self))
        elif self.state == 'RUNNING':
            self._tell(
                phrase(
                    'RUNNING on {node}',
                    node=self.known.get('NodeList') or phrase('a node'),
                )
            )
        elif self.state not in ('COMPLETING', 'COMPLETED', 'FAILED'):
            self._tell(self.state)

    def _tell(self, words: str) -> None:
        if words != self._said:
            self._said = words
            self._say(phrase('job {job}: {words}', job=self._job, words=words))


class _Log:
    """Copies a job's growing error output, by whole lines, to standard error."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def show(self, *, is_whole: bool = False) -> None:
        """Copies the new lines of the job's error output to standard error.

        Args:
            is_whole: True if nothing will follow: a last line may lack its end.
        """
        with contextlib.suppress(FileNotFoundError), self._path.open('rb') as file:
            file.seek(self._offset)
            new = file.read()
            if not is_whole:
                new = new[: new.rfind(b'\n') + 1]
            self._offset += len(new)
            if new:
                text = new.decode('utf-8', 'replace')
                print(text, end='', file=sys.stderr, flush=True)


def _call(*words: str, text: str = '') -> subprocess.CompletedProcess[str]:
    """Runs one of SLURM's commands; returns its exit code and output.

    Raises:
        UserError: If it is not there.
    """
    # a job that we may be in has bound itself: its variables would bind the new one
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(('SLURM_', 'SRUN_')) or name in _KEPT_VARIABLES
    }
    # it imports what we can, a checkout's package too
    environ['PYTHONPATH'] = os.pathsep.join(filter(None, sys.path))
    try:
        return subprocess.run(
            words,
            input=text,
            capture_output=True,
            text=True,
            errors='replace',
            env=environ,
            # Ctrl-C is for us alone
            start_new_session=True,
        )
    except OSError as error:
        raise UserError(
            phrase(
                '--slurm: expected the command {words}, found no SLURM on {node}; '
                'leave --slurm out, or type it where sbatch works.',
                words=words[0],
                node=platform.node(),
            )
        ) from error


def _expect_answer(done: subprocess.CompletedProcess[str]) -> str:
    """Returns a SLURM command's standard output; raises a `UserError` if it failed."""
    if done.returncode:
        raise UserError(_last_line(done.stderr or done.stdout))
    return done.stdout


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else phrase('SLURM says nothing')


@contextlib.contextmanager
def _surviving_hangup() -> Iterator[None]:
    """Context in which SIGHUP ends this process but does not cancel the SLURM job."""
    before = signal.getsignal(signal.SIGHUP)
    if before is signal.SIG_IGN:  # nohup
        yield
        return
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
