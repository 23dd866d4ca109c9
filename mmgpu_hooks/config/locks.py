"""Lets one rewrite at a time write into a folder of configs, by a lock (``flock``).

The lock is on the folder that holds the file to be written: ``os.replace`` gives that a
new inode, so a lock on the file itself would guard the old one. The kernel frees it
with the process, and nothing is left behind.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from mmgpu_hooks.schema.text import phrase

WAIT_S = 30.0
"""Longest wait in seconds for another rewrite in the same config folder to end.

A rewrite takes as long as MMEngine loads a config."""

_POLL_S = 0.02

# as `files.write_atomic` names what it writes
_LEFTOVER = re.compile(r'\..+\.py(\.bak(\.\d+)?)?-[a-z0-9_]{8}\.mmgpu', re.DOTALL)


@contextlib.contextmanager
def hold_folder(folder: Path) -> Iterator[str | None]:
    """Context in which a config folder is locked against other rewrites, if possible.

    Args:
        folder: It, or a link to it.

    Yields:
        ``None`` where it is held, else why it cannot be: not every system or file
        system has locks, and not every folder can be opened.

    Raises:
        RefusedError: If what holds it for longer than :data:`WAIT_S` may be another
            rewrite of this user. Any user who may read a folder can hold its lock, so
            what is certainly no such rewrite forbids none.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield phrase('this system has no file locks')
        return
    with contextlib.ExitStack() as stack:
        reason = None
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, descriptor)
            if _wait_for(descriptor):
                # what a config forked shares the descriptor and would keep the lock
                stack.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)
            else:
                # psutil, which it needs, is loaded for nothing else here
                from mmgpu_hooks.config.lock_holders import judge_holder

                reason = judge_holder(folder, descriptor, WAIT_S)
        except OSError as error:
            reason = error.strerror or str(error)
        yield reason


def _wait_for(descriptor: int) -> bool:
    """Locks an open folder; returns ``False`` if the lock is not free in time."""
    import fcntl

    end_s = time.monotonic() + WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end_s:
                return False
            time.sleep(_POLL_S)
        else:
            return True


def remove_leftovers(folder: Path) -> None:
    """Removes temporary files that killed config rewrites left in a locked folder."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not _LEFTOVER.fullmatch(entry.name):
                continue
            if stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                # another user's stays
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
