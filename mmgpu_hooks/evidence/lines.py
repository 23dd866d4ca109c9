"""The lines of a file that may be damaged, and long."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mmgpu_hooks.evidence.run_folder import EvidenceError


def read_lines(
    path: Path, newest_bytes: int | None = None
) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and bytes of each line that is not blank.

    Args:
        path: The file.
        newest_bytes: Read the first line and so much of the file's end. Defaults to
            all of it.

    Raises:
        EvidenceError: If it cannot be read.
    """
    try:
        with path.open('rb') as file:
            numbered = enumerate(_each_line(file, newest_bytes), start=1)
            for number, (offset, line) in numbered:
                if not line.isspace():
                    yield number, offset, line
    except OSError as error:
        raise EvidenceError(
            f'{path}: expected a readable evidence file, found {error.strerror}; '
            'check the path and its permissions.'
        ) from error


def _each_line(
    file: IO[bytes], newest_bytes: int | None
) -> Iterator[tuple[int, bytes]]:
    """All lines, or the first and those that lie whole in the newest bytes."""
    offset = 0
    if newest_bytes is not None:
        first = file.readline()
        if first:
            yield offset, first
        begin = os.fstat(file.fileno()).st_size - newest_bytes
        if begin > file.tell():
            file.seek(begin - 1)
            file.readline()  # what is left of the line before
        offset = file.tell()
    for line in file:
        yield offset, line
        offset += len(line)


def decode_text(line: bytes, number: int) -> str:
    """The text of a line; what is none in it is replaced.

    Args:
        line: As `read_lines` gives it.
        number: The first may begin with a byte order mark.
    """
    return line.decode('utf-8-sig' if number == 1 else 'utf-8', 'replace')
