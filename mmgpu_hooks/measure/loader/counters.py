"""Shared-memory counters that the loader's workers write and training reads.

Each worker has a line of figures and a text of its own, and all share one ring buffer
of the newest batches, in which a batch stands by its number in the loader's order. A
figure has one writer, so nothing is locked; a count is raised after what it counts.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
from typing import Any

import numpy as np
from numpy.typing import NDArray

RING = 16_384
"""Newest batches that are kept; an interval has 10,000 at most."""

# columns of the ring: CPU from one fetch to the next, CPU of the fetch alone
NUMBER, WALL_S, CPU_S, FETCH_CPU_S, IMAGES, PIXELS, BOXES = range(7)
_ROW = 7

# figures of a worker
MADE = 0
"""Batches it made."""
LOADING_SINCE, LOADING_INDEX = 1, 2
"""When the sample that is being made was begun, monotonic, and its index; 0 between
samples, -1 for an index that is no number."""
STACK_FILE = 3
"""Descriptor that the worker prints its stack into; 0 where it does not offer."""
SEQUENCE = 4
_HEAD = 5

_FILE_BYTES, _NOTES_BYTES = 512, 8192

Figures = NDArray[np.float64]


class Counters:
    """The shared memory of one iterator's workers.

    Forked workers inherit it, without any file. For others it can be pickled while
    they are being started, and then holds one descriptor.

    Args:
        workers: How many.
        start_method: ``fork``, ``spawn`` or ``forkserver``.
        memory: Where the figures are; by default new memory.
    """

    def __init__(
        self, workers: int, start_method: str = 'fork', memory: Any = None
    ) -> None:
        if memory is None:
            size = 8 * (RING * _ROW + workers * _HEAD)
            size += workers * (_FILE_BYTES + _NOTES_BYTES)
            if start_method == 'fork':
                memory = mmap.mmap(-1, size)
            else:
                memory = multiprocessing.RawArray('b', size)
        self._memory = memory
        figures = np.frombuffer(memory, np.float64, RING * _ROW + workers * _HEAD)
        self.ring: Figures = figures[: RING * _ROW].reshape(RING, _ROW)
        """The newest batches, a row each; a figure that is unknown is NaN."""
        self.heads: Figures = figures[RING * _ROW :].reshape(workers, _HEAD)
        """The workers' figures, a row each."""
        end = figures.nbytes
        self._files = np.frombuffer(memory, f'S{_FILE_BYTES}', workers, end)
        end += self._files.nbytes
        self._notes = np.frombuffer(memory, f'S{_NOTES_BYTES}', workers, end)
        self._seen = np.zeros(workers)

    def __reduce__(self) -> tuple[Any, ...]:
        return Counters, (len(self.heads), '', self._memory)

    def write_notes(self, worker: int, notes: dict[str, Any]) -> None:
        """Leave what is no figure; too much of it is left out."""
        text = json.dumps(notes).encode()
        if len(text) <= _NOTES_BYTES:
            # odd while it is being written
            self.heads[worker, SEQUENCE] += 1
            self._notes[worker] = text
            self.heads[worker, SEQUENCE] += 1

    def read_notes(self) -> dict[int, dict[str, Any]]:
        """The notes that were written since the last call, by worker."""
        found = {}
        for worker in np.flatnonzero(self.heads[:, SEQUENCE] != self._seen).tolist():
            sequence = self.heads[worker, SEQUENCE]
            text = self._notes[worker]
            # unless it is being written, or was meanwhile
            if sequence % 2 == 0 and self.heads[worker, SEQUENCE] == sequence:
                found[worker] = json.loads(text)
                self._seen[worker] = sequence
        return found

    def write_file(self, worker: int, name: str) -> None:
        """Leave the name of the file that is being loaded; empty: it is unknown."""
        self._files[worker] = name.encode('utf-8', 'replace')[-_FILE_BYTES:]

    def read_file(self, worker: int) -> str | None:
        """Name of the file that a worker loads; ``None`` while it is unknown."""
        return bytes(self._files[worker]).decode('utf-8', 'replace') or None
