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

# columns of the ring
NUMBER, WALL_S, CPU_S, IMAGES, PIXELS, BOXES = range(6)
_ROW = 6

# figures of a worker
MADE = 0
"""Batches it made."""
WALL_SUM, CPU_SUM, FETCH_CPU_SUM = 1, 2, 3
"""Seconds of the fetches, CPU from one to the next, CPU of the fetches alone."""
LOADING_SINCE, LOADING_INDEX = 4, 5
"""When the sample that is being made was begun, monotonic, and its index; 0 between
samples, -1 for an index that is no number."""
STACK_SIGNAL, STACK_FILE = 6, 7
"""How to ask for the worker's stack, see `call_stack`; 0 where it does not offer."""
SEQUENCE, _LENGTH = 8, 9
FILE_LENGTH = 10
"""Bytes of the name of the file that is being loaded; 0 while it is unknown."""
_HEAD = 16

_RING_BYTES = RING * _ROW * 8
_HEAD_BYTES = _HEAD * 8
_TEXT_BYTES, _FILE_BYTES = 8192, 512
_WORKER_BYTES = _HEAD_BYTES + _TEXT_BYTES + _FILE_BYTES

Figures = NDArray[np.float64]


class Counters:
    """The shared memory of one iterator's workers.

    Forked workers inherit it, without any file. For others it can be pickled while
    they are being started, and then holds one descriptor.

    Args:
        workers: How many.
        start_method: ``fork``, ``spawn`` or ``forkserver``.
    """

    def __init__(self, workers: int, start_method: str | None = 'fork') -> None:
        size = _RING_BYTES + workers * _WORKER_BYTES
        self.workers = workers
        self._memory: Any = (
            mmap.mmap(-1, size)
            if start_method == 'fork'
            else multiprocessing.RawArray('b', size)
        )

    def ring(self) -> Figures:
        """The newest batches, ``(RING, 6)``; a figure that is unknown is NaN."""
        return self._floats(RING * _ROW, 0).reshape(RING, _ROW)

    def head(self, worker: int) -> Figures:
        """A worker's figures."""
        return self._floats(_HEAD, self._start(worker))

    def write_notes(self, worker: int, notes: dict[str, Any]) -> None:
        """Leave what is no figure; too much of it is left out."""
        text = json.dumps(notes).encode()
        if len(text) > _TEXT_BYTES:
            return
        head, start = self.head(worker), self._start(worker) + _HEAD_BYTES
        # odd while it is being written
        head[SEQUENCE] += 1
        memoryview(self._memory).cast('B')[start : start + len(text)] = text
        head[_LENGTH] = len(text)
        head[SEQUENCE] += 1

    def read_notes(self, worker: int, seen: float) -> tuple[float, dict[str, Any]]:
        """A worker's notes.

        Args:
            worker: Its id.
            seen: What the last call returned first; 0 before that.

        Returns:
            A mark, and the notes, which are empty when they are those of the last call.
        """
        head, start = self.head(worker), self._start(worker) + _HEAD_BYTES
        sequence = float(head[SEQUENCE])
        if sequence == seen or sequence % 2:
            return seen, {}
        end = start + int(head[_LENGTH])
        text = bytes(memoryview(self._memory).cast('B')[start:end])
        if head[SEQUENCE] != sequence:  # written anew meanwhile
            return seen, {}
        notes: dict[str, Any] = json.loads(text)
        return sequence, notes

    def write_file(self, worker: int, name: str) -> None:
        """Leave the name of the file that is being loaded; of a long one, its end."""
        text = name.encode('utf-8', 'replace')[-_FILE_BYTES:]
        head, start = self.head(worker), self._start(worker) + _HEAD_BYTES + _TEXT_BYTES
        head[FILE_LENGTH] = 0  # a reader finds none until it is whole
        memoryview(self._memory).cast('B')[start : start + len(text)] = text
        head[FILE_LENGTH] = len(text)

    def read_file(self, worker: int) -> str | None:
        """Name of the file that a worker loads; ``None`` while it is unknown."""
        head, start = self.head(worker), self._start(worker) + _HEAD_BYTES + _TEXT_BYTES
        end = start + int(head[FILE_LENGTH])
        text = bytes(memoryview(self._memory).cast('B')[start:end])
        return text.decode('utf-8', 'replace') or None

    def _start(self, worker: int) -> int:
        return _RING_BYTES + worker * _WORKER_BYTES

    def _floats(self, count: int, start: int) -> Figures:
        return np.frombuffer(self._memory, np.float64, count, start)
