"""Sizes that a data preprocessor gives a batch in the step, where no worker sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmgpu_hooks.measure.absent import Absent
from mmgpu_hooks.measure.source_error import SourceError

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
        self._resizer = resizer
        self._least = least
        self._sizes: set[Any] = set()
        self._failure: Exception | None = None

    @property
    def is_changing(self) -> bool:
        """Whether :meth:`note` is to be called."""
        return self._resizer is not None

    def note(self, *_: Any, **__: Any) -> None:
        """An iteration begins; 0.3 us. A failure is the next :meth:`drain`'s."""
        try:
            self._sizes.add(self._resizer._input_size)
        except Exception as error:  # noqa: BLE001, it stands between two steps
            self._failure = error

    def drain(self, images: Sequence[float | None], pixels: int | None) -> int | None:
        """Pixels of the largest batch since the last call, as the model was given it.

        Args:
            images: Of each batch.
            pixels: Of the largest, as they were loaded.

        Returns:
            ``None`` where one of the two is unknown.

        Raises:
            SourceError: If the sizes could not be noted.
        """
        if self._failure is not None:
            raise SourceError(f'the size of batches in the step: {self._failure}')
        sizes, self._sizes = self._sizes - {None}, set()
        if self._least is not None:
            sizes = {self._least}
        known = [one for one in images if one is not None]
        if pixels is None or not known or len(known) < len(images):
            return None
        # before the first resize there is no size
        largest = max((height * width for height, width in sizes), default=0)
        given = int(max(known) * largest)
        return max(given, pixels) if self._least or not sizes else given


def find_step_sizes(model: Any) -> StepSizes | Absent | None:
    """What a model's data preprocessor does to the size of a batch beyond padding.

    Args:
        model: The model, not its wrapper.

    Returns:
        ``None`` when it does nothing; a reason where that is not known.
    """
    try:
        return _find_step_sizes(model)
    except Exception as error:  # noqa: BLE001, of whatever make the augments are
        return Absent(f'the data preprocessor cannot be looked at: {error}')


def _find_step_sizes(model: Any) -> StepSizes | Absent | None:
    preprocessor = getattr(model, 'data_preprocessor', None)
    inner = getattr(preprocessor, 'data_preprocessor', None)
    augments = [*_augments(preprocessor), *_augments(inner)]
    if not augments:
        return None
    names = [one.__name__ for one in type(augments[0]).__mro__]
    if len(augments) == 1 and inner is None:
        if _RESIZER in names and hasattr(augments[0], '_input_size'):
            return StepSizes(augments[0])
        if _PAD in names:
            height, width = augments[0].size
            return StepSizes(None, (height, width))
    kinds = ', '.join(type(one).__name__ for one in augments)
    return Absent(f'the data preprocessor may change the size of batches: {kinds}')


def _augments(preprocessor: Any) -> list[Any]:
    try:
        return list(getattr(preprocessor, 'batch_augments', None) or ())
    except TypeError:  # of classifiers, which mix images and keep their size
        return []
