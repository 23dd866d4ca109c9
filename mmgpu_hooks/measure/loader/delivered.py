"""What the batches held that the loop took, as the workers saw them.

A worker looks at each batch that it has made and leaves what it held on the board,
under the number that the loader gave it. The loop takes batches in the order of these
numbers, so which ones it took is known from two numbers of the iterator.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Sequence
from operator import lt
from typing import Any, Callable, Optional

from mmgpu_hooks.measure.loader import board
from mmgpu_hooks.measure.loader.board import Slot

Figures = list[Optional[float]]
Held = tuple[Figures, Figures, Figures]
"""Images, pixels and boxes of some batches, as in :class:`Contents`."""

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
        self._places: list[int] = []
        """By slot, how many of its batches need not be looked at again."""
        self._taken = 0
        self._epoch: Any = None
        """What the iterator makes anew whenever its numbers begin anew."""
        self._found: Held = ([], [], [])
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
        self._places = [0] * len(self._slots)
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
        known = len(self._found[0])
        for index, slot in enumerate(self._slots):
            self._take(index, slot, before, taken)
        self._is_lost |= len(self._found[0]) - known < taken - before

    def _take(self, index: int, slot: Slot, before: int, taken: int) -> None:
        """Take what a worker left of the batches ``before`` to ``taken``."""
        batches = int(slot.figures[board.BATCHES])
        first = max(self._places[index], batches - board.RING)
        figures = _read(slot, first, batches)
        numbers = figures[:: board.DELIVERY]
        begin = 0
        if not all(map(lt, numbers, numbers[1:])):
            # a number that is no higher than the one before is of a later epoch
            pairs = zip(numbers, numbers[1:])
            begin = max(at for at, (a, b) in enumerate(pairs, 1) if b <= a)
        begin = bisect_left(numbers, before, begin)
        end = bisect_left(numbers, taken, begin)
        self._places[index] = first + end
        # column by column: batch by batch would take five times as long
        for place, column in enumerate(self._found, 1):
            held = figures[
                board.DELIVERY * begin + place : board.DELIVERY * end : board.DELIVERY
            ]
            column.extend(map(_known, held) if board.UNKNOWN in held else held)

    def drain(self) -> Held | None:
        """The batches taken since the last call.

        Returns:
            ``None`` when one was not found.
        """
        self.collect()
        found, is_lost = self._found, self._is_lost or not self._slots
        self._found, self._is_lost = ([], [], []), False
        return None if is_lost else found


def _read(slot: Slot, first: int, end: int) -> list[float]:
    """What a worker left of its batches, counted from its first one."""
    start, ring = board.DELIVERY_RING, board.DELIVERY * board.RING
    if first == end:
        return []
    begin = board.DELIVERY * first % ring
    stop = begin + board.DELIVERY * (end - first)
    figures = slot.read_figures(start + begin, start + min(stop, ring))
    if stop > ring:
        figures += slot.read_figures(start, start + stop - ring)
    return figures


def _known(figure: float) -> float | None:
    return None if figure == board.UNKNOWN else figure
