"""Starts and queries the child processes that judge or tune this training.

One writes the recommended config at the end, and is waited for. Others judge the run so
far, once in about an hour, with the lowest priority, and nobody waits for them. Where
the loader is to be tuned, one more is asked again and again, until there is nothing
more to gain.

A package of its own, above everything that judges and edits configs, below the hook
that asks: so the hook imports no command, and no command a hook. The child is started
by ``exec`` in a fresh interpreter: a training has threads and a CUDA context, which a
fork would break, and must not import what MMEngine's configs import. It sees no card.

The config of the end is made in another process since a config is a program and may
import anything: the training process does not load it again. The child judges the
evidence with the code of ``mmgpu recommend`` and answers with one JSON record, which
the summary shows; the parent kills it after 10 s with all that it started, and the
kernel does when the parent dies. The hook starts it at the end of its loop and not in
``after_run``: there hooks of MMEngine copy the log and the run's folder away, with the
summary and the config.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from mmgpu_hooks.experiment.children import end_child, signal_group
from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.measure.memory import read_free_bytes
from mmgpu_hooks.schema.judged import RunAdvice
from mmgpu_hooks.schema.recorded import VerdictRecord
from mmgpu_hooks.schema.run_folder import read_run_folder
from mmgpu_hooks.schema.text import decode_text, phrase
from mmgpu_hooks.schema.tuning import TuneAnswer, TuneQuestion

_LIMIT_S = 10.0
"""Time limit in seconds for the child process that judges a finished run."""
HOURLY_LIMIT_S = 120
"""Time limit in seconds for the child process that judges a running training.

It runs on spare CPU.
"""
_GONE_WITHIN_S = 1.0
"""Longest wait in seconds for a killed child process to end."""
_MEMORY_FACTOR = 5
"""Bytes of memory that judging takes in a child process, per byte of evidence file.

1.2 GiB for five days in intervals of a second.
"""
LEAST_FREE_BYTES = 2**30
"""Bytes of memory that must stay free beside a child process that judges a run.

No training is to be killed for the memory of its advice.
"""

_BEGIN = (
    'import atexit, gc, os, sys; '
    'gc.set_threshold(100_000); '
    'sys.path[:] = sys.argv[3:]; '
)
_END = 'atexit._run_exitfuncs(); os._exit(0)'
_ADVISE = (
    f'{_BEGIN}'
    'from mmgpu_hooks.adviser.child import main; '
    'main(sys.argv[1], int(sys.argv[2])); '
    f'{_END}'
)
"""Python code that the child process runs to judge a finished run.

Its module path is set before any import and is the parent's: a script's own folder is
in it, and the current one, which Python adds, may not be. Collecting garbage would take
a tenth of the time of so short a process, and freeing all that was imported another.
"""
_JUDGE = (
    # before anything is imported, which takes most of its time
    'import os, signal; '
    'os.nice(19); '
    'signal.signal(signal.SIGALRM, signal.SIG_DFL); '
    'signal.alarm({limit_s}); '
    f'{_BEGIN}'
    'from mmgpu_hooks.adviser.child import judge_while_training; '
    'judge_while_training(sys.argv[1], int(sys.argv[2]), {is_commented}); '
    f'{_END}'
)


_TUNE = (
    # it is to answer soon, also where workers have all cores
    'import os; '
    'os.nice({nice}); '
    f'{_BEGIN}'
    'from mmgpu_hooks.adviser.tuning_child import tune_while_training; '
    'tune_while_training(sys.argv[1], int(sys.argv[2])); '
    f'{_END}'
)
TUNER_NICE = 5
"""Nice value of the child process that proposes loader settings.

Its answer is worth more than the core it takes.
"""
ANSWER_LIMIT_S = 120.0
"""Time limit in seconds for one answer of the child process that tunes the loader.

The first includes all imports.
"""


def ask_adviser(evidence: Path, limit_s: float = _LIMIT_S) -> RunAdvice:
    """Has a child process judge a finished run and write a config; returns its advice.

    Args:
        evidence: Of rank 0, complete.
        limit_s: Seconds until the child and all that it started are killed.

    Returns:
        Its answer; where there is none, the reason. Nothing is raised for what the
        child does, or where it cannot be started; Ctrl-C ends the child alone.
    """
    if read_run_folder(evidence).config_copy is None:
        return RunAdvice(reason=phrase("no copy of the config in the run's folder"))
    try:
        child = _start(_ADVISE, evidence)
    except SourceError as error:
        return RunAdvice(reason=error.said)
    try:
        answer, _ = child.communicate(timeout=limit_s)
        return msgspec.json.decode(answer, type=RunAdvice, dec_hook=decode_text)
    except subprocess.TimeoutExpired:
        return RunAdvice(
            reason=phrase('it took longer than {limit_s:g} s', limit_s=limit_s)
        )
    except KeyboardInterrupt:
        # the training is completed, and goes on as one without advice
        return RunAdvice(reason=phrase('Ctrl-C ended the process that writes it'))
    except msgspec.DecodeError:
        said = phrase('its process gave an answer that cannot be read')
        if child.returncode:
            said = phrase(
                'its process ended with exit code {exit_code}',
                exit_code=child.returncode,
            )
        return RunAdvice(reason=said)
    finally:
        if child.returncode is None:
            end_child(child, _GONE_WITHIN_S)
        else:
            # what it left behind if it died; its number stays that of its own group,
            # never of ours, while anything of it is there
            signal_group(child, signal.SIGKILL)
        if child.stdout is not None:
            child.stdout.close()


class HourlyAdviser:
    """Child process that judges a running training once; its verdict is read later.

    Args:
        evidence: Of rank 0, as far as it is written.
        is_commented: True if the verdict also goes into the comment of SLURM's job.
        limit_s: Whole seconds until the kernel ends the child.

    Raises:
        SourceError: If memory is short, or the child cannot be started.
    """

    def __init__(
        self,
        evidence: Path,
        *,
        is_commented: bool = False,
        limit_s: int = HOURLY_LIMIT_S,
    ) -> None:
        self._limit_s = limit_s
        program = _JUDGE.format(is_commented=is_commented, limit_s=limit_s)
        self._child = _start(program, evidence)

    @property
    def is_over(self) -> bool:
        """True if the judging child process has ended; the call takes a microsecond."""
        return self._child.poll() is not None

    def read(self) -> VerdictRecord:
        """Returns the verdict record that the ended child process printed.

        Raises:
            SourceError: If it gave none.
        """
        stream = self._child.stdout
        assert stream is not None
        with stream:
            answer = stream.read()
        try:
            return msgspec.json.decode(answer, type=VerdictRecord)
        except msgspec.DecodeError:
            code = self._child.returncode
            said = phrase(
                'its process ended with exit code {exit_code}', exit_code=code
            )
            if code == -signal.SIGALRM:
                said = phrase(
                    'it took longer than {limit_s:g} s', limit_s=self._limit_s
                )
            raise SourceError(said) from None

    def end(self) -> None:
        """Kills the child process that judges, if it still runs."""
        if not self.is_over:
            end_child(self._child, _GONE_WITHIN_S)
        if self._child.stdout is not None:
            self._child.stdout.close()


class TuningAdviser:
    """Child process that proposes loader settings during training.

    It is never waited for. Asking and looking for an answer take some 10 us each.

    Args:
        evidence: Of rank 0, as far as it is written.
        limit_s: Seconds for one answer.
        clock: Monotonic, in seconds.

    Raises:
        SourceError: If memory is short, or the child cannot be started.
    """

    def __init__(
        self,
        evidence: Path,
        *,
        limit_s: float = ANSWER_LIMIT_S,
        clock: Clock = monotonic_s,
    ) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._asked_s: float | None = None
        self._read = b''
        program = _TUNE.format(nice=TUNER_NICE)
        self._child = _start(program, evidence, stdin=subprocess.PIPE)
        assert self._child.stdout is not None
        os.set_blocking(self._child.stdout.fileno(), False)

    @property
    def is_free(self) -> bool:
        """True if the child process has answered every question sent so far."""
        return self._asked_s is None

    def ask(self, question: TuneQuestion) -> None:
        """Sends a `TuneQuestion` on loader settings to the child process.

        Raises:
            SourceError: If the child has ended.
        """
        stream = self._child.stdin
        assert stream is not None
        try:
            # far less than a pipe holds, and the last question has been read
            os.write(stream.fileno(), msgspec.json.encode(question) + b'\n')
        except OSError:
            raise self._describe_end() from None
        self._asked_s = self._clock()

    def read(self) -> TuneAnswer | None:
        """Returns the child's `TuneAnswer` on loader settings; ``None`` while pending.

        Raises:
            SourceError: If the child has ended, or takes too long.
        """
        stream = self._child.stdout
        assert stream is not None
        if self._asked_s is None:
            return None
        with contextlib.suppress(BlockingIOError):
            while part := os.read(stream.fileno(), 2**16):
                self._read += part
            if not self._read.endswith(b'\n'):
                raise self._describe_end()
        if self._read.endswith(b'\n'):
            answer, self._read, self._asked_s = self._read, b'', None
            return msgspec.json.decode(answer, type=TuneAnswer, dec_hook=decode_text)
        if self._clock() - self._asked_s > self._limit_s:
            raise SourceError(
                phrase(
                    'an answer took longer than {limit_s:g} s', limit_s=self._limit_s
                )
            )
        return None

    def _describe_end(self) -> SourceError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_GONE_WITHIN_S)
        code = self._child.returncode
        return SourceError(
            phrase('its process ended with exit code {exit_code}', exit_code=code)
        )

    def dismiss(self) -> None:
        """Asks the tuning child process to exit without waiting (`end` must follow)."""
        self._child.terminate()

    def end(self) -> None:
        """Ends the child process that tunes; does nothing if it has already ended."""
        if self._child.poll() is None:
            end_child(self._child, _GONE_WITHIN_S)
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                stream.close()


def _start(
    program: str, evidence: Path, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Starts a child process that judges or tunes a run, unless memory is short.

    Raises:
        SourceError: If there is not, or it cannot be started.
    """
    if not hasattr(os, 'killpg'):  # Windows
        raise SourceError(
            phrase('this system could not end it with all that it starts')
        )
    free = read_free_bytes()
    try:
        needed = _MEMORY_FACTOR * evidence.stat().st_size
        if free is not None and free < LEAST_FREE_BYTES + needed:
            raise SourceError(phrase('less than 1 GiB of memory would stay free'))
        return _open(program, evidence, stdin)
    except (OSError, ValueError) as error:
        said = getattr(error, 'strerror', None) or error
        raise SourceError(
            phrase('no process could be started ({error})', error=said)
        ) from error


def _open(program: str, evidence: Path, stdin: int) -> subprocess.Popen[bytes]:
    words = [str(evidence), str(os.getpid()), *map(str, sys.path)]
    return subprocess.Popen(
        [sys.executable, '-c', program, *words],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={
            **os.environ,
            'CUDA_VISIBLE_DEVICES': '',
            # ROCm ignores an empty value
            'HIP_VISIBLE_DEVICES': '-1',
            # small arrays: threads would only be started
            'OMP_NUM_THREADS': '1',
            'OPENBLAS_NUM_THREADS': '1',
        },
        # one signal ends it with its children, and Ctrl-C is for us alone
        start_new_session=True,
    )
