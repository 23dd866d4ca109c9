"""What went wrong in a training, in a word and a line. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence

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
