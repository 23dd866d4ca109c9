"""What the batches of an interval held, from the workers if they can be believed.

Examining a batch takes 15 us and more between two steps of a real training, where
caches are cold; in a worker it delays nobody's step. So the workers do it too, and
once some batches have shown that they see what the loop was given, they alone do.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Callable

from mmgpu_hooks.measure.absent import Absent, SourceError
from mmgpu_hooks.measure.loader.batches import (
    BatchWatch,
    Contents,
    DeliveredBatches,
    Held,
    fold_contents,
)
from mmgpu_hooks.measure.patches import Patches

_OURS = ('mmengine', 'mmgpu_hooks')
"""Packages whose methods of our hook's do nothing that must be kept."""

_CALLED = {'before_train_iter': '_before_iter', 'after_train_iter': '_after_iter'}
"""What MMEngine's own methods call, for a hook that does the same at several points."""


def is_empty(hook: Any, name: str) -> bool:
    """Whether our hook's method is no user's, and so does nothing that must be kept."""
    methods = [getattr(hook, one) for one in (name, _CALLED[name])]
    return all(one.__module__.partition('.')[0] in _OURS for one in methods)


def followed_by_own(
    hook: Any, name: str, ours: Callable[..., None]
) -> Callable[..., None]:
    """``ours``, and then what a user's subclass of our hook does at the same point.

    Args:
        hook: Our hook.
        name: Of its method that ``ours`` is set in place of.
        ours: Called with the same arguments.
    """
    if is_empty(hook, name):
        return ours
    theirs = getattr(hook, name)

    def both(*args: Any, **kwargs: Any) -> None:
        ours(*args, **kwargs)
        theirs(*args, **kwargs)

    return both


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


_PROOF = 16
"""Batches that both must have seen alike."""

_POINT = 'before_train_iter'

_IGNORE = functools.partial(functools.partial, object)
"""Takes any arguments and does nothing, in C: MMEngine's own empty method is two Python
functions, each a microsecond and more between two steps."""


class BatchSource:
    """Looks at batches where it must.

    Args:
        hook: Whose ``before_train_iter`` is set: batches are looked at here before a
            preprocessor takes them apart.
        watch: Looks at a batch.
        delivered: Tells what the workers saw.
        step_sizes: What the step does to the size of batches; a reason where that is
            not known, and ``None`` where it does nothing.
    """

    def __init__(
        self,
        hook: Any,
        watch: BatchWatch,
        delivered: DeliveredBatches | None,
        step_sizes: StepSizes | Absent | None = None,
    ) -> None:
        self._hook = hook
        self._watch = watch
        self._delivered = delivered
        self._step_sizes = step_sizes
        self._changing: StepSizes | None = None
        if isinstance(step_sizes, StepSizes) and step_sizes.is_changing:
            self._changing = step_sizes
        self._patches = Patches()
        self._is_empty = False
        self._seen: list[Contents] = []
        """Here, and not yet set beside what the workers saw."""
        self._held: Held = ([], [], [])
        self._is_looking = False

    @property
    def unknown(self) -> dict[str, str]:
        """Why a figure is missing, by its name."""
        if isinstance(self._step_sizes, Absent):
            return {
                **self._watch.unknown,
                'largest_batch_pixels': self._step_sizes.reason,
            }
        return self._watch.unknown

    def look(self, batch: Any) -> None:
        """Look at the batch of an iteration that begins."""
        if self._changing is not None:
            self._changing.note()
        self._seen.append(self._watch.look(batch))

    def begin(self, before_train_iter: Any) -> None:
        """Look at the batches from here on.

        Args:
            before_train_iter: Calls :meth:`look`.
        """
        self._is_empty = is_empty(self._hook, _POINT)
        self._before_train_iter = followed_by_own(self._hook, _POINT, before_train_iter)
        self._start()

    def _start(self) -> None:
        self._is_looking = True
        self._patches.close()
        self._patches.set(self._hook, _POINT, self._before_train_iter)

    def close(self) -> None:
        """Look no more; a second call does nothing."""
        self._is_looking = False
        self._patches.close()

    def _rest(self) -> None:
        """The workers alone look, for now."""
        self.close()
        if self._changing is not None:
            note = followed_by_own(self._hook, _POINT, self._changing.note)
            self._patches.set(self._hook, _POINT, note)
        elif self._is_empty:
            self._patches.set(self._hook, _POINT, _IGNORE)

    def follow(self) -> None:
        """To be called every few iterations: the workers' memory is bounded."""
        if self._is_looking and len(self._seen) >= _PROOF:
            self._settle()
        elif not self._is_looking and self._delivered is not None:
            self._delivered.collect(is_due=False)

    def _settle(self) -> None:
        told = None if self._delivered is None else self._delivered.drain()
        seen, self._seen = self._seen, []
        if not self._is_looking:
            self._hold(told)
            return
        self._hold(zip(*seen))
        if told is None or len(seen) < _PROOF:
            return
        if Counter(zip(*told)) == Counter(seen):
            self._rest()

    def _hold(self, columns: Iterable[Iterable[float | None]] | None) -> None:
        for held, figures in zip(self._held, columns or ()):
            held.extend(figures)

    def drain(self, iterations: int) -> Contents:
        """All images since the last call, and the largest of the batches.

        Args:
            iterations: Since the last call; each took a batch.
        """
        self._settle()
        held, self._held = self._held, ([], [], [])
        if len(held[0]) == iterations:
            return self._as_given(held[0], fold_contents(*held))
        # one was lost: from the next interval on it is known again
        if not self._is_looking:
            self._start()
        return self._as_given([], Contents())

    def _as_given(self, images: Sequence[float | None], loaded: Contents) -> Contents:
        """With the pixels that the model was given, not those that were loaded."""
        sizes = self._step_sizes
        if sizes is None:
            return loaded
        pixels = None
        if isinstance(sizes, StepSizes):
            pixels = sizes.drain(images, loaded.pixels)
        return loaded._replace(pixels=pixels)
