"""Leases of cards: lock files that all users of a host share.

A lease is a lock (``flock``) on a file of the card. The kernel lets it go when the
last process that has the file open ends, however it ends. A program that takes the
place of ours (``exec``) keeps it, and so do children to which it hands open files.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable

from mmgpu_hooks.measure.clock import Clock, boot_s

LEASES = Path('/tmp/mmgpu-leases')
"""The same for every user of the host, whatever their TMPDIR says."""

_LONGEST_S = 3600.0
"""A reservation of more is somebody's mistake."""
_MOST_LETTERS = 60
"""Of a command, in what is told of a lease."""
_MOST_BYTES = 2048
_TRIES = 5


class LeaseError(Exception):
    """The leases cannot be kept; the message is one sentence."""


class CardLease:
    """One card, ours until :meth:`release`, or until the process ends.

    Args:
        descriptor: The open file, locked.
        clock: The host's clock since boot.
    """

    def __init__(self, descriptor: int, clock: Clock) -> None:
        self._descriptor = descriptor
        self._clock = clock

    def pass_on(self, command: Sequence[str]) -> None:
        """Let the program that takes the place of ours keep the lease."""
        os.set_inheritable(self._descriptor, True)
        self._note(command=' '.join(command)[:_MOST_LETTERS])

    def reserve(self, seconds: float) -> None:
        """Keep others off for some time after the process has ended."""
        self._note(from_boot_s=self._clock(), seconds=min(seconds, _LONGEST_S))

    def release(self) -> None:
        """Give the card back at once; a reservation stays."""
        os.close(self._descriptor)

    def _note(self, **facts: object) -> None:
        who = {'pid': os.getpid(), 'user': _user_name(), **facts}
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(who).encode(), 0)


class CardLeases:
    """The folder of lock files; the lease of one card is asked for by its UUID.

    The folder is written to by several users, so nothing in it is trusted: links
    are not followed, and what a file says is shown, cleaned, and never acted upon
    but for a reservation of an hour at most.

    Args:
        folder: Made when it is missing, writable for all.
        clock: The host's clock since boot.
        sleep: Waits some seconds; for a file that another process is making.
    """

    def __init__(
        self,
        folder: Path = LEASES,
        *,
        clock: Clock = boot_s,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._sleep = sleep
        self._kept: int | None = None

    @contextlib.contextmanager
    def picking(self) -> Iterator[None]:
        """Keep other processes from picking meanwhile.

        Two that want two of three cards each would otherwise hold one each, and both
        go away without.

        Raises:
            LeaseError: If the folder cannot be used.
        """
        if self._kept is None:
            self._kept = self._open_folder()
        descriptor = self._open('picking')
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def take(self, uuid: str) -> CardLease | str:
        """Take the lease of one card; within :meth:`picking`.

        Returns:
            The lease, or why there is none.

        Raises:
            LeaseError: If the lock file keeps vanishing.
        """
        name = re.sub(r'[^\w-]', '_', uuid)
        for _ in range(_TRIES):
            try:
                descriptor = self._open(name)
            except LeaseError as error:
                return f'cannot be leased: {error}'  # the other cards can
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                facts = _read_facts(descriptor)
                os.close(descriptor)
                return f'in use by {_describe_holder(facts)}'
            if not self._is_current(descriptor, name):
                os.close(descriptor)  # somebody removed the file meanwhile
                continue
            facts = _read_facts(descriptor)
            left_s = _left_s(facts, self._clock())
            if left_s > 0:
                os.close(descriptor)
                holder = _describe_holder(facts)
                return f'reserved for {left_s:.0f} s more by {holder}'
            os.ftruncate(descriptor, 0)
            return CardLease(descriptor, self._clock)
        raise LeaseError(f'the lock file of {uuid} in {self._folder} keeps vanishing.')

    def close(self) -> None:
        """Let the folder go; the leases stay."""
        if self._kept is not None:
            os.close(self._kept)
            self._kept = None

    def _open_folder(self) -> int:
        """The folder, locked: that keeps what cleans /tmp away from all in it."""
        try:
            if not self._folder.exists():
                self._folder.mkdir(parents=True, exist_ok=True)
                self._folder.chmod(0o1777)  # like /tmp: all may add, none may remove
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            descriptor = os.open(self._folder, flags)
        except OSError as error:
            raise self._unusable(error) from error
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.set_inheritable(descriptor, True)
        return descriptor

    def _open(self, name: str) -> int:
        path = self._folder / f'{name}.lock'
        failure: OSError | None = None
        for _ in range(_TRIES):
            try:
                descriptor = _open_or_make(path)
            except OSError as error:
                # who makes the folder or the file opens it to others a moment later
                failure = error
                self._sleep(0.05)
                continue
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
                return descriptor
            os.close(descriptor)
            raise LeaseError(f'{path} is not a plain file: remove it.')
        assert failure is not None
        raise self._unusable(failure) from failure

    def _is_current(self, descriptor: int, name: str) -> bool:
        try:
            there = os.stat(self._folder / f'{name}.lock', follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(descriptor))

    def _unusable(self, error: OSError) -> LeaseError:
        return LeaseError(
            f'expected a folder for leases that all users can write to in '
            f'{self._folder}, found {error.strerror or error}; name another with '
            '--leases.'
        )


def _open_or_make(path: Path) -> int:
    # without O_CREAT first: the kernel refuses it in shared folders, for files of
    # other users (fs.protected_regular)
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        pass
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(descriptor, 0o666)  # whatever the umask is
    return descriptor


def _read_facts(descriptor: int) -> dict[str, object]:
    try:
        facts = json.loads(os.pread(descriptor, _MOST_BYTES, 0))
    except (ValueError, RecursionError, OSError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _left_s(facts: dict[str, object], now_s: float) -> float:
    """Seconds that a reservation still has; one from before a restart has none."""
    begin_s, seconds = facts.get('from_boot_s'), facts.get('seconds')
    if not isinstance(begin_s, (int, float)) or not isinstance(seconds, (int, float)):
        return 0.0
    if not begin_s <= now_s or not 0 < seconds <= _LONGEST_S:
        return 0.0
    return max(0.0, begin_s + seconds - now_s)


def _describe_holder(facts: dict[str, object]) -> str:
    user, pid, command = (facts.get(name) for name in ('user', 'pid', 'command'))
    if not isinstance(pid, int):
        return 'another process'
    text = f'process {pid}'
    if isinstance(user, str):
        text += f' of {_clean(user)}'
    if isinstance(command, str):
        text += f': {_clean(command)}'
    return text


def _clean(text: str) -> str:
    """Somebody else's text, fit for a terminal."""
    return ''.join(c if c.isprintable() else '?' for c in text[:_MOST_LETTERS])


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())
