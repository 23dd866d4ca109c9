"""Sends the file descriptors of a batch's tensors over one Unix socket connection.

PyTorch passes a file descriptor for each tensor in shared memory, and the receiver
opens a connection with a handshake for each. Here a message's descriptors are kept
together, and the first tensor that is rebuilt fetches all of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import threading
import weakref
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from typing import Any, Callable, NamedTuple

import torch
from torch.multiprocessing import get_sharing_strategy, reductions
from torch.utils.data._utils import worker as torch_worker

MOST_FILES = 64
"""Maximum number of tensors' shared-memory files fetched over one connection.

The kernel allows 253. The more there are, the more files are open at once where the
receiver has most of the tensors already.
"""

# private: without it PyTorch could not pass files, either
_sharer: Any = resource_sharer._resource_sharer  # type: ignore[attr-defined]


class _State(threading.local):
    """Per-thread state of the batch message that is being sent or received."""

    is_sending = False
    bundle: Bundle | None = None
    find_arrival: Callable[[], Arrival | None] = staticmethod(lambda: None)


_state = _State()


def bundle_files() -> None:
    """Makes the calling loader worker send the file descriptors of a batch together.

    Raises:
        AttributeError: If the caller is no worker of PyTorch's DataLoader.
    """
    reducers = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    # else the user has a way of his own
    if reducers.get(torch.UntypedStorage) is not reductions.reduce_storage:
        return
    frame: Any = sys._getframe(1)
    while frame.f_code is not torch_worker._worker_loop.__code__:
        frame = frame.f_back
    queue = frame.f_locals['data_queue']
    put = queue.put
    queue.put = lambda item, *args, **more: put(Message(item), *args, **more)
    ForkingPickler.register(torch.UntypedStorage, reduce_storage)


class Message:
    """Wrapper that makes a worker send the file descriptors of a batch together.

    Unpickling gives the batch without it.

    Args:
        content: The batch, with its number.
    """

    def __init__(self, content: Any) -> None:
        self.content = content

    def __reduce__(self) -> tuple[Any, ...]:
        _state.is_sending, _state.bundle = True, None
        # pickled, and loaded, in this order
        return _unwrap, (Arrival(), self.content, _End())


class _End:
    """Mark pickled behind a batch; files after it are sent singly, as PyTorch does."""

    def __reduce__(self) -> tuple[Any, ...]:
        _state.is_sending, _state.bundle = False, None
        return _End, ()


def reduce_storage(storage: Any) -> tuple[Any, ...]:
    """Pickles a tensor storage so that its file is sent with others of its batch."""
    if _state.is_sending:
        # an exception would lose the batch: the storage goes as ever
        with contextlib.suppress(Exception):
            is_file = storage.device.type == 'cpu' and storage.nbytes()
            if is_file and get_sharing_strategy() == 'file_descriptor':
                return _send_bundled(storage)
    return reductions.reduce_storage(storage)  # type: ignore[no-any-return]


def _send_bundled(storage: Any) -> tuple[Any, ...]:
    fd, size = storage._share_fd_cpu_()
    if _state.bundle is None or len(_state.bundle.fds) == MOST_FILES:
        _state.bundle = Bundle()
    bundled = _state.bundle.add(fd)
    reductions.shared_cache[reductions.fd_id(fd)] = reductions.StorageWeakRef(storage)
    return reductions.rebuild_storage_fd, (type(storage), bundled, size)


class Bundle:
    """File descriptors that this process passes on with one connection."""

    def __init__(self) -> None:
        self.fds: list[int] = []
        self.ident = _sharer.register(self._send, self._close)

    def add(self, fd: int) -> BundledFd:
        """Adds a copy of a file descriptor; returns the stand-in to pickle for it."""
        self.fds.append(os.dup(fd))
        return BundledFd(self.ident, len(self.fds) - 1)

    def _send(self, connection: Any, _: int) -> None:
        with _open_socket(connection) as opened:
            socket.send_fds(opened, [bytes([len(self.fds)])], self.fds)

    def _close(self) -> None:
        while self.fds:
            os.close(self.fds.pop())


class BundledFd(NamedTuple):
    """Pickled stand-in for a file descriptor, like ``DupFd`` of multiprocessing."""

    ident: Any
    """Address and key of the `Bundle`, as ``resource_sharer`` gives them."""
    place: int

    def detach(self) -> int:
        """Returns the descriptor, which the caller closes; may be called once."""
        arrival = _state.find_arrival() or Arrival()
        return arrival.take(self)


class Arrival:
    """File descriptors received for the batch that a thread is unpickling.

    Those that no tensor takes are closed. The unpickler alone holds the object, so it
    is freed where loading fails, too.
    """

    def __init__(self) -> None:
        self._fds: dict[Any, list[int]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, ()

    def take(self, bundled: BundledFd) -> int:
        """Returns one file descriptor; fetches its whole bundle on the first call."""
        ident, place = bundled
        if ident not in self._fds:
            self._fds[ident] = _fetch(ident)
        fds = self._fds[ident]
        fd, fds[place] = fds[place], -1
        return fd

    def close(self) -> None:
        """Closes the received file descriptors that no tensor has taken."""
        for fds in self._fds.values():
            _close_all(fds)
        self._fds.clear()

    __del__ = close


def _arrive() -> Arrival:
    arrival = Arrival()
    _state.find_arrival = weakref.ref(arrival)
    return arrival


def _unwrap(arrival: Arrival, content: Any, _: _End) -> Any:
    arrival.close()
    return content


def _fetch(ident: Any) -> list[int]:
    with (
        _sharer.get_connection(ident) as connection,
        _open_socket(connection) as opened,
    ):
        count, fds, _, _ = socket.recv_fds(opened, 1, MOST_FILES)
    if not count:
        raise EOFError
    if len(fds) != count[0]:
        _close_all(fds)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return fds


def _open_socket(connection: Any) -> socket.socket:
    return socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        if fd >= 0:
            os.close(fd)
