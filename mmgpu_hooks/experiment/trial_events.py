"""What a trial's process tells through a pipe: JSON lines, and how it ended."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LOG_NAME = 'training.log'
ENDLESS = 10**9
"""Iterations of a block that nothing but the training's end ends."""

_NO_MEMORY = (
    'out of memory',
    'cannot allocate memory',
    'unable to allocate',
    "can't allocate memory",
    'bus error',
    "no space left on device: '/dev/shm",
    'is killed by signal: killed',
)
"""What CUDA, the C library, NumPy, PyTorch's allocator and its DataLoader say."""

_LONGEST = 300
_TAIL_BYTES = 4096


class TrialChannel:
    """The trial's end: what it tells.

    Args:
        descriptor: The pipe to write to.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, event: str, **body: Any) -> None:
        """Tell one event; a reader that has gone away is no error of the training's."""
        line = json.dumps({'event': event, **body}).encode() + b'\n'
        while line:
            try:
                line = line[os.write(self._descriptor, line) :]
            except BrokenPipeError:
                return


class TrialReader:
    """The other end: what a trial has told.

    The pipe's end of file tells nothing, since workers inherit it: whether the trial
    still lives is for the caller to look at.

    Args:
        descriptor: The pipe to read from.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._text = b''
        self._selector = selectors.DefaultSelector()
        self._selector.register(descriptor, selectors.EVENT_READ)

    def read_events(self, timeout_s: float) -> list[dict[str, Any]]:
        """The events told since, after waiting for one at most so long."""
        if self._selector.select(timeout_s):
            self._text += os.read(self._descriptor, 2**16)
        *lines, self._text = self._text.split(b'\n')
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Close the pipe."""
        self._selector.close()
        os.close(self._descriptor)


def read_events(
    process: subprocess.Popen[Any], reader: TrialReader, log: Path, wait_s: float
) -> list[dict[str, Any]]:
    """What it told since; one that is gone without a word tells ``over`` all the same.

    Args:
        process: Of the trial.
        reader: Of what it tells.
        log: What it prints goes there.
        wait_s: For something to tell, at most.
    """
    code = process.poll()
    # looked at first: what it told before its end is then in the pipe
    events = reader.read_events(0 if code is not None else wait_s)
    if code is not None and not any(e['event'] == 'over' for e in events):
        status, line = classify_exit(code, _read_tail(log))
        events.append({'event': 'over', 'status': status, 'error': line})
    return events


def _read_tail(log: Path) -> list[str]:
    with log.open('rb') as file:
        file.seek(max(file.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
        return file.read().decode('utf-8', 'replace').splitlines()


def classify_error(kind: str, message: str) -> tuple[str, str]:
    """The status of a trial that an exception ended, and the line that says why.

    Args:
        kind: Name of the exception's class.
        message: Its whole text; of an error in a worker, the worker's traceback.

    Returns:
        A status of :data:`~mmgpu_hooks.schema.trial.TRIAL_STATUSES`, and one line.
    """
    if kind in ('KeyboardInterrupt', 'SystemExit'):
        return 'interrupted', _shorten(f'{kind}: {message}'.rstrip(': '))
    decisive = _decisive(message)
    line = decisive if decisive.startswith(kind) else f'{kind}: {decisive}'.rstrip(': ')
    words = f'{kind} {message}'.lower()
    is_memory = kind.endswith('MemoryError')
    if is_memory or any(part in words for part in _NO_MEMORY):
        return 'out_of_memory', _shorten(line)
    return 'failed', _shorten(line)


def classify_exit(code: int, tail: Sequence[str]) -> tuple[str, str]:
    """The same for a process that was gone without a word.

    Args:
        code: Its return code, negative for a signal as :mod:`subprocess` has it.
        tail: The last lines of its log.
    """
    last = next((line.strip() for line in reversed(tail) if line.strip()), '')
    if code == -signal.SIGKILL:
        # nobody else sends it: ours come after the trial has been judged
        return 'out_of_memory', (
            'killed by SIGKILL, which is how the kernel ends a process when the '
            "host's memory runs out"
        )
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f'signal {-code}'
        is_stop = -code in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        return 'interrupted' if is_stop else 'failed', _shorten(f'ended by {name}')
    said = f': {last}' if last else ''
    return 'failed', _shorten(f'ended with exit code {code}{said}')


def _decisive(message: str) -> str:
    """The last line of a traceback, or the first of anything else."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if not lines:
        return ''
    return lines[-1] if 'Traceback (most recent call last)' in message else lines[0]


def _shorten(line: str) -> str:
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + '...'
