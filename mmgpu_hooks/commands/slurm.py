"""Runs a command as one SLURM job: submits it, shows its output, returns its exit code.

The job is the same command line, in the same folder, environment and Python. Its batch
script becomes the command (``exec``): ``srun`` could bind it to less than the job has,
and signals need no care. ``scancel``, a time limit and a preemption send it SIGTERM,
which ends a command as Ctrl-C does. State and exit code come from ``scontrol``, which
works without accounting.

``sbatch`` takes a first word that is no option for the script to run. With ``--wrap``
before the user's options it refuses such a word, so the job is that, and reads its
script from a file: a word of a command line holds 128 KiB, and many folders are more.

The job is named after the line, so the same line finds it again, also one whose number
``sbatch`` did not print. Standard error is followed in its file; the answer goes to
another one that each start writes anew, so that a requeue leaves no half answer.
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
from mmgpu_hooks.config.files import write_atomic
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
"""Highest number in SLURM's exit codes that is a signal; 125 means out of memory."""

_REFUSED = {
    'array': 'a',
    'chdir': 'D',
    'clusters': 'M',
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

_SAYING = {'help': 'h', 'usage': '', 'version': 'V'}
"""Options of sbatch (and short forms) that print something, and submit no job."""

_VALUELESS = 'HOQVWhksuv'
"""Letters of sbatch's short options without a value, which can be combined."""

_BEFORE_VALUE = rf'-[{_VALUELESS}]*[^\W{_VALUELESS}]|--[^=]+'
"""Regex for options of sbatch whose value may be the next word."""

_CPU_OPTIONS = ('-c', '--cpus-per-', '--exclusive')
_CPU_VARIABLES = ('SBATCH_CPUS_PER_GPU', 'SBATCH_EXCLUSIVE')
_KEPT_VARIABLES = ('SLURM_CONF', 'SLURM_JWT')
_OTHERS_VARIABLES = ('SLURM_', 'SRUN_', 'SQUEUE_', 'SCANCEL_')
"""Prefixes of environment variables that are withheld from SLURM's commands."""
_REFUSED_VARIABLES = ('SBATCH_ARRAY_INX', 'SBATCH_CLUSTERS', 'SBATCH_WAIT')

_LAST = ('--nodes=1', '--ntasks=1')
"""Options of sbatch, put after the user's, for one task on one node."""


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
            cpus = _list_cpus(options, count_cpus())
            folder.mkdir(parents=True, exist_ok=True)
            script = folder / f'{job_name}.sh'
            # paths need not be text
            write_atomic(script, os.fsencode(render_script(command, words, folder)))
            job = _submit(job_name, cpus, options, script, say)
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
        is_value = re.fullmatch(_BEFORE_VALUE, before) is not None
        if word in ('--', ':') or not (word.startswith('-') or is_value):
            raise UserError(
                phrase(
                    "--slurm: expected options of sbatch, such as '-p gpu "
                    "--gres=gpu:1 -t 1:00:00', found {options!r}.",
                    options=word,
                )
            )
    for word in options:
        if _is_one_of(_SAYING, word) or word.endswith('=help'):
            raise UserError(
                phrase(
                    '--slurm: expected options of a job, found {word}, with which '
                    'sbatch submits none; type "sbatch {word}" instead.',
                    word=word,
                )
            )
        if _is_one_of(_REFUSED, word):
            raise UserError(
                phrase(
                    '--slurm: expected options of a single job on this cluster, found '
                    '{word}: this command names the job and its files itself; leave it '
                    'out.',
                    word=word,
                )
            )


def _is_one_of(named: Mapping[str, str], word: str) -> bool:
    """True if a word is or contains one of the given sbatch options, long or short."""
    typed = word.partition('=')[0]
    return any(
        (len(typed) > 3 and f'--{long}'.startswith(typed))
        or (letter and re.match(f'-[{_VALUELESS}]*{letter}', typed))
        for long, letter in named.items()
    )


def _list_cpus(options: Sequence[str], cpus: int | None) -> list[str]:
    """Returns sbatch options that request CPUs, unless the user or the site did."""
    is_said = any(word.startswith(_CPU_OPTIONS) for word in options)
    if cpus is None or is_said or any(name in os.environ for name in _CPU_VARIABLES):
        return []
    return [f'--cpus-per-task={cpus}']


def render_script(command: Sequence[str], words: Sequence[str], folder: Path) -> str:
    """Returns the text of a SLURM job's script, for any shell; no I/O.

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
    return f'fresh=\n{first}exec {line} > {answer}\n'


def _find_job(job_name: str) -> str | None:
    """Finds the number of the user's unfinished SLURM job of a given name, if any."""
    states = 'PENDING,CONFIGURING,RUNNING,SUSPENDED'
    words = ('squeue', '-h', '-u', str(os.getuid()), '-n', job_name, '-t', states)
    found = _expect_answer(_call(*words, '-o', '%A')).split()
    return found[0] if found else None


def _submit(
    job_name: str,
    cpus: Sequence[str],
    options: Sequence[str],
    script: Path,
    say: Callable[[str], None],
) -> str:
    """Submits a SLURM job and returns the job's number.

    Raises:
        UserError: If SLURM does not take it.
    """
    log = f'{str(script.parent).replace("%", "%%")}/%j.err'
    # before the user's options: the last of them may take the next word for its value
    ours = (
        '--parsable',
        f'--wrap=. {shlex.quote(str(script))}',
        f'--job-name={job_name}',
        f'--output={log}',
        f'--error={log}',
        '--open-mode=append',
        # a site may have set SBATCH_EXPORT
        '--export=ALL',
        '--requeue',
    )
    try:
        # of an option that is given twice sbatch takes the last
        done = _call('sbatch', *ours, *cpus, *options, *_LAST)
        job = done.stdout.partition(';')[0].strip()
        if done.returncode or not job.isdigit():
            # it may be there all the same, as after a time-out of the connection
            job = _find_unread(job_name, done, options)
    except KeyboardInterrupt:
        say(
            phrase(
                'stopped while a job was submitted; where SLURM has taken it, it is '
                'cancelled.'
            )
        )
        _cancel(f'--name={job_name}', say)
        raise
    # sites say what a job costs, and the like
    print(done.stderr, end='', file=sys.stderr, flush=True)
    return job


def _find_unread(
    job_name: str, done: subprocess.CompletedProcess[str], options: Sequence[str]
) -> str:
    """Finds the number of a submitted SLURM job if sbatch did not print that number.

    Raises:
        UserError: If there is no such job, with the reason that sbatch gives.
    """
    reason = _last_line(done.stderr or done.stdout)
    try:
        job = _find_job(job_name)
    except UserError as error:
        raise UserError(
            phrase(
                'expected sbatch to submit a job, found "{reason}"; SLURM does not say '
                'whether it has taken the job: the same command, typed again, follows '
                'it then.',
                reason=reason,
            )
        ) from error
    if job is not None:
        return job
    if '--wrap' in reason:
        raise UserError(
            phrase(
                '--slurm: expected options of sbatch alone, found {options!r}, of '
                'which sbatch takes a word for the script to run; take that word out.',
                options=shlex.join(options),
            )
        )
    if _LAST[0] in done.stderr and options:
        raise UserError(
            phrase(
                '--slurm: expected a value behind {option}, found none.',
                option=options[-1],
            )
        )
    if not (done.returncode and done.stderr):
        reason = phrase(
            'expected sbatch to print the number of a job, found {answer!r} and no job '
            'of the name {job_name}.',
            answer=_last_line(done.stdout),
            job_name=job_name,
        )
    raise UserError(reason)


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
            _cancel(job, say)
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


def _cancel(job: str, say: Callable[[str], None]) -> None:
    """Cancels a SLURM job by its number or name; warns if SLURM does not cancel it."""
    done = _call('scancel', f'--user={os.getuid()}', job)
    if done.returncode:
        say(
            phrase(
                'expected SLURM to cancel the job, found "{reason}"; type "scancel '
                '{job}" later.',
                reason=_last_line(done.stderr),
                job=job,
            )
        )


class JobEnding(NamedTuple):
    """Exit code of an ended SLURM job, and whether the job was cut short."""

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


def _call(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs one of SLURM's commands; returns its exit code and output.

    Raises:
        UserError: If it is not there.
    """
    # a job that we may be in has bound itself: its variables would bind the new one
    environ = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_VARIABLES
        or not (name.startswith(_OTHERS_VARIABLES) or name in _REFUSED_VARIABLES)
    }
    # it imports what we can, a checkout's package too
    environ['PYTHONPATH'] = os.pathsep.join(filter(None, sys.path))
    try:
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
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
    lines = [line.strip() for line in text.splitlines()]
    # the reason stands before "Try "sbatch --help" for more information"
    said = [line for line in lines if line and not line.startswith('Try "')]
    return said[-1] if said else phrase('SLURM says nothing')


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
