"""Files of ``/proc`` or ``/sys``: one that stays open, or the begin of one."""

from __future__ import annotations

import os
from pathlib import Path

_CHUNK_BYTES = 16384
_SHORT_BYTES = 2048
"""The kernel hands out whole lines, a page or less per read: this little is the end."""
_MOST_BYTES = 1 << 20
"""No file that we keep comes near it; it ends a read that would not end."""


_FLAGS = os.O_RDONLY | getattr(os, 'O_CLOEXEC', 0)


def read_begin(path: str, most_bytes: int) -> bytes:
    """Read the first bytes of a file, which is opened for it.

    A third of what Python's own file object takes.

    Raises:
        OSError: If it cannot be read.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        return os.read(descriptor, most_bytes)
    finally:
        os.close(descriptor)


class KeptFile:
    """One open file, each read from its start; the kernel makes the text anew.

    A read costs 1 to 10 us, a third of what opening it each time would cost.

    Args:
        path: The file.

    Raises:
        OSError: If it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, _FLAGS)

    def read(self) -> bytes:
        """Read the whole file.

        Raises:
            OSError: If it vanished, or if it has been closed.
        """
        # pread leaves the offset alone, which forked workers would share
        text = chunk = os.pread(self._descriptor, _CHUNK_BYTES, 0)
        while len(chunk) >= _SHORT_BYTES and len(text) < _MOST_BYTES:
            chunk = os.pread(self._descriptor, _CHUNK_BYTES, len(text))
            text += chunk
        return text

    def read_begin(self, most_bytes: int) -> bytes:
        """Read its first bytes.

        Raises:
            OSError: If it vanished, or if it has been closed.
        """
        return os.pread(self._descriptor, most_bytes, 0)

    def close(self) -> None:
        """Close it; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
