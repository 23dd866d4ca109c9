"""What a process is doing by the kernel's account: running, waiting, and for what."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

_PROC = Path('/proc')

# the first argument of these is a descriptor, by number of the system call
_OF_DESCRIPTOR = {
    'x86_64': {0: 'read', 1: 'write', 17: 'pread64', 19: 'readv', 7: 'poll'},
    'aarch64': {63: 'read', 64: 'write', 67: 'pread64', 65: 'readv'},
}
_OTHERS = {
    'x86_64': {2: 'open', 257: 'openat', 202: 'futex', 35: 'nanosleep'},
    'aarch64': {56: 'openat', 98: 'futex', 101: 'nanosleep'},
}
_OTHERS['x86_64'].update({230: 'clock_nanosleep', 270: 'select', 232: 'epoll_wait'})
_OTHERS['aarch64'].update({115: 'clock_nanosleep', 72: 'select', 22: 'epoll_wait'})


class ProcessState(NamedTuple):
    """One look at a process; ``None`` is what the kernel does not show."""

    letter: str
    """As in ``ps``: R on a core, S asleep, D uninterruptible, T stopped, Z ended; X
    when there is no such process."""
    waits_in: str | None = None
    """Function of the kernel that it sleeps in."""
    call: str | None = None
    """The system call."""
    path: str | None = None
    """The file that the call reads or writes."""
    mount: str | None = None
    """File system of it: its type, such as ``nfs4``."""


def read_state(pid: int, proc: Path = _PROC) -> ProcessState:
    """Look at a process.

    Args:
        pid: The process.
        proc: Root of the proc file system.
    """
    folder = proc / str(pid)
    try:
        stat = (folder / 'stat').read_text('utf-8', 'replace')
    except OSError:
        return ProcessState('X')
    # the name, in brackets, may hold anything
    letter = stat.rpartition(')')[2].split()[0]
    if letter in 'ZX':
        return ProcessState(letter)
    waits_in = _read(folder / 'wchan')
    call, descriptor = _parse_call(_read(folder / 'syscall'))
    path = None
    if descriptor is not None:
        try:
            path = os.readlink(folder / 'fd' / str(descriptor))
        except OSError:
            path = None
    return ProcessState(
        letter,
        waits_in if waits_in and waits_in != '0' else None,
        call,
        path,
        find_mount(path, _read(folder / 'mountinfo') or '') if path else None,
    )


def _read(path: Path) -> str | None:
    try:
        return path.read_text('utf-8', 'replace').strip()
    except OSError:
        return None


def _parse_call(text: str | None) -> tuple[str | None, int | None]:
    words = (text or '').split()
    if len(words) < 2 or not words[0].isdigit():
        return None, None
    machine, number = os.uname().machine, int(words[0])
    name = _OF_DESCRIPTOR.get(machine, {}).get(number)
    if name is not None:
        return name, int(words[1], 16) if name != 'poll' else None
    return _OTHERS.get(machine, {}).get(number, f'system call {number}'), None


def find_mount(path: str, mountinfo: str) -> str | None:
    """Type of the file system that holds a path.

    Args:
        path: Absolute.
        mountinfo: Text of ``/proc/<pid>/mountinfo``.
    """
    best, kind = '', None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(' - ')
        words = before.split()
        if len(words) < 5 or not after:
            continue
        point = re.sub(r'\\(\d{3})', lambda m: chr(int(m[1], 8)), words[4])
        inside = path == point or path.startswith(point.rstrip('/') + '/')
        if inside and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind
