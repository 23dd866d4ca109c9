"""The file that a run leaves which is killed before it has any evidence."""

from __future__ import annotations

import threading
from pathlib import Path

from mmgpu_hooks.schema.recorded import EvidenceLine
from mmgpu_hooks.schema.run_folder import start_name
from mmgpu_hooks.schema.writer import EvidenceWriter


class StartFile:
    """Made with its first record, and gone once there is evidence or no training.

    Args:
        folder: That the evidence will be in.
        rank: Of this process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = folder / start_name(rank)
        self._lock = threading.Lock()
        self._writer: EvidenceWriter | None = None
        self._is_open = True

    def write(self, record: EvidenceLine) -> None:
        """Add a record, from any thread.

        Raises:
            OSError: If it cannot be written.
        """
        with self._lock:
            if self._writer is None and self._is_open:
                self._writer = EvidenceWriter(self._path)
            if self._writer is not None:
                self._writer.write(record)

    def close(self) -> None:
        """Delete the file; a second call does nothing."""
        with self._lock:
            self._is_open = False
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            writer.path.unlink(missing_ok=True)
