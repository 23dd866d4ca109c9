"""Makes a resumed training skip batches by its sampler instead of loading them.

MMEngine's iteration-based loop takes every batch that it has trained on from its
loader again, and throws it away. Here the sampler alone goes on, and the loop is given
nothing as many times. The batches that follow are the same; random numbers that the
skipped ones had drawn are not drawn, so that augmentation differs.

It replaces one iterator. The loop asks for as many batches as it skips, and a stand-in
gives nothing. The new iterator goes on with the old one's indices, since a second
``iter`` of MMEngine's endless sampler would lose some. The old workers live until the
new ones do, so that they can go on where none could be started.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np
import torch
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop
from mmengine.runner import loops as mmengine_loops
from torch.utils.data import dataloader as torch_loader

from mmgpu_hooks.measure.loader.switch import OPENMMLAB
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.optimize.refusal import RefusalError
from mmgpu_hooks.schema.text import phrase

Book = Callable[[Callable[[], int]], None]
"""Type of callbacks that run a function which skips batches, and time it.

That function returns the number of batches still to be loaded.
"""

_NAMES = ('_sampler_iter', '_index_sampler', '_dataset_kind')
_WORKER_NAMES = ('_send_idx', '_shutdown_workers')
"""Private attributes of PyTorch's multi-process iterator that skipping relies on."""


class SampledResume:
    """Makes a resumed iteration-based loop skip batches by the sampler alone.

    Args:
        runner: About to enter its train loop, with all resumed.
        on_failure: Called where workers could not be started anew: the loop then loads
            what could not be skipped.

    Raises:
        RefusalError: If nothing is skipped, or not in MMEngine's known way.
    """

    def __init__(self, runner: Any, on_failure: Callable[[Exception], None]) -> None:
        loop = runner.train_loop
        self._count = count_skipped(loop)
        self._wrapper, self._loader = loop.dataloader_iterator, loop.dataloader
        self._live: Any = self._wrapper._iterator
        check_iterator(self._live, self._loader)
        self._drawn = getattr(self._live, '_send_idx', 0)
        if self._drawn >= self._count:
            raise RefusalError(
                phrase(
                    'workers have loaded the {batches} to skip already',
                    batches=self._count,
                )
            )
        self._on_failure = on_failure
        self._failure: Exception | None = None
        self._book: Book | None = None
        self._patches = Patches()
        seeds = phrase('workers get the iteration into their seeds')
        if not self._loader.num_workers:
            seeds = phrase('the iteration goes into the seed of the training process')
        self.changed = phrase(
            '{skipped_batches} that were trained on before are skipped by the sampler '
            'and not loaded; the batches that follow are the same, their random '
            'augmentation is another one ({seeds})',
            skipped_batches=self._count,
            seeds=seeds,
        )

    def begin_epoch(self, book: Book) -> None:
        """Replaces the loader's iterator while a resumed loop skips batches.

        Args:
            book: Calls what skips, and books its time.
        """
        if self._book is None:
            self._book = book
            stand_in = _Skipping(self._count, self._skip)
            self._patches.set(self._wrapper, '_iterator', stand_in)

    def _skip(self) -> _Skipped:
        """Skips batches in the sampler; returns how many, and the next iterator."""
        done = self._count

        def advance() -> int:
            nonlocal done
            done = self._advance()
            return self._count - done

        assert self._book is not None
        self._book(advance)
        live, self._live = self._live, None
        return _Skipped(done, live, self._go_on)

    def _go_on(self, iterator: Any) -> None:
        """Gives the training loop a real iterator after batches were skipped."""
        self._wrapper._iterator = iterator
        # the patch keeps the old one, and the batches that it had loaded
        self._patches.close()
        failure, self._failure = self._failure, None
        if failure is not None:
            self._on_failure(failure)

    def _advance(self) -> int:
        """Advances the sampler past batches that were trained on; returns how many."""
        live, left = self._live, self._count - self._drawn
        # an iterator that is freed closes its indices; InfiniteSampler has no others
        indices, live._sampler_iter = live._sampler_iter, iter(())
        try:
            indices = self._draw(indices, left)
            if not self._loader.num_workers:
                live._sampler_iter = indices
                seed_anew(self._count)
                return self._count
            fresh = self._start_workers(indices)
        except Exception as error:
            live._sampler_iter = indices
            if not isinstance(error, OSError):
                raise  # the user's sampler; loading would meet it as well
            # no process could be started: the old workers go on behind what was drawn
            self._failure = error
            return left
        live._shutdown_workers()
        self._live = fresh
        return self._count

    def _draw(self, indices: Iterator[Any], count: int) -> Iterator[Any]:
        """Draws batches of indices from the sampler, across the ends of epochs."""
        sampler = self._live._index_sampler
        for _ in range(count):
            try:
                next(indices)
            except StopIteration:
                self._wrapper._epoch += 1
                self._set_epoch(self._wrapper._epoch)
                indices = iter(sampler)
                if next(indices, None) is None:
                    raise ValueError(phrase('the sampler has no batches')) from None
        return indices

    def _set_epoch(self, epoch: int) -> None:
        for sampler in _list_samplers(self._loader):
            set_epoch = getattr(sampler, 'set_epoch', None)
            if set_epoch is not None:
                set_epoch(epoch)
                return

    def _start_workers(self, indices: Iterator[Any]) -> Any:
        """Makes an iterator whose new workers continue with the given indices.

        The old one lives on.
        """
        loader, live, patches = self._loader, self._live, Patches()
        sampler = live._index_sampler
        name = 'batch_sampler' if loader._auto_collation else 'sampler'
        persistent, loader._iterator = loader._iterator, None
        # an iterator draws a seed as it is made, in the stream of the model's numbers
        generator = loader.generator or torch.default_generator
        state = generator.get_state()
        try:
            patches.set(loader, name, _Once(indices))
            init = SeededInit(loader.worker_init_fn, self._count)
            patches.set(loader, 'worker_init_fn', init)
            fresh = iter(loader)
        except BaseException:
            loader._iterator = persistent
            raise
        finally:
            patches.close()
            generator.set_state(state)
        fresh._index_sampler = sampler
        return fresh

    def close(self) -> None:
        """Stops skipping batches by the sampler; the loop loads them as usual."""
        self._patches.close()
        self._live = None


@dataclass(frozen=True)
class _Skipped:
    """Number of batches skipped by the sampler, and an iterator of later batches."""

    count: int
    """Number of batches that the sampler skipped, so that none of them is loaded."""
    iterator: Any
    """DataLoader iterator with the batches that follow the skipped ones."""
    go_on: Callable[[Any], None]
    """Callback that gets ``iterator`` when the loop has passed the skipped batches."""


class _Skipping:
    """Replacement of a DataLoader's iterator that returns ``None`` per skipped batch.

    Args:
        count: Batches that the loop is about to throw away.
        skip: Called when it asks for the first one.
    """

    def __init__(self, count: int, skip: Callable[[], _Skipped]) -> None:
        self._left, self._skip = count, skip
        self._skipped: _Skipped | None = None

    def __iter__(self) -> _Skipping:
        return self

    def __next__(self) -> None:
        if self._skipped is None:
            self._skipped = self._skip()
            self._left = self._skipped.count
        self._left -= 1
        if self._left <= 0:
            self._skipped.go_on(self._skipped.iterator)


@dataclass
class _Once:
    """Stand-in for a sampler that yields given indices, for one DataLoader iterator."""

    indices: Iterator[Any]

    def __iter__(self) -> Iterator[Any]:
        return self.indices


@dataclass
class SeededInit:
    """A ``worker_init_fn`` that calls the user's, then seeds a worker by iteration."""

    own_init: Callable[[int], Any] | None
    iteration: int

    def __call__(self, worker_id: int) -> None:
        """Calls the user's ``worker_init_fn``, then seeds the worker by iteration."""
        if self.own_init is not None:
            self.own_init(worker_id)
        seed_anew(self.iteration)


def seed_anew(iteration: int) -> None:
    """Seeds this process's random generators from its seed and an iteration.

    So what is drawn from here on does not repeat what was drawn when training began.
    """
    sequence = np.random.SeedSequence((torch.initial_seed(), iteration))
    seed = int(sequence.generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)


def count_skipped(loop: Any) -> int:
    """Returns the number of batches that a resumed loop will discard.

    Raises:
        RefusalError: If none, or not in the way of MMEngine's own loop.
    """
    if isinstance(loop, EpochBasedTrainLoop):
        raise RefusalError(
            phrase('a loop by epochs resumes between two, and skips nothing')
        )
    if not isinstance(loop, IterBasedTrainLoop):
        raise RefusalError(
            phrase('{kind} is no iteration-based loop', kind=type(loop).__name__)
        )
    if not loop.iter:
        raise RefusalError(phrase('training starts at its first iteration'))
    if hasattr(loop, 'fast_forward_on_resume'):
        raise RefusalError(phrase('this MMEngine skips without loading by itself'))
    if type(loop).run is not IterBasedTrainLoop.run:
        raise RefusalError(
            phrase('{kind} runs in a way of its own', kind=type(loop).__name__)
        )
    wrapper = getattr(loop, 'dataloader_iterator', None)
    known = getattr(mmengine_loops, '_InfiniteDataloaderIterator', None)
    if known is None or type(wrapper) is not known:
        raise RefusalError(
            phrase('its batches come from a {kind}', kind=type(wrapper).__name__)
        )
    return int(loop.iter)


def check_iterator(iterator: Any, loader: Any) -> None:
    """Raises if the sampler of a DataLoader's iterator cannot be advanced.

    Raises:
        RefusalError: If it cannot.
    """
    single = torch_loader._SingleProcessDataLoaderIter
    several = torch_loader._MultiProcessingDataLoaderIter
    if type(iterator) not in (single, several):
        raise RefusalError(
            phrase(
                "{kind} is no iterator of PyTorch's own", kind=type(iterator).__name__
            )
        )
    names = _NAMES if type(iterator) is single else (*_NAMES, *_WORKER_NAMES)
    missing = [name for name in names if not hasattr(iterator, name)]
    if missing:
        raise RefusalError(
            phrase('the iterators of this PyTorch have no {name}', name=missing[0])
        )
    if iterator._dataset_kind == torch_loader._DatasetKind.Iterable:
        raise RefusalError(phrase('an IterableDataset has no sampler'))
    if not getattr(loader, 'in_order', True):
        raise RefusalError(
            phrase('the loader gives batches out of order (in_order=False)')
        )
    for sampler in (loader.batch_sampler, *_list_samplers(loader)):
        if sampler is not None and not _draws_by_itself(sampler):
            raise RefusalError(
                phrase(
                    '{kind} may draw its order from random numbers that loading draws '
                    'from, too',
                    kind=type(sampler).__name__,
                )
            )


_PLAIN_SAMPLERS = (
    torch.utils.data.SequentialSampler,
    torch.utils.data.BatchSampler,
    torch.utils.data.DistributedSampler,
)
"""PyTorch samplers that draw no random numbers, or have a seed of their own."""


def _list_samplers(loader: Any) -> tuple[Any, Any]:
    """Lists a DataLoader's samplers of indices: its own and its batch sampler's."""
    return loader.sampler, getattr(loader.batch_sampler, 'sampler', None)


def _draws_by_itself(sampler: Any) -> bool:
    """True if a sampler's order depends on no random state outside the sampler."""
    package = type(sampler).__module__.partition('.')[0]
    return package in OPENMMLAB or type(sampler) in _PLAIN_SAMPLERS
