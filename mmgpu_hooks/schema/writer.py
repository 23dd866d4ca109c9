"""Appends records to an evidence file, each completely or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from mmgpu_hooks.schema.lines import encode_line
from mmgpu_hooks.schema.recorded import EvidenceLine, RunRecord
from mmgpu_hooks.schema.text import phrase


class EvidenceWriter:
    """Writer that appends records, as JSON lines, to one open evidence file.

    Each record goes out in one unbuffered append, so a run that is killed leaves
    every earlier line whole. When a write fails half-way (a full disk), the half
    line is cut off again before the error is raised.

    Args:
        path: File to append to; its folder is made.

    Raises:
        OSError: If the folder or the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._fd: int | None = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )

    def write(self, record: EvidenceLine) -> None:
        """Appends one record to the evidence file.

        Raises:
            OSError: If it could not be written whole; nothing of it is left.
        """
        if self._fd is None:
            raise OSError(phrase('{path} is already closed', path=self.path))
        data, written = encode_line(record), 0
        try:
            while written < len(data):
                taken = os.write(self._fd, data[written:])
                if not taken:
                    raise OSError(
                        phrase('{path}: the file system takes no more', path=self.path)
                    )
                written += taken
        except OSError:
            if written:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
            raise

    def close(self) -> None:
        """Closes the evidence file; a second call does nothing."""
        # forgotten first: closed twice, by two threads, it may be another file by then
        descriptor, self._fd = self._fd, None
        if descriptor is not None:
            os.close(descriptor)


def open_evidence(path: Path, run: RunRecord) -> EvidenceWriter:
    """Creates an evidence file with its run record, or leaves no file behind.

    A file without that record is none that anybody could read.

    Args:
        path: File to make; its folder is made too.
        run: First record of it.

    Raises:
        OSError: If the file cannot be made or the record not be written.
    """
    writer = EvidenceWriter(path)
    try:
        writer.write(run)
    except BaseException:
        writer.close()
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    return writer
