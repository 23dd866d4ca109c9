"""Shared memory into which the loader's workers write batch times for the training.

Each worker has a line of figures and a text of its own, and all share one ring buffer
of the newest batches, in which a batch stands by its number in the loader's order. A
figure has one writer, so nothing is locked; a count is raised after what it counts.
"""

from __future__ import annotations

import json
import math
import mmap
import multiprocessing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmgpu_hooks.measure.loader.batches import Contents

RING = 16_384
"""Capacity of the workers' ring buffer, in batches; newer ones overwrite older ones.

An interval has 10,000 at most.
"""

BATCH = np.dtype(
    [
        # in the loader's order; it is written first, so that a row that is being
        # overwritten is not taken for the batch that stood there
        ('number', np.float64),
        # from the begin of the fetch to its end
        ('wall_s', np.float64),
        # CPU from one fetch to the next, and of the fetch alone
        ('cpu_s', np.float64),
        ('fetch_cpu_s', np.float64),
        *((name, np.float64) for name in Contents._fields),
    ]
)
"""Row type of the ring buffer: a batch's number, seconds, contents; NaN if unknown."""

WORKER = np.dtype(
    [
        # batches it made
        ('made', np.float64),
        # when the sample that is being made was begun, monotonic, and its index; 0
        # between samples, -1 for an index that is no number
        ('loading_since_s', np.float64),
        ('loading_index', np.float64),
        # when its batch was begun, how many samples that has, and how many were begun
        ('batch_since_s', np.float64),
        ('batch_samples', np.float64),
        ('batch_begun', np.float64),
        # descriptor that it prints its stack into; 0 where it does not offer
        ('stack_file', np.float64),
        # raised before and after its notes are written: odd meanwhile
        ('sequence', np.float64),
    ]
)
"""Row type of a worker's shared counters: batches made, and sample being loaded."""

_FILE_BYTES, _NOTES_BYTES = 512, 8192

Rows = NDArray[np.void]
"""Type of structured arrays of batches or workers, read as ``rows['wall_s']``."""


@dataclass(frozen=True)
class WorkerNotes:
    """Message of a worker to training: transform seconds, OpenCV threads, failure."""

    transforms_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds inside transforms by class name, summed over the timed samples."""
    timed_samples: int = 0
    opencv_threads: int | None = None
    """Number of OpenCV's threads in the worker; ``None`` if it is not loaded."""
    failure: str | None = None
    """Reason why measuring in the worker ended; other fields are invalid then."""


def join_rows(parts: Sequence[Rows]) -> Rows:
    """Concatenates arrays of measured batches (rows of type :data:`BATCH`) into one."""
    if len(parts) == 1:
        return parts[0]
    # numpy compares types of rows name by name
    cells = [part.view(np.float64) for part in parts]
    return np.concatenate([np.empty(0), *cells]).view(BATCH)


class Counters:
    """Shared memory to which one DataLoader iterator's workers write measurements.

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
            size = RING * BATCH.itemsize + workers * WORKER.itemsize
            size += workers * (_FILE_BYTES + _NOTES_BYTES)
            if start_method == 'fork':
                memory = mmap.mmap(-1, size)
            else:
                memory = multiprocessing.RawArray('b', size)
        self._memory = memory
        self.ring: Rows = np.frombuffer(memory, BATCH, RING)
        """Ring buffer of the newest batches, one row of type :data:`BATCH` each."""
        # rows of numbers alone are copied twice as fast
        self._cells = self.ring.view(np.float64).reshape(len(self.ring), -1)
        end = self.ring.nbytes
        self.workers: Rows = np.frombuffer(memory, WORKER, workers, end)
        """Counters of the DataLoader's workers, one row of type :data:`WORKER` each."""
        end += self.workers.nbytes
        self._files = np.frombuffer(memory, f'S{_FILE_BYTES}', workers, end)
        end += self._files.nbytes
        self._notes = np.frombuffer(memory, f'S{_NOTES_BYTES}', workers, end)
        self._sequences = self.workers['sequence']
        self._seen = np.zeros(workers)

    def __reduce__(self) -> tuple[Any, ...]:
        return Counters, (len(self.workers), '', self._memory)

    def write_batch(
        self,
        *,
        number: int,
        wall_s: float,
        cpu_s: float,
        fetch_cpu_s: float,
        held: Contents,
    ) -> None:
        """Writes a batch's row into the ring buffer, over the oldest one."""
        counts = [math.nan if count is None else count for count in held]
        # in one go, in the order of `BATCH`
        row = (number, wall_s, cpu_s, fetch_cpu_s, *counts)
        self.ring[number % len(self.ring)] = row

    def read_batches(self, first: int, stop: int) -> Rows:
        """Reads rows of batches by number; those already overwritten are left out.

        Args:
            first: Number of the first one.
            stop: Number behind the last one.
        """
        size = len(self.ring)
        numbers = np.arange(max(first, stop - size), stop)
        rows = self._cells[numbers % size].view(BATCH)[:, 0]
        return np.compress(rows['number'] == numbers, rows)

    def write_notes(self, worker: int, notes: WorkerNotes) -> None:
        """Writes a worker's `WorkerNotes` to shared memory, unless it is too long."""
        text = json.dumps(vars(notes)).encode()
        if len(text) <= _NOTES_BYTES:
            # odd while it is being written
            self._sequences[worker] += 1
            self._notes[worker] = text
            self._sequences[worker] += 1

    def read_notes(self) -> dict[int, WorkerNotes]:
        """Reads loader workers' messages written since the last call, by worker id."""
        found = {}
        for worker in np.flatnonzero(self._sequences != self._seen).tolist():
            sequence = self._sequences[worker]
            text = self._notes[worker]
            # unless it is being written, or was meanwhile
            if sequence % 2 == 0 and self._sequences[worker] == sequence:
                found[worker] = WorkerNotes(**json.loads(text))
                self._seen[worker] = sequence
        return found

    def write_file(self, worker: int, name: str) -> None:
        """Writes the name of the image file that a worker loads; empty if unknown."""
        self._files[worker] = name.encode('utf-8', 'replace')[-_FILE_BYTES:]

    def read_file(self, worker: int) -> str | None:
        """Returns the image file name that a worker loads now; ``None`` if unknown."""
        return bytes(self._files[worker]).decode('utf-8', 'replace') or None
