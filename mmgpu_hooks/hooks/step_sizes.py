"""Sizes of batches that the step itself resizes, or pads beyond a divisor."""

from __future__ import annotations

from typing import Any

from mmgpu_hooks.measure.absent import Absent, SourceError

_RESIZER, _PAD = 'BatchSyncRandomResize', 'BatchFixedSizePad'


class StepSizes:
    """Knows the sizes of batches that the step resizes or pads.

    ``BatchSyncRandomResize`` draws a size every few iterations for all batches until
    the next draw, and keeps it in ``_input_size``: it is noted as each iteration
    begins. Nothing of the model is touched.

    Args:
        resizer: Such an augment; ``None`` where the size never changes.
        least: Height and width that every batch is padded to, at least.
    """

    def __init__(self, resizer: Any, least: tuple[int, int] | None = None) -> None:
        self.resizer = resizer
        self._least = least
        self._sizes: set[Any] = set()

    def note(self) -> None:
        """An iteration begins; 0.3 us."""
        self._sizes.add(self.resizer._input_size)

    def drain(self, most_images: int | None, pixels: int | None) -> int | None:
        """Pixels of the largest batch since the last call, as the model was given it.

        Args:
            most_images: In one batch.
            pixels: Of the largest, as they were loaded.

        Returns:
            ``None`` where one of the two is unknown.

        Raises:
            SourceError: If the sizes are no pairs of numbers.
        """
        sizes, self._sizes = self._sizes - {None}, set()
        if self._least is not None:
            sizes = {self._least}
        if pixels is None or most_images is None:
            return None
        try:
            # before the first resize there is no size
            largest = max((height * width for height, width in sizes), default=0)
        except (TypeError, ValueError) as error:
            raise SourceError(f'the size of batches in the step: {error}') from None
        given = most_images * int(largest)
        return max(given, pixels) if self._least or not sizes else given


def find_step_sizes(model: Any) -> StepSizes | Absent | None:
    """What a model's data preprocessor does to the size of a batch beyond padding.

    Args:
        model: The model, not its wrapper.

    Returns:
        ``None`` when it does nothing; a reason where that is not known.
    """
    preprocessor = getattr(model, 'data_preprocessor', None)
    inner = getattr(preprocessor, 'data_preprocessor', None)
    augments = [*_augments(preprocessor), *_augments(inner)]
    if not augments:
        return None
    names = [one.__name__ for one in type(augments[0]).__mro__]
    if len(augments) == 1 and inner is None:
        if _RESIZER in names and hasattr(augments[0], '_input_size'):
            return StepSizes(augments[0])
        size = getattr(augments[0], 'size', None)
        if _PAD in names and isinstance(size, (list, tuple)) and len(size) == 2:
            return StepSizes(None, (size[0], size[1]))
    kinds = ', '.join(type(one).__name__ for one in augments)
    return Absent(f'the data preprocessor may change the size of batches: {kinds}')


def _augments(preprocessor: Any) -> list[Any]:
    try:
        return list(getattr(preprocessor, 'batch_augments', None) or ())
    except TypeError:  # of classifiers, which mix images and keep their size
        return []
