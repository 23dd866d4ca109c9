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

RING = 2048
"""Newest batches that are kept; more than are ever in flight."""

# columns of the ring: CPU from one fetch to the next, CPU of the fetch alone
NUMBER, WALL_S, CPU_S, FETCH_CPU_S, IMAGES, PIXELS, BOXES = range(7)
_ROW = 7

# figures of a worker
MADE = 0
"""Batches it made."""
LOADING_SINCE, LOADING_INDEX = 1, 2
"""When the sample that is being made was begun, monotonic, and its index; 0 between
samples, -1 for an index that is no number."""
STACK_SIGNAL, STACK_FILE = 3, 4
"""How to ask for the worker's stack, see `call_stack`; 0 where it does not offer."""
SEQUENCE, _LENGTH = 5, 6
FILE_LENGTH = 7
"""Bytes of the name of the file that is being loaded; 0 while it is unknown."""
_HEAD = 8

_NOTES_BYTES, _FILE_BYTES = 8192, 512
_TEXT_BYTES = _NOTES_BYTES + _FILE_BYTES

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
        self, workers: int, start_method: str | None = 'fork', memory: Any = None
    ) -> None:
        ring, heads = RING * _ROW, workers * _HEAD
        if memory is None:
            size = 8 * (ring + heads) + workers * _TEXT_BYTES
            is_forked = start_method == 'fork'
            memory = (
                mmap.mmap(-1, size)
                if is_forked
                else multiprocessing.RawArray('b', size)
            )
        self._memory = memory
        self.ring: Figures = np.frombuffer(memory, count=ring).reshape(-1, _ROW)
        """The newest batches, a row each; a figure that is unknown is NaN."""
        self.heads: Figures = np.frombuffer(memory, count=heads, offset=8 * ring)
        """The workers' figures, a row each."""
        self.heads = self.heads.reshape(workers, _HEAD)
        self._texts = memoryview(memory).cast('B')[8 * (ring + heads) :]
        self._seen = np.zeros(workers)

    def __reduce__(self) -> tuple[Any, ...]:
        return Counters, (len(self.heads), None, self._memory)

    def write_notes(self, worker: int, notes: dict[str, Any]) -> None:
        """Leave what is no figure; too much of it is left out."""
        text = json.dumps(notes).encode()
        if len(text) > _NOTES_BYTES:
            return
        head, start = self.heads[worker], worker * _TEXT_BYTES
        # odd while it is being written
        head[SEQUENCE] += 1
        self._texts[start : start + len(text)] = text
        head[_LENGTH] = len(text)
        head[SEQUENCE] += 1

    def read_notes(self) -> dict[int, dict[str, Any]]:
        """The notes that were written since the last call, by worker."""
        found = {}
        for worker in np.flatnonzero(self.heads[:, SEQUENCE] != self._seen).tolist():
            head, start = self.heads[worker], worker * _TEXT_BYTES
            sequence = head[SEQUENCE]
            text = bytes(self._texts[start : start + int(head[_LENGTH])])
            # unless it is being written, or was meanwhile
            if sequence % 2 == 0 and head[SEQUENCE] == sequence:
                found[worker] = json.loads(text)
                self._seen[worker] = sequence
        return found

    def write_file(self, worker: int, name: str) -> None:
        """Leave the name of the file that is being loaded; of a long one, its end."""
        text = name.encode('utf-8', 'replace')[-_FILE_BYTES:]
        head, start = self.heads[worker], worker * _TEXT_BYTES + _NOTES_BYTES
        head[FILE_LENGTH] = 0  # a reader finds none until it is whole
        self._texts[start : start + len(text)] = text
        head[FILE_LENGTH] = len(text)

    def read_file(self, worker: int) -> str | None:
        """Name of the file that a worker loads; ``None`` while it is unknown."""
        start = worker * _TEXT_BYTES + _NOTES_BYTES
        end = start + int(self.heads[worker, FILE_LENGTH])
        return bytes(self._texts[start:end]).decode('utf-8', 'replace') or None
