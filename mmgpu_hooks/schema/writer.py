"""Appends records to an evidence file so that a reader never meets half a one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from mmgpu_hooks.schema.lines import encode_line
from mmgpu_hooks.schema.recorded import Line, RunRecord

LEAST_FREE_BYTES = 16 * 2**20
"""With less free, MMEngine's own logs and checkpoints need it more."""


class EvidenceWriter:
    """One open evidence file.

    Each record goes out in one unbuffered append, so a run that is killed leaves
    every earlier line whole. When a write fails half-way (a full disk), the half
    line is cut off again before the error is raised.

    Args:
        path: File to append to; its folder is made.
        warn: Called once, when records are left out for want of room on the disk.

    Raises:
        OSError: If the folder or the file cannot be made.
    """

    def __init__(
        self, path: Path, warn: Callable[[str], None] = lambda sentence: None
    ) -> None:
        self._warn: Callable[[str], None] | None = warn
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._fd: int | None = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )

    def find_lack(self) -> str | None:
        """What is left on the disk, as a clause, where that is for the training."""
        if self._fd is None or not hasattr(os, 'fstatvfs'):  # as on Windows
            return None
        room = os.fstatvfs(self._fd)
        free, least = room.f_bavail * room.f_frsize, LEAST_FREE_BYTES
        if not room.f_blocks or free >= least:
            return None
        # rounded down: 16.0 MiB would not be less than 16
        mib = free * 10 // 2**20 / 10
        return f'{mib:.1f} MiB are free, less than {least / 2**20:.0f} MiB'

    def write(self, record: Line) -> None:
        """Append one record, if there is room.

        Raises:
            OSError: If it could not be written whole; nothing of it is left.
        """
        if self._fd is None:
            raise OSError(f'{self.path} is already closed')
        lack = self.find_lack()
        if lack is not None:
            if self._warn is not None:
                self._warn(f'GPUEfficiencyHook: no evidence is written while {lack}.')
                self._warn = None
            return
        data = encode_line(record)
        written = 0
        try:
            written = os.write(self._fd, data)
            if written < len(data):
                written += os.write(self._fd, data[written:])
            if written < len(data):
                raise OSError(f'{self.path}: only a part of a record was written')
        except OSError:
            if written:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
            raise

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def open_evidence(
    path: Path, run: RunRecord, warn: Callable[[str], None] = lambda sentence: None
) -> EvidenceWriter:
    """Begin an evidence file with its run record, or leave none behind.

    A file without that record is none that anybody could read.

    Args:
        path: File to make; its folder is made too.
        run: First record of it.
        warn: As for `EvidenceWriter`.

    Raises:
        OSError: If the file cannot be made or the record not be written.
    """
    writer = EvidenceWriter(path, warn)
    try:
        lack = writer.find_lack()
        if lack is not None:
            raise OSError(lack)
        writer.write(run)
    except BaseException:
        writer.close()
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    return writer
