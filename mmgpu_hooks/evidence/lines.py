"""The lines of a file that may be damaged, and long."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mmgpu_hooks.evidence.run_folder import EvidenceError

_BUFFER_BYTES = 2**18

Line = tuple[int, int, bytes]
"""Its number from 1 on, its offset and all its bytes."""


def read_lines(path: Path, newest_bytes: int | None = None) -> Iterator[Line]:
    """Each line of a file, blank ones too.

    Args:
        path: The file.
        newest_bytes: Read the first line and so much of the file's end. Defaults to
            all of it.

    Raises:
        EvidenceError: If it cannot be read.
    """
    with _open_file(path) as file:
        number = 0
        if newest_bytes is not None:
            first = file.readline()
            if first:
                number = 1
                yield number, 0, first
            begin = os.fstat(file.fileno()).st_size - newest_bytes
            _go_to_line(file, max(begin, file.tell()))
        yield from _each_line(file, number)


def read_stretch(path: Path, begin: int, end: int | None) -> Iterator[Line]:
    """The lines that begin in a stretch of a file, counted from there on.

    Args:
        path: The file.
        begin: Offset of a line.
        end: Of another one; ``None`` for the end of the file.

    Raises:
        EvidenceError: If it cannot be read.
    """
    with _open_file(path) as file:
        file.seek(begin)
        for line in _each_line(file, 0):
            if end is not None and line[1] >= end:
                break
            yield line


def read_borders(path: Path, parts: int) -> list[int]:
    """Offsets of the lines at which a file is cut into parts of like size.

    Args:
        path: The file.
        parts: At most so many; fewer if lines are long.

    Raises:
        EvidenceError: If it cannot be read.
    """
    with _open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        borders = {0}
        for part in range(1, parts):
            _go_to_line(file, size * part // parts)
            borders.add(file.tell())
    return sorted(border for border in borders if border < size)


@contextlib.contextmanager
def _open_file(path: Path) -> Iterator[IO[bytes]]:
    try:
        with path.open('rb', _BUFFER_BYTES) as file:
            yield file
    except OSError as error:
        raise EvidenceError(
            f'{path}: expected a readable evidence file, found {error.strerror}; '
            'check the path and its permissions.'
        ) from error


def _each_line(file: IO[bytes], number: int) -> Iterator[Line]:
    """All lines from where the file stands; ``number`` were before them."""
    offset = file.tell()
    for line in file:
        number += 1
        yield number, offset, line
        offset += len(line)


def _go_to_line(file: IO[bytes], offset: int) -> None:
    """To the first line that begins at an offset or after it."""
    if offset > 0:
        file.seek(offset - 1)
        file.readline()  # what is left of the line before


def decode_text(line: bytes, offset: int) -> str:
    """The text of a line; what is none in it is replaced.

    Args:
        line: As `read_lines` gives it.
        offset: The file may begin with a byte order mark.
    """
    return line.decode('utf-8' if offset else 'utf-8-sig', 'replace')
