"""Counts the images, padded pixels, annotated boxes and tensors of a batch.

Batches are examined from outside, without torch: anything with a ``shape`` is an
array.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, TypeVar

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.schema.text import phrase

_ODD = (TypeError, ValueError, AttributeError, LookupError, RuntimeError)
"""Exceptions that may be raised while reading a batch of unknown structure."""

_T = TypeVar('_T')

SMALL_BYTES = 4096
"""Size in bytes of the largest tensor that workers can send within a message."""

_MOST_PARTS = 20_000
"""Maximum number of objects in a batch that are searched for tensors."""


class Contents(NamedTuple):
    """Number of images, padded pixels and boxes in one batch; ``None`` is unknown.

    Each field has a column of its own in the workers' ring buffer.
    """

    images: int | None = None
    pixels: int | None = None
    """Number of pixels of all images of the batch, padding included."""
    boxes: int | None = None
    """Number of annotated boxes in the batch."""
    height: int | None = None
    """Padded height in pixels of the batch's images; ``None`` if heights differ."""
    width: int | None = None


class IntervalContents(NamedTuple):
    """Images in a log interval's batches, and most pixels and boxes of one batch."""

    images: int | None = None
    """Number of images in all batches of the log interval."""
    pixels: int | None = None
    """Number of pixels of the log interval's largest batch, padding included."""
    height: int | None = None
    """Padded height in pixels of the images in the log interval's largest batch."""
    width: int | None = None
    boxes: int | None = None
    """Largest number of boxes in a batch of the log interval."""
    new_sizes: int | None = None
    """Number of batch sizes (total pixels) that no earlier log interval of the run had.

    A landscape batch and a portrait one of as many pixels have one size."""


class _Padded(NamedTuple):
    """Padded height and width of a batch's images, in pixels."""

    pixels: int | None = None
    height: int | None = None
    width: int | None = None


class BatchWatch:
    """Counts images, padded pixels and boxes of batches.

    Pixels are those the model is given: the images of a batch are padded to the
    largest height and width among them, and those up to a multiple of the data
    preprocessor's ``pad_size_divisor``. What a preprocessor does beyond that (its
    ``batch_augments``) is not seen here. The branches
    of a semi-supervised batch are padded each on its own and added up, since one
    step goes through all of them.

    Boxes are those of ``gt_instances``; ``ignored_instances`` are left out. A figure
    that one batch lacks is ``None`` from then on, with a reason in :attr:`unknown`.

    Args:
        pad_size_divisor: Of the model's data preprocessor. Defaults to 1.
    """

    def __init__(self, pad_size_divisor: int = 1) -> None:
        self.unknown: dict[str, str] = {}
        """Reasons why values of batches are no longer counted, by the value's name."""
        self._divisor = max(1, pad_size_divisor)

    def examine(self, batch: Any) -> Contents:
        """Counts images, pixels and boxes of a batch in MMEngine's format; takes 5 us.

        Args:
            batch: What the loader returned: usually ``dict(inputs=...,
                data_samples=...)`` with one entry per image.
        """
        if isinstance(batch, Mapping):
            inputs, samples = batch.get('inputs'), batch.get('data_samples')
        else:
            inputs, samples = _find_images(batch), None
        padded = self._count('largest_batch_pixels', 'images', self._measure, inputs)
        padded = padded or _Padded()
        boxes = self._count('most_boxes', 'gt_instances', _count_boxes, samples)
        return Contents(
            images=_count_images(inputs),
            pixels=padded.pixels,
            boxes=boxes,
            height=padded.height,
            width=padded.width,
        )

    def _count(
        self, figure: str, part: str, count: Callable[[Any], _T], of: Any
    ) -> _T | None:
        """Returns a count over a batch, or stores why there is none: a part is missing.

        Args:
            figure: Name of the figure in the evidence file.
            part: What the batch must hold, as the reason names it.
            count: Counts it.
            of: What ``count`` is called with.
        """
        if figure in self.unknown:
            return None
        try:
            return count(of)
        except _ODD as error:
            self.unknown[figure] = f'no {part} were found in the batch ({error!r})'
            return None

    def _measure(self, inputs: Any) -> _Padded:
        if isinstance(inputs, (list, tuple)):
            shapes = [image.shape for image in inputs]
            height = self._pad(max((rows for _, rows, _ in shapes), default=0))
            width = self._pad(max((columns for _, _, columns in shapes), default=0))
            return _Padded(len(inputs) * height * width, height, width)
        if isinstance(inputs, Mapping):
            branches = [_present(branch) for branch in inputs.values()]
            found = [self._measure(branch).pixels or 0 for branch in branches]
            return _Padded(sum(found))
        images, _, rows, columns = inputs.shape
        height, width = self._pad(int(rows)), self._pad(int(columns))
        return _Padded(int(images) * height * width, height, width)

    def _pad(self, side: int) -> int:
        return -(-side // self._divisor) * self._divisor


def _count_boxes(samples: Any) -> int:
    if isinstance(samples, Mapping):
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
    if isinstance(inputs, Mapping):
        # each branch names every image, ``None`` where it is not in the branch
        lists = [
            branch for branch in inputs.values() if isinstance(branch, (list, tuple))
        ]
        is_whole = any(item is None for branch in lists for item in branch)
        lengths = {len(branch) for branch in lists}
        return lengths.pop() if is_whole and len(lengths) == 1 else None
    shape = getattr(inputs, 'shape', None)
    return int(shape[0]) if shape else None


def _present(branch: Any) -> Any:
    if isinstance(branch, (list, tuple)):
        return [item for item in branch if item is not None]
    return branch


def _find_images(batch: Any) -> Any:
    """Finds the images in a batch that is a sequence, such as ``(images, targets)``."""
    first = batch[0] if isinstance(batch, (list, tuple)) and batch else None
    is_stack = isinstance(first, (list, tuple)) or len(getattr(first, 'shape', ())) == 4
    return first if is_stack else batch


def find_stored_ratio(batch: Any) -> float | None:
    """Returns the ratio of image pixels as stored on disk to those used in training.

    MMDetection's data samples hold both: ``ori_shape`` and ``img_shape``.
    """
    try:
        samples = batch['data_samples']
        stored = sum(_count_image_pixels(sample.ori_shape) for sample in samples)
        trained = sum(_count_image_pixels(sample.img_shape) for sample in samples)
        return float(stored / trained)
    except (*_ODD, ZeroDivisionError):
        return None


def _count_image_pixels(shape: Any) -> Any:
    """Counts an image's pixels, given a shape that begins with height and width."""
    return shape[0] * shape[1]


class TensorCount(NamedTuple):
    """Number and bytes of the tensors in a batch."""

    tensors: int
    bytes: int
    """Bytes of all tensors in the batch."""
    small: int
    """Number of the batch's tensors of at most :data:`SMALL_BYTES` bytes."""
    small_bytes: int
    """Total bytes of the batch's tensors of at most :data:`SMALL_BYTES` bytes each."""


def count_tensors(batch: Any) -> TensorCount:
    """Counts a batch's tensors and sums up their bytes.

    Data samples are known by the ``all_items`` of MMEngine's ``BaseDataElement``,
    boxes by their ``tensor``. It costs 5 us per image, so once per interval.

    Args:
        batch: What the loader returned.

    Raises:
        SourceError: If the batch has too many parts, or contains itself.
    """
    tensors = size = small = small_size = parts = 0
    left = [batch]
    while left:
        parts += 1
        if parts > _MOST_PARTS:
            raise SourceError(
                phrase(
                    'a batch has more than {most_parts:d} parts', most_parts=_MOST_PARTS
                )
            )
        part = left.pop()
        kind = type(part)
        if hasattr(kind, 'nelement') and hasattr(kind, 'element_size'):
            tensors += 1
            own = part.nelement() * part.element_size()
            size += own
            if own <= SMALL_BYTES:
                small += 1
                small_size += own
        elif isinstance(part, (list, tuple)):
            left += part
        elif isinstance(part, Mapping):
            left += part.values()
        elif hasattr(kind, 'all_items'):
            # asked itself, it would take four times as long
            left += vars(part).values()
        elif hasattr(type(getattr(part, 'tensor', None)), 'nelement'):
            left.append(part.tensor)
    return TensorCount(tensors, size, small, small_size)
