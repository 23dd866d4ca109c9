"""File locks on GPUs, so that no two commands of a user take the same GPU.

The lock of a card is ``flock`` on a file with its UUID, in each folder for locks. The
kernel releases it when the last process that has the file open ends; a program started
by ``exec`` keeps it. There is more than one folder, since shells of a user may differ
in ``XDG_RUNTIME_DIR``, and since anybody can be first to make the one in ``/tmp``.

``pick-gpu`` does not stay as a parent: the command replaces it (``exec``), gets signals
and gives its exit code without us, and the lock ends with it, by ``kill -9`` too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from mmgpu_hooks.experiment.cards import Card
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.text import phrase

TEMPORARY = '/tmp/mmgpu'
"""Start of the path of a GPU lock folder in ``/tmp``; the user id is appended to it.

It is not in ``TMPDIR``, in which two shells may differ."""

PICKING_S = 5.0
"""Longest wait in seconds while other ``pick-gpu`` commands choose their GPUs."""

_READING_S = 0.05
"""Longest wait in seconds for a lock held by a process that only checks if it is free.

A reader holds each lock for microseconds."""

_POLL_S = 0.005

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_PICKING = 'picking.lock'

_NO_LOCKS = errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP
"""Error numbers by which a file system says that it has no file locks."""


def read_locks(cards: Sequence[Card]) -> list[Card]:
    """Marks GPUs that another process has locked as not usable; locks no GPU itself.

    Args:
        cards: Of :func:`mmgpu_hooks.experiment.cards.judge_cards`.
    """
    with contextlib.ExitStack() as opened:
        folders = _open_folders(opened, [], is_made=False)

        def read(card: Card) -> str | None:
            reasons = (folder.read_lock(card) for folder in folders)
            return card.reason or next(filter(None, reasons), None)

        return [replace(card, reason=read(card)) for card in cards]


class LockedCards(NamedTuple):
    """All GPUs of the host, and the lock files of those that this process locked."""

    cards: list[Card]
    """All GPUs of the host, each with the reason if it could not be locked."""
    picked: dict[Card, list[int]]
    """Open lock files (descriptors) by locked GPU; empty if too few GPUs were free."""


def lock_cards(
    cards: Sequence[Card], count: int, warn: Callable[[str], None]
) -> LockedCards:
    """Locks as many free GPUs as wanted, best ones first, or none if too few are free.

    Args:
        cards: Best first, from :func:`mmgpu_hooks.experiment.cards.judge_cards`.
        count: How many.
        warn: Is given a sentence where another start does not end its picking.

    Raises:
        UserError: If no folder for the lock files can be used.
    """
    refused: list[str] = []
    judged = list(cards)
    picked: dict[Card, list[int]] = {}
    with contextlib.ExitStack() as opened:
        folders = _open_folders(opened, refused, is_made=True)
        if not folders:
            raise UserError(
                phrase(
                    'expected a folder for locks that this user alone can write, found '
                    'none: {refused:;}. Set XDG_CACHE_HOME to a folder of yours.',
                    refused=tuple(refused),
                )
            )
        # two that lock at one moment might each get a part, and neither enough
        picking_end_s = time.monotonic() + PICKING_S
        for folder in folders:
            alone = folder.take_lock(_PICKING, picking_end_s)
            if isinstance(alone, int):
                opened.callback(os.close, alone)
                continue
            warn(
                phrase(
                    'expected other starts to end picking within {picking_s:g} s, '
                    'found {file} {alone}; going on without it.',
                    picking_s=PICKING_S,
                    file=_PICKING,
                    alone=alone,
                )
            )
        for number, card in enumerate(cards):
            if card.reason is None and len(picked) < count:
                # anew for each: the one before may have been in use all that time
                reading_end_s = time.monotonic() + _READING_S
                locks, reason = _lock_card(folders, card, reading_end_s)
                judged[number] = replace(card, reason=reason)
                if reason is None:
                    picked[card] = locks
    if len(picked) < count:
        for locks in picked.values():
            close_all(locks)
        picked = {}
    return LockedCards(judged, picked)


def close_all(descriptors: Sequence[int]) -> None:
    """Closes file descriptors of lock files, which releases the locks."""
    for descriptor in descriptors:
        os.close(descriptor)


@dataclass(frozen=True)
class _Folder:
    """Open folder for GPU lock files to which only this user can write."""

    path: Path
    descriptor: int

    def has_locks(self, *, is_made: bool) -> bool:
        """True unless the folder's file system does not support file locks.

        Args:
            is_made: Whether a file is made to see it, where none is there.
        """
        import fcntl  # Windows has none, and imports this module

        flags = os.O_RDWR | os.O_CREAT if is_made else os.O_RDONLY
        try:
            descriptor = self._open(_PICKING, flags)
        except OSError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in _NO_LOCKS
        finally:
            os.close(descriptor)
        return True

    def read_lock(self, card: Card) -> str | None:
        """Returns the reason why a GPU cannot be locked now; ``None`` if it can be."""
        import fcntl  # Windows has none, and imports this module

        name = f'{card.uuid}.lock'
        try:
            descriptor = self._open(name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        except OSError as error:
            return self._describe(name, error)
        try:
            # shared, so that one table does not hold up another
            return self._hold(name, descriptor, fcntl.LOCK_SH, end_s=0.0)
        finally:
            os.close(descriptor)

    def take_lock(self, name: str, end_s: float) -> int | str:
        """Locks a file, made if missing; returns its descriptor, or why that failed.

        Returns:
            The reason where it cannot be locked until ``end_s`` of
            ``time.monotonic``.
        """
        import fcntl

        try:
            descriptor = self._open(name, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            return self._describe(name, error)
        reason = self._hold(name, descriptor, fcntl.LOCK_EX, end_s)
        if reason is not None:
            os.close(descriptor)
            return reason
        # on a full disk the lock is as good without
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return descriptor

    def _open(self, name: str, flags: int) -> int:
        # a pipe would be waited for, and what a link leads to is no lock
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(name, flags, 0o600, dir_fd=self.descriptor)
        status = os.fstat(descriptor)
        is_regular = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        if is_regular and status.st_uid == os.getuid():
            return descriptor
        os.close(descriptor)
        raise PermissionError(
            errno.EPERM, phrase('not a regular file of this user alone')
        )

    def _hold(
        self, name: str, descriptor: int, operation: int, end_s: float
    ) -> str | None:
        """Locks an open lock file; returns ``None``, or the reason if that fails."""
        import fcntl

        while True:
            try:
                fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end_s:
                    process = os.pread(descriptor, 20, 0).decode('ascii', 'replace')
                    known = process if process.isdigit() else None
                    return phrase('in use by process {pid}', pid=known)
                time.sleep(_POLL_S)
            except OSError as error:
                return self._describe(name, error)
            else:
                return None

    def _describe(self, name: str, error: OSError) -> str:
        return phrase(
            'cannot be locked ({path}: {error})',
            path=self.path / name,
            error=error.strerror,
        )


def _lock_card(
    folders: Sequence[_Folder], card: Card, end_s: float
) -> tuple[list[int], str | None]:
    """Locks a GPU in all lock folders; returns the descriptors, or why that failed."""
    locks: list[int] = []
    for folder in folders:
        lock = folder.take_lock(f'{card.uuid}.lock', end_s)
        if isinstance(lock, str):
            close_all(locks)
            return [], lock
        locks.append(lock)
    return locks, None


def _open_folders(
    opened: contextlib.ExitStack, refused: list[str], *, is_made: bool
) -> list[_Folder]:
    """Opens the folders for GPU lock files to which only this user can write.

    Args:
        opened: Closes them.
        refused: Gets the reason for each that cannot be used.
        is_made: Whether those that are needed are made.
    """

    def open_folder(path: Path, *, is_made: bool) -> _Folder | None:
        try:
            if is_made:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            opened.callback(os.close, descriptor)
            status = os.fstat(descriptor)
            if status.st_uid != os.getuid():
                raise PermissionError(
                    errno.EPERM, phrase('is that of user {uid:d}', uid=status.st_uid)
                )
            if status.st_mode & _OTHERS_WRITE:
                os.fchmod(descriptor, 0o700)
            strange = _find_strange(descriptor)
            if strange is not None:
                raise PermissionError(
                    errno.EPERM, phrase('{file} in it is not ours', file=strange)
                )
        except OSError as error:
            refused.append(phrase('{path}: {error}', path=path, error=error.strerror))
            return None
        return _Folder(path, descriptor)

    in_runtime = None
    runtime = Path(os.environ.get('XDG_RUNTIME_DIR', ''))
    if runtime.is_absolute() and _is_private(runtime):
        in_runtime = open_folder(runtime / 'mmgpu', is_made=is_made)
    in_temporary = open_folder(Path(f'{TEMPORARY}-{os.getuid()}'), is_made=is_made)
    cache = Path(os.environ.get('XDG_CACHE_HOME', ''))
    if not cache.is_absolute():
        cache = Path(os.path.expanduser('~'), '.cache')
    in_cache = None
    if cache.is_absolute():
        # one that is there may have locks, taken when that in /tmp was another user's
        is_needed = is_made and in_temporary is None
        in_cache = open_folder(cache / 'mmgpu', is_made=is_needed)
    found = [folder for folder in (in_runtime, in_temporary, in_cache) if folder]
    # a home on NFS may have no locks
    return [folder for folder in found if folder.has_locks(is_made=is_made)] or found


def _find_strange(folder: int) -> str | None:
    """Returns the name of another user's lock file in a folder, or ``None``.

    It would keep its card from being picked for ever.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.endswith('.lock'):
                continue
            if entry.stat(follow_symlinks=False).st_uid != os.getuid():
                return entry.name
    return None


def _is_private(folder: Path) -> bool:
    """True if a folder belongs to this user and no other user can write to it."""
    try:
        status = folder.stat()
    except OSError:
        return False
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return is_ours and not status.st_mode & _OTHERS_WRITE
