"""What the batches held that the loop took, as the workers saw them.

A worker looks at each batch that it has made and leaves what it held on the board,
under the number that the loader gave it. The loop takes batches in the order of these
numbers, so which ones it took is known from two numbers of the iterator.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Callable

from mmgpu_hooks.telemetry.loader import board
from mmgpu_hooks.telemetry.loader.batch_contents import Contents
from mmgpu_hooks.telemetry.loader.board import Slot

_SELDOM = 64
"""Batches between two looks at the board, which keeps some more of each worker."""


class DeliveredBatches:
    """Follows an iterator's batches.

    Where a batch is not found, because another iterator made it, or a worker that
    failed, nothing is told until the next :meth:`drain`.
    """

    def __init__(self) -> None:
        self._iterator: Callable[[], Any] = lambda: None
        self._slots: Sequence[Slot] = ()
        self._taken = 0
        self._epoch: Any = None
        """What the iterator makes anew whenever its numbers begin anew."""
        self._found: list[Contents] = []
        self._is_lost = False

    def follow(self, iterator: Any, slots: Sequence[Slot]) -> None:
        """Follow a new iterator.

        Args:
            iterator: The loader's iterator.
            slots: What its workers write to, by worker id; without any, nothing is
                told.
        """
        self.collect()
        self._slots = slots if hasattr(iterator, '_rcvd_idx') else ()
        self._iterator = weakref.ref(iterator) if self._slots else lambda: None
        self._taken, self._epoch = 0, getattr(iterator, '_task_info', None)

    def collect(self, is_due: bool = True) -> None:
        """Look at the batches taken since the last call.

        Args:
            is_due: Else only if they are many.
        """
        iterator = self._iterator()
        if iterator is None:
            return
        taken, before = iterator._rcvd_idx, self._taken
        epoch = getattr(iterator, '_task_info', None)
        if epoch is not self._epoch or taken < before:
            # the workers live on and the numbers began anew; what was taken
            # before that was looked at when the last one was asked for
            self._epoch, self._taken, before = epoch, 0, 0
        if taken == before or not (is_due or taken - before >= _SELDOM):
            return
        self._taken = taken
        wanted = range(before, taken)
        found = {
            number: held
            for slot in self._slots
            for number, held in _read_newest(slot, before)
            if number in wanted
        }
        self._found += found.values()
        self._is_lost |= len(found) < len(wanted)

    def drain(self) -> list[Contents] | None:
        """The batches taken since the last call.

        Returns:
            ``None`` when one was not found.
        """
        self.collect()
        found, is_lost = self._found, self._is_lost or not self._slots
        self._found, self._is_lost = [], False
        return None if is_lost else found


def _read_newest(slot: Slot, first: int) -> Iterator[tuple[int, Contents]]:
    """What a worker left, newest first, down to the number ``first``."""
    batches = int(slot.figures[board.BATCHES])
    used = board.DELIVERY * min(batches, board.RING)
    # at once: entry by entry would take thrice as long
    ring = slot.read_figures(board.DELIVERY_RING, board.DELIVERY_RING + used)
    last: float | None = None
    for count in range(batches, max(batches - board.RING, 0), -1):
        begin = board.DELIVERY * ((count - 1) % board.RING)
        number, images, pixels, boxes = ring[begin : begin + board.DELIVERY]
        # a higher number than before is of an epoch that is over
        if number < first or (last is not None and number >= last):
            return
        last = number
        yield (
            int(number),
            Contents(
                None if images == board.UNKNOWN else int(images),
                None if pixels == board.UNKNOWN else int(pixels),
                None if boxes == board.UNKNOWN else int(boxes),
            ),
        )
