"""The lines of a file that may be damaged, and long."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mmgpu_hooks.evidence.column import Span
from mmgpu_hooks.evidence.run_folder import EvidenceError

WHOLE: Span = (0, sys.maxsize)
"""All bytes of a file, of which nobody knows how long it will be."""


def read_lines(
    path: Path, newest_bytes: int | None = None, part: Span = WHOLE
) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and bytes of each line.

    Args:
        path: The file.
        newest_bytes: Read the first line and so much of the file's end. Defaults to
            all of it.
        part: Read the lines that begin between two offsets, numbered from 1.

    Raises:
        EvidenceError: If it cannot be read.
    """
    try:
        with path.open('rb') as file:
            each = _each_line(file, newest_bytes, part)
            for number, (offset, line) in enumerate(each, start=1):
                yield number, offset, line
    except OSError as error:
        raise EvidenceError(
            f'{path}: expected a readable evidence file, found {error.strerror}; '
            'check the path and its permissions.'
        ) from error


def _each_line(
    file: IO[bytes], newest_bytes: int | None, part: Span
) -> Iterator[tuple[int, bytes]]:
    """All lines, or the first and those that lie whole in the newest bytes."""
    begin, end = part
    if newest_bytes is not None:
        first = file.readline()
        if first:
            yield 0, first
        oldest = os.fstat(file.fileno()).st_size - newest_bytes
        begin = max(oldest, file.tell())
    offset = _seek_line(file, begin)
    for line in file:
        if offset >= end:
            break
        yield offset, line
        offset += len(line)


def _seek_line(file: IO[bytes], offset: int) -> int:
    """Go to the first line that begins at an offset or after it; returns where."""
    if offset:
        file.seek(offset - 1)
        file.readline()  # what is left of the line before
    return file.tell()


def decode_text(line: bytes, offset: int) -> str:
    """The text of a line; what is none in it is replaced.

    Args:
        line: As `read_lines` gives it.
        offset: Likewise; the first may begin with a byte order mark.
    """
    return line.decode('utf-8' if offset else 'utf-8-sig', 'replace')
