"""Opens regular files, and pipes if asked, for reading without blocking."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from mmgpu_hooks.schema.text import phrase

_KINDS = {
    stat.S_IFDIR: phrase('a folder'),
    stat.S_IFCHR: phrase('a device'),
    stat.S_IFBLK: phrase('a device'),
    stat.S_IFIFO: phrase('a pipe'),
    stat.S_IFSOCK: phrase('a socket'),
}

# Windows has the one that keeps bytes as they are, other systems the other one
_FLAGS = os.O_RDONLY | getattr(os, 'O_NONBLOCK', 0) | getattr(os, 'O_BINARY', 0)


class NotRegularError(OSError):
    """Error for a path that is a folder, a pipe, a device or the like.

    ``strerror`` says which.
    """


def open_descriptor(path: Path | str, *, or_pipe: bool = False) -> int:
    """Opens a regular file, or a pipe if asked, and returns its file descriptor.

    Args:
        path: The file, or a link to it.
        or_pipe: Take a pipe, too. One that nobody writes into is at its end.

    Returns:
        A file descriptor, to be closed by the caller.

    Raises:
        NotRegularError: If something else is there.
        OSError: If nothing is there, or it cannot be read.
    """
    try:
        # a pipe would be waited for until somebody writes into it
        descriptor = os.open(path, _FLAGS)
    except ValueError as error:  # a name with a null byte, out of a damaged record
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    if or_pipe and stat.S_ISFIFO(mode):
        os.set_blocking(descriptor, True)
        return descriptor
    os.close(descriptor)
    kind = _KINDS.get(stat.S_IFMT(mode), phrase('no file'))
    raise NotRegularError(errno.EINVAL, kind, str(path))


def open_regular(path: Path | str, *, or_pipe: bool = False) -> BinaryIO:
    """Opens a regular file, or a pipe if asked, for buffered reading."""
    return os.fdopen(open_descriptor(path, or_pipe=or_pipe), 'rb')


def read_end(path: Path | str, most_bytes: int) -> bytes:
    """Reads the last bytes of a regular file; the whole file if it is shorter.

    Raises:
        OSError: If it is no regular file, or cannot be read.
    """
    with open_regular(path) as file:
        # files of the kernel have no size
        size = os.fstat(file.fileno()).st_size
        file.seek(max(size - most_bytes, 0))
        return file.read(most_bytes)
