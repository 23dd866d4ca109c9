"""Runs a trial's training in a child process: starts, steers, pauses and ends it.

A trial is a result, whatever happens in it. It trains the user's config on MMEngine's
Runner, with the settings changed in memory; a crash, a lack of memory or a hang is a
status with the decisive line. It leads a session of its own and is killed with all its
descendants; the kernel kills it too when its parent dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from mmgpu_hooks.config.switches import SWITCHES
from mmgpu_hooks.experiment.children import end_child, signal_group
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.run_folder import EvidenceError, read_run_folder
from mmgpu_hooks.schema.text import Text, phrase, quoted
from mmgpu_hooks.schema.tried import (
    Trial,
    TrialBlock,
    TrialEnd,
    TrialEvent,
    TrialSpec,
)

DEFAULT_TIME_LIMIT_S = 600.0
ENDLESS = 10**9
"""Number of iterations of a block that is longer than any training."""
LOG_NAME = 'training.log'
EVENTS_NAME = 'events.jsonl'
"""File name for the reports that a trial's process writes.

It has a JSON line per block of iterations, and one at the end."""

_POLL_S = 0.05
_LONGEST_REASON = 300


class RunningTrial:
    """Trial (a short training) that runs in a child process until it is closed.

    The process leads a session, so that one signal holds or ends it and its workers.

    Args:
        spec: What to train; nothing before it is sent a block.

    Raises:
        OSError: If its folder or its process cannot be made.
    """

    def __init__(self, spec: TrialSpec) -> None:
        folder = Path(spec.folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._log, self._events = folder / LOG_NAME, folder / EVENTS_NAME
        self._events.write_bytes(b'')
        self._offset = 0
        # its own config says whether it has the hook
        inherited = {
            name: value for name, value in os.environ.items() if name not in SWITCHES
        }
        with self._log.open('wb') as log:
            self._process = subprocess.Popen(
                build_command(spec, os.getpid()),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **inherited,
                    # it imports what we can, a checkout's package too
                    'PYTHONPATH': os.pathsep.join(filter(None, sys.path)),
                    # what was printed before a kill is in the log
                    'PYTHONUNBUFFERED': '1',
                },
                # Ctrl-C is for us alone
                start_new_session=True,
            )

    def send(self, iterations: int) -> None:
        """Sends the trial the number of iterations of one more block to train."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b'%d\n' % iterations)
            self._process.stdin.flush()

    def finish(self) -> None:
        """Lets the trial end by itself once the blocks sent so far are trained."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def hold(self) -> None:
        """Pauses the trial and its workers (SIGSTOP) until `resume`."""
        signal_group(self._process, signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a paused trial continue (SIGCONT)."""
        signal_group(self._process, signal.SIGCONT)

    def read_events(self) -> list[TrialEvent]:
        """Returns the trial's new reports; waits a moment if there are none.

        A trial that is gone without a report gives its end all the same.
        """
        code = self._process.poll()
        with self._events.open('rb') as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b'\n')
        self._offset += len(whole) + len(newline)
        events = [parse_event(line) for line in whole.splitlines()]
        is_reported = any(isinstance(event, TrialEnd) for event in events)
        if code is not None and not is_reported:
            events.append(classify_exit(code, self._read_last_line()))
        if not events:
            time.sleep(_POLL_S)
        return events

    def read_cpu_s(self) -> float:
        """Returns the CPU seconds that the trial and its descendants used so far."""
        return read_tree_cpu_s(self._process.pid)

    def close(self) -> None:
        """Kills the trial with all its descendants, and waits until they are gone.

        What the kernel cannot end within seconds is left to it.
        """
        end_child(self._process)
        self.finish()

    def _read_last_line(self) -> str:
        lines = self._log.read_text('utf-8', 'replace').splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), '')


def build_command(spec: TrialSpec, parent: int) -> list[str]:
    """Returns a trial's command line: Python, or torchrun for several ranks.

    Args:
        spec: What to train.
        parent: Process id of the one that starts it.
    """
    body = json.dumps({'spec': asdict(spec), 'parent': parent})
    child = ['-m', 'mmgpu_hooks.experiment.trial_child', body]
    if spec.ranks == 1:
        return [sys.executable, *child]
    # standalone: a port of its own, so that trials on one host do not meet
    torchrun = ['-m', 'torch.distributed.run', '--standalone']
    return [sys.executable, *torchrun, f'--nproc-per-node={spec.ranks}', *child]


def read_tree_cpu_s(pid: int | None = None) -> float:
    """Returns the CPU seconds so far of a process and its descendants, ended ones too.

    Args:
        pid: Of the process; by default this one. Of one that is gone it is 0.
    """
    import psutil

    total_s = 0.0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total_s += times.user + times.system
                total_s += times.children_user + times.children_system
    return total_s


def render_event(event: TrialEvent) -> str:
    """Encodes a trial's report as one line of its reports file.

    By json, since the text of an error may hold bytes of a path that is not UTF-8.
    """
    return json.dumps(msgspec.to_builtins(event)) + '\n'


def parse_event(line: bytes) -> TrialEvent:
    """Parses one line of a trial's reports file."""
    event: TrialEvent = msgspec.convert(json.loads(line), TrialEvent)
    return event


def classify_exit(code: int, last_line: str) -> TrialEnd:
    """Classifies by exit code how a trial that sent no final report ended.

    Args:
        code: Its return code, negative for a signal as :mod:`subprocess` has it.
        last_line: Of its log.
    """
    if code == -signal.SIGKILL:
        # ours come after the trial has been judged
        killed = phrase(
            'killed by SIGKILL, which is how the kernel ends a process when the '
            "host's memory runs out"
        )
        return TrialEnd('out_of_memory', killed)
    if code < 0:
        name = signal.strsignal(-code)
        ended = phrase('ended by signal {number} ({name})', number=-code, name=name)
        return TrialEnd('failed', ended)
    ended = phrase('ended with exit code {code}', code=code)
    if last_line:
        ended = phrase(
            '{ended}: {last_line}', ended=ended, last_line=shorten(last_line)
        )
    return TrialEnd('failed', ended)


def shorten(line: str) -> str:
    """Cuts an error message to a maximum number of characters."""
    if len(line) <= _LONGEST_REASON:
        return line
    return line[: _LONGEST_REASON - 3] + '...'


@dataclass
class Progress:
    """Progress of a trial (short training) by its reports, and how it ended."""

    folder: Path
    status: str = 'timed_out'
    error: Text | None = None
    seconds: float = 0.0
    iterations: int = 0
    blocks: list[TrialBlock] = field(default_factory=list)
    is_over: bool = False
    """True if the trial's process has ended."""
    is_enough: bool = False
    """True if the trial was told to train no more iterations."""
    first_block_s: float | None = None
    """Seconds from the trial's start to the end of its first block of iterations."""
    save_error: str | None = None
    """Error that ended the training during the trial's final checkpoint saves."""

    @property
    def measured_s(self) -> float:
        """Seconds since the trial's first block of iterations ended; 0 before."""
        return 0.0 if self.first_block_s is None else self.seconds - self.first_block_s

    @property
    def measured(self) -> int:
        """Number of iterations timed in the trial's blocks, final saves excluded."""
        return sum(len(block.seconds) for block in self.blocks)

    def add(self, event: TrialEvent) -> None:
        """Updates the progress by one report of the trial: a block, or its end."""
        if isinstance(event, TrialEnd):
            self.is_over = True
            self.status = event.status
            self.error = None if event.error is None else quoted(event.error)
            self.save_error = event.save_error
            self.iterations = max(event.iterations, self.iterations)
            return
        self.blocks.append(event)
        self.iterations += len(event.seconds)
        if self.first_block_s is None:
            self.first_block_s = self.seconds

    def end(self, name: str, time_limit_s: float) -> Trial:
        """Returns the record of an ended trial, without measured values yet."""
        if self.status == 'timed_out':
            done = self.iterations
            self.error = phrase(
                'killed after {time_limit_s:g} s, {done} iterations done',
                time_limit_s=time_limit_s,
                done=done,
            )
        return Trial(
            name=name,
            status=self.status,
            error=self.error,
            seconds=self.seconds,
            iterations=self.iterations,
            folder=str(self.folder),
        )


def read_trial_run(folder: Path) -> Run | None:
    """Reads a trial's evidence file as far as it is written; ``None`` if unreadable."""
    try:
        path = read_run_folder(folder).evidence
        return Run.read(path) if path is not None else None
    except EvidenceError:
        return None
