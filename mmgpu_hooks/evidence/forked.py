"""Work that is done beside this process, in a fork of it, on a second CPU."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import IO, Any, Callable


class ForkError(Exception):
    """The fork could not be made, or ended before its work was done."""


def can_run_beside() -> bool:
    """Whether there is a second CPU, and a fork of this process is whole.

    A fork has the one thread that made it; locks that others held stay locked in it.
    """
    if not hasattr(os, 'sched_getaffinity'):
        return False
    return len(os.sched_getaffinity(0)) > 1 and threading.active_count() == 1


@contextlib.contextmanager
def run_beside(work: Callable[[], Iterable[Any]]) -> Iterator[Iterator[Any]]:
    """Do some work in a fork of this process, which ends with the context.

    Args:
        work: Gives what is sent back, piece by piece; none of them is ``None``.

    Yields:
        The pieces. The fork waits where they are not taken, and `ForkError` is raised
        where it ended early, by an error of its own too.
    """
    receiving, sending = os.pipe()
    with open(receiving, 'rb') as pipe:
        try:
            pid = _fork()
        except OSError as error:
            os.close(sending)
            raise ForkError(str(error)) from error
        if pid == 0:
            # neither clean-up nor buffered output is the fork's to finish
            try:
                _send(work(), sending)
            finally:
                os._exit(0)
        os.close(sending)
        try:
            yield _receive(pipe)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _fork() -> int:
    with warnings.catch_warnings():
        # numpy's own threads, which Python counts, take no lock of ours
        warnings.simplefilter('ignore', DeprecationWarning)
        return os.fork()


def _send(pieces: Iterable[Any], sending: int) -> None:
    with open(sending, 'wb') as pipe:
        for piece in pieces:
            pickle.dump(piece, pipe, pickle.HIGHEST_PROTOCOL)
        pickle.dump(None, pipe)


def _receive(pipe: IO[bytes]) -> Iterator[Any]:
    try:
        while (piece := pickle.load(pipe)) is not None:
            yield piece
    except (EOFError, pickle.UnpicklingError) as error:
        raise ForkError('the fork ended early') from error
