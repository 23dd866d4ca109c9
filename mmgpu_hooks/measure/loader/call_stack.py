"""Where a process stands in its Python code, asked for from outside.

`faulthandler` prints the stack on a signal even where C code holds Python's lock. It
prints into memory of the process's own, which the one who asks reads through ``/proc``.
Nobody is asked who did not say that the signal is safe: unprepared, it would kill.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import signal
import time
from operator import or_
from pathlib import Path
from typing import NamedTuple

_PROC = Path('/proc')
_MOST_BYTES = 65_536
_PATIENCE_S, _STEP_S = 0.5, 0.01
_FROM_TOP = 4
"""Real-time signals are taken from the highest down; the highest are others' first."""

_held: list[int] = []
"""Descriptors that faulthandler writes to: they must stay open."""


class StackSignal(NamedTuple):
    """How a process is asked for its stack."""

    number: int
    descriptor: int
    """Of the process asked: what it prints into."""


def offer_stack() -> StackSignal | None:
    """Have this process print its stack when it is asked.

    Returns:
        How to ask; ``None`` where no signal is free, or the platform has none.
    """
    number = _find_free_signal()
    if number is None or not hasattr(os, 'memfd_create'):
        return None
    descriptor = os.memfd_create('mmgpu_hooks-stack')
    faulthandler.register(number, file=descriptor, all_threads=False)
    _held.append(descriptor)
    return StackSignal(number, descriptor)


def _find_free_signal() -> int | None:
    """A real-time signal that nobody handles, ignores or blocks."""
    taken = _read_mask(os.getpid(), 'SigCgt', 'SigIgn', 'SigBlk')
    if taken is None:
        return None
    for number in range(signal.SIGRTMAX - _FROM_TOP, signal.SIGRTMIN, -1):
        if not taken >> (number - 1) & 1:
            return number
    return None


def _read_mask(pid: int, *names: str) -> int | None:
    try:
        lines = (_PROC / str(pid) / 'status').read_text('ascii', 'replace').splitlines()
        masks = dict(line.split(':\t', 1) for line in lines if line.startswith('Sig'))
        return functools.reduce(or_, (int(masks[name], 16) for name in names))
    except (OSError, KeyError, ValueError):
        return None


def ask_stack(pid: int, how: StackSignal) -> tuple[str, ...]:
    """The Python calls in which a process stands, the innermost first.

    Args:
        pid: A process that called :func:`offer_stack`.
        how: What that returned.

    Returns:
        ``file:line in function`` each; empty when the process does not answer, as in
        an uninterruptible sleep or when it was stopped.
    """
    handled = _read_mask(pid, 'SigCgt')
    if handled is None or not handled >> (how.number - 1) & 1:
        return ()
    path = _PROC / str(pid) / 'fd' / str(how.descriptor)
    try:
        before = path.stat().st_size
        os.kill(pid, how.number)
        until = time.monotonic() + _PATIENCE_S
        text = ''
        while time.monotonic() < until:
            time.sleep(_STEP_S)
            with path.open('rb') as file:
                file.seek(before)
                printed = file.read(_MOST_BYTES).decode('utf-8', 'replace')
            if printed and printed == text:
                break
            text = printed
    except OSError:
        return ()
    return parse_stack(text)


def parse_stack(text: str) -> tuple[str, ...]:
    """The lines of one stack as faulthandler prints it, in short."""
    calls = []
    for line in text.splitlines():
        file, mark, rest = line.strip().partition('", line ')
        number, _, function = rest.partition(' in ')
        if mark and file.startswith('File "'):
            calls.append(f'{file[6:]}:{number} in {function}')
    return tuple(calls)
