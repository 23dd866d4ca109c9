"""What batches hold: examined where they are made, or where they arrive.

Batches are examined from outside, without torch: anything with a ``shape`` is an
array.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from operator import lt
from typing import Any, Callable, NamedTuple, Optional

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.loader import board
from mmgpu_hooks.measure.loader.board import Slot

_ODD = (TypeError, ValueError, AttributeError, LookupError, RuntimeError)
"""What looking into an object of unknown make may raise."""


_MOST_PARTS = 20_000
"""Looking at so many takes 5 ms."""
_MOST_KINDS = 256

_PLAIN, _TENSOR, _ITEMS, _ELEMENT, _MAPPING, _OTHER = (
    'plain',
    'tensor',
    'items',
    'element',
    'mapping',
    'other',
)
_kinds: dict[type[Any], str] = {
    **dict.fromkeys((int, float, bool, str, bytes, set, type(None)), _PLAIN),
    dict: _MAPPING,
}
"""What a part of a batch is, by its class: to find out takes longer than to count."""


class Contents(NamedTuple):
    """What a batch holds; ``None`` is unknown."""

    images: int | None = None
    pixels: int | None = None
    """Padded."""
    boxes: int | None = None
    """Annotated."""


def fold_contents(
    images: Sequence[float | None],
    pixels: Sequence[float | None],
    boxes: Sequence[float | None],
) -> Contents:
    """All images of some batches, and the largest of the batches.

    Args:
        images: Of each batch.
        pixels: Padded, of each batch.
        boxes: Annotated, of each batch.
    """
    if not images:
        return Contents()
    return Contents(_sum_up(images), _most(pixels), _most(boxes))


def _sum_up(figures: Sequence[Any]) -> int | None:
    try:
        return int(sum(figures))
    except TypeError:  # None is no number
        return None


def _most(figures: Sequence[Any]) -> int | None:
    try:
        # to look for what is unknown takes longer than all the rest
        return int(max(figures))
    except TypeError:
        known = [figure for figure in figures if figure is not None]
        return int(max(known)) if known else None


class BatchWatch:
    """Looks at batches, in one walk over each.

    Pixels are those the model is given: the images of a batch are padded to the
    largest height and width among them, and those up to a multiple of the data
    preprocessor's ``pad_size_divisor``. What a preprocessor does beyond that (its
    ``batch_augments``) is not seen here. The branches
    of a semi-supervised batch are padded each on its own and added up, since one
    step goes through all of them.

    Boxes are those of ``gt_instances``; ``ignored_instances`` are left out.

    Looking at a batch of 2 images with boxes costs 1.1 us, of 8 images 3 us; between
    the steps of a real training, with cold caches, 8 us for 2. What a batch
    once turned out not to tell is not looked for again: the figure is ``None`` from
    then on, with a reason in :attr:`unknown`.

    Args:
        pad_size_divisor: Of the model's data preprocessor. Defaults to 1.
    """

    def __init__(self, pad_size_divisor: int = 1) -> None:
        self.unknown: dict[str, str] = {}
        """Why a figure is missing, by its name."""
        self._divisor = max(1, pad_size_divisor)
        self._is_plain = True

    def look(self, batch: Any) -> Contents:
        """Look at one batch of MMEngine's data protocol.

        Args:
            batch: What the loader returned: usually ``dict(inputs=...,
                data_samples=...)`` with one entry per image. Before the step,
                semi-supervised batches tell their number of images; after it no
                more, because their preprocessor changes them.
        """
        if not self._is_plain:
            return self._look_at_odd(batch)
        # MMDetection's own form, all in one function: between two steps the caches
        # are cold, and each function entered costs a microsecond and more
        try:
            inputs = batch['inputs']
            self._is_plain = type(inputs) is list
            height = width = boxes = 0
            for image in inputs if self._is_plain else ():
                _, rows, columns = image.shape
                if rows > height:
                    height = rows
                if columns > width:
                    width = columns
            for sample in batch['data_samples']:
                boxes += sample.gt_instances.labels.shape[0]
        except _ODD:
            self._is_plain = False
        if not self._is_plain:
            return self._look_at_odd(batch)
        images, divisor = len(inputs), self._divisor
        pixels = images * -(-height // divisor) * -(-width // divisor) * divisor**2
        return Contents(images, pixels, boxes)

    def _look_at_odd(self, batch: Any) -> Contents:
        pixels = boxes = None
        if isinstance(batch, (dict, Mapping)):
            inputs, samples = batch.get('inputs'), batch.get('data_samples')
        else:
            inputs, samples = _open_bare(batch)
        if 'largest_batch_pixels' not in self.unknown:
            try:
                pixels = self._count_pixels(inputs)
            except _ODD as error:
                self._give_up('largest_batch_pixels', 'images', inputs, error)
        if 'most_boxes' not in self.unknown:
            try:
                boxes = _count_boxes(samples)
            except _ODD as error:
                self._give_up('most_boxes', 'gt_instances', samples, error)
        return Contents(_count_images(inputs), pixels, boxes)

    def _give_up(self, figure: str, part: str, found: Any, error: Exception) -> None:
        kind = type(found[0] if isinstance(found, list) and found else found).__name__
        self.unknown[figure] = f'no {part} were found in the batch: {kind} ({error})'

    def _count_pixels(self, inputs: Any) -> int:
        if isinstance(inputs, (list, tuple)):
            shapes = [image.shape for image in inputs]
            height = max((rows for _, rows, _ in shapes), default=0)
            width = max((columns for _, _, columns in shapes), default=0)
            return len(inputs) * self._pad(height) * self._pad(width)
        if isinstance(inputs, (dict, Mapping)):
            branches = [_present(branch) for branch in inputs.values()]
            return sum(self._count_pixels(branch) for branch in branches)
        images, _, height, width = inputs.shape
        return int(images) * self._pad(height) * self._pad(width)

    def _pad(self, side: int) -> int:
        return -(-side // self._divisor) * self._divisor


def _count_boxes(samples: Any) -> int:
    if isinstance(samples, (dict, Mapping)):
        return sum(_count_boxes(_present(branch)) for branch in samples.values())
    boxes = 0
    for sample in samples:
        instances = sample.gt_instances
        labels = getattr(instances, 'labels', None)
        # the length of an InstanceData itself costs four times as much
        boxes += len(instances if labels is None else labels)
    return boxes


def _count_images(inputs: Any) -> int | None:
    if isinstance(inputs, (list, tuple)):
        return len(inputs)
    if isinstance(inputs, (dict, Mapping)):
        return _count_branch_images(list(inputs.values()))
    shape = getattr(inputs, 'shape', None)
    return int(shape[0]) if shape else None


def _count_branch_images(branches: list[Any]) -> int | None:
    """Each branch names every image, ``None`` where it is not in the branch."""
    lists = [branch for branch in branches if isinstance(branch, (list, tuple))]
    is_whole = any(item is None for branch in lists for item in branch)
    lengths = {len(branch) for branch in lists}
    return lengths.pop() if is_whole and len(lengths) == 1 else None


def _present(branch: Any) -> Any:
    if isinstance(branch, (list, tuple)):
        return [item for item in branch if item is not None]
    return branch


def _open_bare(batch: Any) -> tuple[Any, Any]:
    """Inputs and data samples of a batch that is no mapping.

    It may be ``(images, targets)``, a list with one mapping per image, or the
    images themselves.
    """
    if not isinstance(batch, (list, tuple)) or not batch:
        return batch, None
    first = batch[0]
    if isinstance(first, (dict, Mapping)):
        return (
            [item.get('inputs') for item in batch],
            [item.get('data_samples') for item in batch],
        )
    is_stack = isinstance(first, (list, tuple)) or len(getattr(first, 'shape', ())) == 4
    return (first, None) if is_stack else (batch, None)


def fold_stored_ratio(batch: Any) -> float | None:
    """Pixels of a batch's images as stored, over those they are trained at.

    MMDetection's data samples tell both: ``ori_shape`` and ``img_shape``.
    """
    try:
        samples = batch['data_samples']
        stored = sum(one.ori_shape[0] * one.ori_shape[1] for one in samples)
        return float(
            stored / sum(one.img_shape[0] * one.img_shape[1] for one in samples)
        )
    except (*_ODD, ZeroDivisionError):
        return None


def count_tensors(batch: Any) -> tuple[int, int]:
    """How many tensors a batch carries, and their bytes.

    Data samples are known by the ``all_items`` of MMEngine's ``BaseDataElement``,
    boxes by their ``tensor``. It costs 5 us per image, so once per interval.

    Args:
        batch: What the loader returned.

    Raises:
        SourceError: If the batch has too many parts to look at each, or contains
            itself.
    """
    tensors = size = looked_at = 0
    kinds, left = _kinds, [batch]
    while left:
        looked_at += 1
        if looked_at > _MOST_PARTS:
            raise SourceError(f'a batch has more than {_MOST_PARTS} parts')
        part = left.pop()
        kind = kinds.get(type(part)) or _note_kind(type(part))
        if kind is _PLAIN:
            continue
        if kind is _TENSOR:
            tensors += 1
            size += part.nelement() * part.element_size()
        elif kind is _ITEMS:
            left += part
        elif kind is _ELEMENT:
            # asked itself, it would take four times as long
            left += vars(part).values()
        elif kind is _MAPPING:
            left += part.values()
        elif hasattr(type(getattr(part, 'tensor', None)), 'nelement'):
            left.append(part.tensor)
    return tensors, size


def _note_kind(kind: type[Any]) -> str:
    found = _OTHER
    if issubclass(kind, (list, tuple)):
        found = _ITEMS
    elif hasattr(kind, 'nelement') and hasattr(kind, 'element_size'):
        found = _TENSOR
    elif hasattr(kind, 'all_items'):
        found = _ELEMENT
    elif issubclass(kind, Mapping):
        found = _MAPPING
    if len(_kinds) < _MOST_KINDS:
        _kinds[kind] = found
    return found


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
