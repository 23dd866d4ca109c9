"""Memory that the loader's workers write to and the training process reads.

Each worker has a slot that it alone writes to (but for one number), so nothing is
locked. All figures are 8-byte floats, written last-to-first of importance: a count is
raised after what it counts.
"""

from __future__ import annotations

import mmap
import multiprocessing
from typing import Any

RING = 256
"""Last batches whose exact figures are kept."""
ROWS = 40
"""Classes of transforms; further ones are left out."""
TOP = 4
"""Slowest samples kept."""

# the figures of a slot, by position
STATE = 0
BATCHES = 1
WALL_SUM = 2
CPU_SUM = 3
TIMED_SAMPLES = 4
ROWS_USED = 5
GENERATION = 6
"""Of the slowest samples, as the worker last saw it."""
ASKED_GENERATION = 7
"""Written by the reader: from here on, keep slowest samples anew."""
LOADING_SINCE = 8
"""When the sample that is being made was begun, monotonic; 0 between samples."""
LOADING_INDEX = 9
STACK_SIGNAL = 10
"""How to ask for the worker's stack, see `call_stack`; 0 where it does not offer."""
STACK_FILE = 11
HEAD = 12
TOP_SECONDS = HEAD
TOP_INDEX = TOP_SECONDS + TOP
WALL_RING = TOP_INDEX + TOP
CPU_RING = WALL_RING + RING
ROW_FIGURES = CPU_RING + RING
"""Calls and seconds of each row in turn."""
DELIVERY_RING = ROW_FIGURES + 2 * ROWS
"""Of the last batches: number in the loader's order, images, pixels, boxes."""
DELIVERY = 4
UNKNOWN = -1.0
"""In the place of a figure of a delivery."""
FLOATS = DELIVERY_RING + DELIVERY * RING

RUNNING = 1.0
OFF = 2.0

# texts behind the figures, each closed by a zero byte or its end
ROW_TEXT = 48
TOP_TEXT = 200
REASON_TEXT = 160
_ROW_TEXTS = FLOATS * 8
_TOP_TEXTS = _ROW_TEXTS + ROWS * ROW_TEXT
_REASON = _TOP_TEXTS + TOP * TOP_TEXT
SLOT_BYTES = -(-(_REASON + REASON_TEXT) // 64) * 64


class Slot:
    """One worker's part of the board.

    Attributes:
        figures: Its figures, by the positions of this module.
    """

    def __init__(self, memory: memoryview) -> None:
        self._bytes = memory
        self.figures: memoryview[float] = memory[: FLOATS * 8].cast('d')

    def read_figures(self, start: int, end: int) -> list[float]:
        """Several figures at once, by position."""
        # typeshed takes every memoryview for one of bytes; a cast would be a call more
        untyped: Any = self.figures[start:end].tolist()
        figures: list[float] = untyped
        return figures

    def write_row_name(self, row: int, name: str) -> None:
        """Name a row of transforms."""
        self._write(_ROW_TEXTS + row * ROW_TEXT, ROW_TEXT, name)

    def read_row_name(self, row: int) -> str:
        """The name of a row of transforms."""
        return self._read(_ROW_TEXTS + row * ROW_TEXT, ROW_TEXT)

    def write_sample_name(self, place: int, name: str) -> None:
        """Name one of the slowest samples."""
        self._write(_TOP_TEXTS + place * TOP_TEXT, TOP_TEXT, name)

    def read_sample_name(self, place: int) -> str:
        """The name of one of the slowest samples; '' when it has none."""
        return self._read(_TOP_TEXTS + place * TOP_TEXT, TOP_TEXT)

    def write_reason(self, reason: str) -> None:
        """Say why the worker measures no longer."""
        self._write(_REASON, REASON_TEXT, reason)

    def read_reason(self) -> str:
        """Why the worker measures no longer; '' as long as it does."""
        return self._read(_REASON, REASON_TEXT)

    def _write(self, start: int, size: int, text: str) -> None:
        encoded = text.encode('utf-8', 'replace')[:size]
        self._bytes[start : start + size] = encoded.ljust(size, b'\0')

    def _read(self, start: int, size: int) -> str:
        text = bytes(self._bytes[start : start + size]).split(b'\0', 1)[0]
        return text.decode('utf-8', 'ignore')


def make_private_slot() -> Slot:
    """A slot for a loader that loads in this process."""
    return Slot(memoryview(bytearray(SLOT_BYTES)))


class Board:
    """The slots of all workers of one iterator.

    Forked workers inherit it, without any file. For others it can be pickled while
    they are being started, and then holds one descriptor.

    Args:
        workers: Workers.
        start_method: ``fork``, ``spawn`` or ``forkserver``.
    """

    def __init__(self, workers: int, start_method: str) -> None:
        size = max(workers, 1) * SLOT_BYTES
        # page by page it would be a worker that finds shared memory to be full
        self._memory: Any = (
            mmap.mmap(-1, size)
            if start_method == 'fork'
            else multiprocessing.RawArray('b', size)
        )

    def slot(self, worker_id: int) -> Slot:
        """One worker's slot."""
        start = worker_id * SLOT_BYTES
        view = memoryview(self._memory).cast('B')
        return Slot(view[start : start + SLOT_BYTES])
