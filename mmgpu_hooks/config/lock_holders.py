"""Finds the process that holds the lock (``flock``) of a folder, on Linux."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from mmgpu_hooks.config.loading import RefusedError
from mmgpu_hooks.schema.text import phrase

_PROC = Path('/proc')

_REWRITES = re.compile('python|pypy|mmgpu')
"""Regex for names of programs that may rewrite configs by this package."""

_MOST_LETTERS = 60
"""Maximum number of characters of a process's command line quoted in a message."""


@dataclass(frozen=True)
class LockHolder:
    """Process that holds the lock (``flock``) of a config folder."""

    text: str
    """Text with process id, user and command of the process, as far as known."""

    is_foreign: bool
    """True if the process is surely not a config rewrite of this user."""


def judge_holder(folder: Path, descriptor: int, waited_s: float) -> str:
    """Decides if a config may be written while another process locks its folder.

    Args:
        folder: As the user named it.
        descriptor: Of the same folder, opened.
        waited_s: Time in which its lock was never free.

    Raises:
        RefusedError: If a rewrite of this user may hold it, whose edit would be lost.
    """
    holder = find_holder(descriptor)
    if holder is not None and holder.is_foreign:
        return phrase(
            '{holder} held its lock for {waited_s:g} s',
            holder=holder.text,
            waited_s=waited_s,
        )
    who = phrase('its process is unknown, maybe on another host')
    raise RefusedError(
        phrase(
            'expected the folder {folder} to be free, found another '
            'rewrite in it for {waited_s:g} s ({who}); end that (it may '
            'be stopped), or run again',
            folder=folder,
            waited_s=waited_s,
            who=holder.text if holder else who,
        )
    )


def find_holder(descriptor: int) -> LockHolder | None:
    """Finds the process that holds the lock (``flock``) of an open folder.

    Args:
        descriptor: Of the folder.

    Returns:
        ``None`` where no process of this host is known to: it may be in another
        container, or on another host, or have ended just now.
    """
    inode = os.fstat(descriptor).st_ino
    # "1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF"; "->" stands before one that
    # only waits. The device is left out: btrfs and overlays have two numbers for it.
    lock = re.compile(rf'\d+:\s+FLOCK\s+ADVISORY\s+\w+\s+(\d+)\s+\w+:\w+:{inode}\s')
    own = [process for process in _list_own() if _shares(process.pid, lock)]
    if own:
        rewriting = [process for process in own if _may_rewrite(process)]
        shown = [*rewriting, *own][0]
        return LockHolder(_describe(shown.pid), is_foreign=not rewriting)
    takers = [int(pid) for pid in lock.findall(_read(_PROC / 'locks'))]
    if not takers:
        return None
    own_takers = [pid for pid in takers if not _is_of_another(pid)]
    shown_taker = [*own_takers, *takers][0]
    return LockHolder(_describe(shown_taker), is_foreign=not own_takers)


def _list_own() -> Iterator[psutil.Process]:
    """Yields this user's running processes."""
    for process in psutil.process_iter(['uids']):
        uids = process.info['uids']
        if uids is not None and uids.effective == os.geteuid():
            yield process


def _shares(pid: int, lock: re.Pattern[str]) -> bool:
    """True if a process holds a folder's lock, having taken or inherited it.

    The one that took it may have ended since, and left the folder to its children.
    """
    folder, names = _PROC / str(pid) / 'fdinfo', list[str]()
    with contextlib.suppress(OSError):  # it is gone, or shows nothing
        names = os.listdir(folder)
    takers = (lock.search(_read(folder / name)) for name in names)
    return any(
        # a wrapper such as flock(1) shares its own lock with us
        taker is not None and (pid != os.getpid() or int(taker[1]) == pid)
        for taker in takers
    )


def _read(path: Path) -> str:
    try:
        return path.read_text('ascii', 'replace')
    except OSError:  # closed meanwhile, or not shown
        return ''


def _may_rewrite(process: psutil.Process) -> bool:
    try:
        names = (os.path.basename(process.exe()), process.name())
    except psutil.Error:
        return True
    return any(map(_REWRITES.search, names))


def _is_of_another(pid: int) -> bool:
    """True if a process is another user's, hidden, or has ended."""
    try:
        return bool(psutil.Process(pid).uids().effective != os.geteuid())
    except psutil.Error:
        return True


def _describe(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        user, words = process.username(), process.cmdline() or [process.name()]
    except psutil.Error:
        return phrase('process {pid}, of which this user sees no more,', pid=pid)
    command = ' '.join(' '.join(words).split())
    if len(command) > _MOST_LETTERS:
        command = f'{command[:_MOST_LETTERS]}...'
    return phrase(
        'process {pid} of user {user} ({command})', pid=pid, user=user, command=command
    )
