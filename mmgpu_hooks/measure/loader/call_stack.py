"""Asks another process for its Python stack, by a signal and ``faulthandler``.

`faulthandler` prints the stack on a signal even where C code holds Python's lock. It
prints into memory of the process's own, which the one who asks reads through ``/proc``.
Nobody is asked who did not say that the signal is safe: unprepared, it would kill.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time
from pathlib import Path

_PROC = Path('/proc')
_MOST_BYTES = 65_536
_PATIENCE_S, _STEP_S = 0.5, 0.01
_SIGNAL = getattr(signal, 'SIGRTMAX', 64) - 4
"""Signal that makes a worker print its Python stack, unless other code handles it.

The highest real-time signals are others' first.
"""


def offer_stack() -> int:
    """Has this process write its Python stack to a file on a signal; returns its fd.

    Returns:
        The descriptor that it prints into; 0 where the signal is handled, ignored or
        blocked already, or the platform has none of this.
    """
    masks = _read_masks('SigCgt|SigIgn|SigBlk')
    # a Python built against an old C library has no memfd_create
    if masks != [False] * 3 or not hasattr(os, 'memfd_create'):
        return 0
    # stays open: faulthandler writes to it as long as the process lives
    descriptor = os.memfd_create('mmgpu_hooks-stack')
    faulthandler.register(_SIGNAL, file=descriptor, all_threads=False)
    return descriptor


def _read_masks(names: str, pid: int | str = 'self') -> list[bool]:
    """Returns, for each signal mask of a process, if it contains `_SIGNAL`."""
    try:
        text = (_PROC / str(pid) / 'status').read_text('ascii', 'replace')
    except OSError:
        return []
    masks = re.findall(rf'^(?:{names}):\t([0-9a-f]+)$', text, re.M)
    return [bool(int(mask, 16) >> (_SIGNAL - 1) & 1) for mask in masks]


def ask_stack(pid: int, descriptor: int) -> tuple[str, ...]:
    """Asks a process for its current Python stack, the innermost call first.

    Args:
        pid: The process.
        descriptor: What :func:`offer_stack` returned in it.

    Returns:
        ``file:line in function`` each; empty when the process does not answer, as in
        an uninterruptible sleep or when it was stopped.
    """
    if _read_masks('SigCgt', pid) != [True]:
        return ()
    path = _PROC / str(pid) / 'fd' / str(descriptor)
    try:
        before = path.stat().st_size
        os.kill(pid, _SIGNAL)
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
    """Parses faulthandler's output to a stack of ``file:line in function`` entries."""
    calls = []
    for line in text.splitlines():
        file, mark, rest = line.strip().partition('", line ')
        number, _, function = rest.partition(' in ')
        if mark and file.startswith('File "'):
            calls.append(f'{file[6:]}:{number} in {function}')
    return tuple(calls)
