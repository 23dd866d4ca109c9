"""What the batches of an interval held, from the workers if they can be believed.

Looking at a batch takes 15 us and more between two steps of a real training, where
caches are cold; in a worker it delays nobody's step. So the workers look too, and
once some batches have shown that they see what the loop was given, they alone do.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from mmgpu_hooks.hooks.own_method import followed_by_own, is_empty
from mmgpu_hooks.hooks.step_sizes import StepSizes
from mmgpu_hooks.measure.absent import Absent
from mmgpu_hooks.measure.loader.batch_contents import (
    BatchWatch,
    Contents,
    fold_contents,
)
from mmgpu_hooks.measure.loader.delivered import DeliveredBatches, Held
from mmgpu_hooks.measure.patches import Patches

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
        self._patches.set(
            self._hook, _POINT, self._before_train_iter, 'looks at batches'
        )

    def close(self) -> None:
        """Look no more; a second call does nothing."""
        self._is_looking = False
        self._patches.close()

    def _rest(self) -> None:
        """The workers alone look, for now."""
        self.close()
        if self._changing is not None:
            note = followed_by_own(self._hook, _POINT, self._changing.note)
            self._patches.set(self._hook, _POINT, note, 'sees batches')
        elif self._is_empty:
            self._patches.set(self._hook, _POINT, _IGNORE, 'sees batches')

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
