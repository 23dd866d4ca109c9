"""Changes a live ``DataLoader``'s workers and settings without losing a sample.

Between two passes the settings alone change. Within a pass the sampler's own iterator
is carried over: batches that the old workers owe come first, then a new pool goes on
with what the sampler has left. So the order is that of an untouched run.

A second ``iter(loader)`` would lose what the first has in flight, and end MMEngine's
``InfiniteSampler`` for good. So the sampler's iterator is taken out of the old one,
which then gives what it owes and gets no more work; the loader makes the heir with that
iterator in the sampler's place. A relay stands where the old one makes its batches,
since the loop holds it until the epoch ends. What was drawn for an heir that could not
be started is put back.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import os
import sys
import traceback
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Callable

from mmgpu_hooks.measure.loader.owed import read_state
from mmgpu_hooks.measure.loader.rehearsal import find_shared_file, rehearse
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.schema.recorded import TunedSettings
from mmgpu_hooks.schema.text import Text, phrase

_PREFETCH = 2
"""PyTorch's default ``prefetch_factor``: batches that each worker loads ahead."""

OPENMMLAB = ('mmengine', 'mmdet', 'mmpretrain', 'mmcv', 'mmseg', 'mmyolo')
"""Names of OpenMMLab's packages, whose samplers use a random seed of their own."""

_KNOWN_SAMPLERS = ('torch', *OPENMMLAB)
"""Names of packages whose samplers give the same indices at any prefetch depth.

Some of them draw a pass's order from training's random numbers as it begins."""

_NEEDED = ('_get_iterator', '_index_sampler', '_auto_collation')
_NEEDED_OF_ITERATOR = ('_sampler_iter', '_next_data', '_index_sampler')
_NEEDED_OF_WORKERS = ('_task_info', '_try_put_index', '_shutdown_workers')

_STOPPED = 'TtZXx'
"""States of a process, as in ``ps``, that keep a worker from continuing by itself."""

BookTeardown = Callable[[], AbstractContextManager[Any]]
"""Callback that returns a context manager to time the shutdown of old workers."""

_SEEDS, _MOST_SEED = 2**32, 2**63
"""Exclusive upper bounds of random seeds: for NumPy, and for PyTorch."""


class LoaderSwitch:
    """Changes a live DataLoader's workers and their settings, without losing a sample.

    It holds neither the loader's iterators nor its workers.

    Args:
        loader: The loader.
        ranks: Of the training: their workers have seeds of their own.
        book_teardown: Books the time in which old workers end, or one loads a batch
            for trial.
    """

    def __init__(
        self,
        loader: Any,
        *,
        ranks: int = 1,
        book_teardown: BookTeardown = contextlib.nullcontext,
    ) -> None:
        self._loader, self._ranks = loader, ranks
        self._book_teardown = book_teardown
        self._used_seeds = ranks * (getattr(loader, 'num_workers', 0) or 0)
        """Number of consecutive random seeds that workers have used so far."""
        self._before: Patches | None = None
        """Replaced attributes, to undo the last worker change; ``None`` once final."""
        self._own_init = self._init = getattr(loader, 'worker_init_fn', None)
        """``worker_init_fn`` that the DataLoader had when it was built."""
        self._old_init = self._init
        self._find_relay: Callable[[], _Relay | None] = lambda: None
        self.settings = TunedSettings(
            num_workers=getattr(loader, 'num_workers', 0) or 0,
            prefetch_factor=getattr(loader, 'prefetch_factor', None),
            persistent_workers=bool(getattr(loader, 'persistent_workers', None)),
        )
        """Present worker settings of the DataLoader."""
        self._is_rehearsed = self.settings.num_workers > 0
        """True once workers need no trial: the loader had some, or a trial was made."""
        self.unloadable: Text | None = None
        """Reason why workers cannot load this loader's batches; ``None`` if unknown."""
        self._old = self.settings

    def find_obstacle(self) -> Text | None:
        """Says why a DataLoader's workers cannot be replaced; ``None`` if they can."""
        from torch.utils import data

        loader = self._loader
        if type(loader) is not data.DataLoader:
            name = type(loader).__name__
            return phrase(
                'batches come from a {kind}, which is no plain DataLoader', kind=name
            )
        dataset = loader.dataset
        # since torch 1.11
        pipe: Any = getattr(data, 'MapDataPipe', data.IterableDataset)
        if isinstance(dataset, (data.IterableDataset, pipe)):
            kind = type(dataset).__name__
            return phrase(
                'its data set, a {kind}, deals samples out to its workers itself',
                kind=kind,
            )
        lacking = [name for name in _NEEDED if not hasattr(loader, name)]
        if lacking:
            return phrase('this PyTorch has no DataLoader.{name}', name=lacking[0])
        return None

    def find_obstacle_to(self, new: TunedSettings) -> Text | None:
        """Returns why the DataLoader cannot take given settings; ``None`` if it can."""
        timeout_s: Any = getattr(self._loader, 'timeout', 0)
        if not new.num_workers and timeout_s:
            return phrase('its timeout needs workers')
        return None

    def find_first_obstacle(self, new: TunedSettings, index: Any) -> Text | None:
        """Returns why a DataLoader that has no workers cannot get its first ones.

        One of them loads a batch for trial, once.

        Args:
            new: The settings to switch to.
            index: What the sampler gave for a batch that was loaded; ``None`` if no
                batch is known.

        Returns:
            ``None`` if it can, or has workers, or gets none.
        """
        if self.settings.num_workers or not new.num_workers:
            return None
        shared = find_shared_file(self._loader)
        if shared is not None:
            self.unloadable = shared
            return shared
        if not self._is_rehearsed:
            if index is None:
                return phrase('no batch is known that a worker could load for trial')
            self._is_rehearsed = True
            with self._book_teardown():
                self.unloadable = rehearse(self._loader, index)
        return self.unloadable

    def find_obstacle_within(self, live: Any, new: TunedSettings) -> Text | None:
        """Returns why workers cannot be switched in mid-epoch; ``None`` if they can.

        Args:
            live: The iterator that the loop takes its batches of.
            new: The settings to switch to.
        """
        from torch.utils.data import dataloader

        if live is None:
            return phrase('no iterator of it is known that the loop uses')
        single = getattr(dataloader, '_SingleProcessDataLoaderIter', None)
        several = getattr(dataloader, '_MultiProcessingDataLoaderIter', None)
        if type(live) not in (single, several):
            return phrase('its iterator is a {kind}', kind=type(live).__name__)
        needed = [*_NEEDED_OF_ITERATOR]
        if type(live) is several:
            needed += _NEEDED_OF_WORKERS
        lacking = [name for name in needed if not hasattr(live, name)]
        if lacking:
            return phrase("this PyTorch's iterators have no {name}", name=lacking[0])
        if not getattr(live, '_in_order', True) or not self._is_in_order:
            return phrase(
                'in_order=False: its batches come in no order that could be kept'
            )
        relay = self._find_relay()
        if relay is not None and not relay.is_over:
            return phrase('the last switch is not over yet')
        for worker in getattr(live, '_workers', ()):
            if not worker.is_alive() or read_state(worker.pid).state in _STOPPED:
                return phrase('worker {pid} stands still or has ended', pid=worker.pid)
        return self._find_sampler_obstacle() or self._find_start_obstacle(new)

    @property
    def _is_in_order(self) -> bool:
        return bool(getattr(self._loader, 'in_order', True))

    def _find_sampler_obstacle(self) -> Text | None:
        sampler = self._loader._index_sampler
        inner = getattr(sampler, 'sampler', None)
        for part in (sampler, inner):
            package = type(part).__module__.partition('.')[0]
            if part is not None and package not in (*_KNOWN_SAMPLERS, 'builtins'):
                return phrase(
                    'its sampler, {kind}, may depend on how far ahead it is asked',
                    kind=type(part).__name__,
                )
        return None

    def _find_start_obstacle(self, new: TunedSettings) -> Text | None:
        if not new.num_workers:
            return None
        context = getattr(self._loader, 'multiprocessing_context', None)
        method = (context or multiprocessing).get_start_method()
        if method == 'fork':
            return None
        return phrase(
            'its workers are started by {method}, which takes seconds', method=method
        )

    def is_passed_on(self, iterator: Any) -> bool:
        """True if an old iterator is used up and only forwards a new one's batches."""
        relay = vars(iterator).get('_next_data')
        return isinstance(relay, _Relay) and relay.is_over

    def take_salt(self, iteration: int) -> int:
        """Returns an offset for the random seeds of new workers, so that none repeats.

        Args:
            iteration: Iterations done.
        """
        return self._used_seeds + iteration

    def switch_between(self, new: TunedSettings, salt: int) -> None:
        """Ends old workers and sets new worker settings, before a pass over the data.

        Its iterator is not made here.

        Args:
            new: The settings to switch to.
            salt: Is added to the workers' seeds.

        Raises:
            Exception: If old workers cannot be ended; nothing has changed then.
        """
        loader = self._loader
        live: Any = getattr(loader, '_iterator', None)
        if hasattr(live, '_shutdown_workers'):
            with self._book_teardown():
                live._shutdown_workers()
        loader._iterator = None
        self._before = self._set(new, salt)

    def confirm(self) -> None:
        """Confirms the last switch of workers, which then cannot be undone any more."""
        self._before = None

    def take_back(self, error: Exception) -> bool:
        """Undoes an unconfirmed :meth:`switch_between`; True if there was one to undo.

        Args:
            error: What it raised.

        Returns:
            True if there was something to undo: it may be made again.
        """
        before, self._before = self._before, None
        if before is None:
            return False
        self._undo(before)
        traceback.clear_frames(error.__traceback__)
        return True

    def switch_within(
        self,
        live: Any,
        new: TunedSettings,
        salt: int,
        *,
        holder: Any = None,
        is_drained_first: bool = False,
        on_failure: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """Replaces the workers, with new settings, in mid-epoch between two batches.

        The loop goes on with ``live``, which gives what its workers owe and then what
        a new iterator makes.

        Args:
            live: The iterator that the loop takes its batches of.
            new: The settings to switch to.
            salt: Is added to the workers' seeds.
            holder: Object whose ``_iterator`` is ``live``, as MMEngine's endless one;
                it gets the new iterator in its place.
            is_drained_first: The new workers start once the old ones have ended, for
                memory's sake; by default both live for some batches.
            on_failure: Called where the new workers then could not be started, and the
                old setting goes on, or no workers where those cannot either;
                :attr:`settings` says which.

        Raises:
            Exception: If the new workers cannot be started; all is as it was then.
        """
        rest = _Rest(live._sampler_iter)
        # from here on it gets no more work, and gives what it has in flight
        live._sampler_iter = iter(())
        make_later = functools.partial(self._try_heir, rest, new, salt, on_failure)
        try:
            heir = None if is_drained_first else self._make_heir(rest, new, salt)
            relay = _Relay(live, heir, make_later, holder, self._book_teardown)
            Patches().set(live, '_next_data', relay)
        except BaseException:
            live._sampler_iter = rest.whole
            raise
        self._find_relay = weakref.ref(relay)

    def _try_heir(
        self,
        rest: _Rest,
        new: TunedSettings,
        salt: int,
        on_failure: Callable[[Exception], None],
    ) -> Any:
        """Makes a DataLoader iterator with new worker settings, else with old ones."""
        old = self.settings
        try:
            return self._make_heir(rest, new, salt)
        except Exception as error:  # noqa: BLE001, training must not see it
            heir = self._make_old_heir(_Rest(rest.whole), old)
            with contextlib.suppress(Exception):
                # its traceback would keep the iterator alive
                on_failure(error.with_traceback(None))
            return heir

    def _make_old_heir(self, rest: _Rest, old: TunedSettings) -> Any:
        """Makes a DataLoader iterator with old settings, else without workers."""
        try:
            return self._make_heir(rest, old, self.take_salt(0))
        except Exception:
            none = TunedSettings(num_workers=0)
            if not old.num_workers or self.find_obstacle_to(none):
                raise
            # what the workers did, this process can do without another one
            return self._make_heir(_Rest(rest.whole), none, self.take_salt(0))

    def _make_heir(self, rest: _Rest, new: TunedSettings, salt: int) -> Any:
        """Makes a DataLoader iterator for the indices not yet given to workers."""
        import torch

        loader, moment = self._loader, Patches()
        name = 'batch_sampler' if loader._auto_collation else 'sampler'
        before = self._set(new, salt)
        try:
            moment.set(loader, name, rest)
            # making an iterator draws a number: not of those that training draws
            generator = torch.Generator()
            generator.manual_seed((torch.initial_seed() + salt) % _MOST_SEED)
            moment.set(loader, 'generator', generator)
            heir = loader._get_iterator()
        except BaseException as error:
            moment.close()
            self._undo(before)
            # workers that were started end with the iterator that was being made
            traceback.clear_frames(error.__traceback__)
            raise
        moment.close()
        # a persistent one begins its next pass with it
        heir._index_sampler = loader._index_sampler
        heir._sampler_iter = rest.indices
        stays = loader.persistent_workers and new.num_workers
        loader._iterator = heir if stays else None
        return heir

    def _set(self, new: TunedSettings, salt: int) -> Patches:
        """Sets worker settings on the DataLoader; returns patches that undo that."""
        loader, patches = self._loader, Patches()
        workers, old = new.num_workers, self.settings
        self._old_init = self._init
        prefetch = (new.prefetch_factor or _PREFETCH) if workers else None
        # without workers it is never asked, and PyTorch refuses it at 0
        persistent = new.persistent_workers if workers else loader.persistent_workers
        patches.set(loader, 'num_workers', workers)
        patches.set(loader, 'prefetch_factor', prefetch)
        patches.set(loader, 'persistent_workers', persistent)
        if workers:
            if loader.worker_init_fn is not self._init:
                self._own_init = loader.worker_init_fn
            self._init = make_init(self._own_init, new, salt, self._ranks)
            patches.set(loader, 'worker_init_fn', self._init)
        self._old, self.settings = old, new
        self._used_seeds = max(self._used_seeds, salt + self._ranks * workers)
        return patches

    def _undo(self, before: Patches) -> None:
        before.close()
        self.settings, self._init = self._old, self._old_init


def owes_first(iterator: Any) -> bool:
    """True if a replaced iterator must still deliver batches before its successor's."""
    relay = getattr(iterator, '__dict__', {}).get('_next_data')
    return isinstance(relay, _Relay) and not relay.is_over


class _Rest:
    """Stand-in for a sampler: gives the indices left when workers are replaced.

    What was drawn of it can be put back as long as no worker has it.
    """

    def __init__(self, indices: Iterator[Any]) -> None:
        self.indices = indices
        self._drawn: list[Any] = []

    def __iter__(self) -> _Rest:
        return self

    def __next__(self) -> Any:
        index = next(self.indices)
        self._drawn.append(index)
        return index

    @property
    def whole(self) -> Iterator[Any]:
        """Iterator over all sample indices left when workers were replaced."""
        return itertools.chain(self._drawn, self.indices)


class _Relay:
    """Replacement for an old iterator's ``_next_data`` that forwards new batches.

    Args:
        old: The iterator; it is not kept alive.
        heir: The iterator that goes on; ``None`` where it is made only then.
        make_heir: Makes that iterator.
        holder: As in :meth:`LoaderSwitch.switch_within`.
        book_teardown: Books the time in which old workers end.
    """

    def __init__(
        self,
        old: Any,
        heir: Any,
        make_heir: Callable[[], Any],
        holder: Any,
        book_teardown: BookTeardown,
    ) -> None:
        self._find_old = weakref.ref(old)
        self._own = vars(old).get('_next_data')
        self._holder, self._book_teardown = holder, book_teardown
        self.heir, self._make_heir = heir, make_heir
        self.is_over = False
        """True once the old iterator's workers have delivered all their batches."""

    def __call__(self) -> Any:
        if not self.is_over:
            with contextlib.suppress(StopIteration):
                return self._take_own()
            self._end_old()
        return next(self.heir)

    def _take_own(self) -> Any:
        if self._own is not None:
            return self._own()
        old: Any = self._find_old()
        return type(old)._next_data(old)

    def _end_old(self) -> None:
        old: Any = self._find_old()
        with self._book_teardown():
            # a persistent one does not end them by itself
            getattr(old, '_shutdown_workers', lambda: None)()
        if self.heir is None:
            self.heir = self._make_heir()
        self.is_over = True
        if getattr(self._holder, '_iterator', None) is old:
            self._holder._iterator = self.heir


@dataclass
class TunedInit:
    """A ``worker_init_fn``: calls the user's, sets OpenCV threads and nice value."""

    user_init: Callable[[int], Any] | None
    """User's own ``worker_init_fn``, which the DataLoader had before."""
    opencv_num_threads: int | None
    """Number of OpenCV threads to set in the worker; ``None`` changes nothing."""
    nice: int | None
    """Nice value to set for the worker process; ``None`` changes nothing."""

    def __call__(self, worker_id: int) -> None:
        """Initialises a DataLoader worker: user's function, threads, nice value."""
        if self.user_init is not None:
            self.user_init(worker_id)
        # a worker must not end for what makes it faster
        with contextlib.suppress(Exception):
            set_threads = getattr(sys.modules.get('cv2'), 'setNumThreads', None)
            if self.opencv_num_threads is not None and set_threads is not None:
                set_threads(self.opencv_num_threads)
        with contextlib.suppress(OSError, AttributeError):
            if self.nice is not None and self.nice > os.getpriority(0, 0):
                os.setpriority(0, 0, self.nice)


def make_init(
    init: Callable[[int], Any] | None, new: TunedSettings, salt: int, ranks: int
) -> Callable[[int], Any] | None:
    """Makes the ``worker_init_fn`` of a new pool of DataLoader workers.

    Args:
        init: The loader's, with seeds of the number of workers that it was made for.
        new: Settings of the pool.
        salt: Is added to the seeds.
        ranks: Of the training.
    """
    seeded: Callable[[int], Any] | None = _reseed(init, new.num_workers, salt, ranks)
    if new.opencv_num_threads is None and new.worker_nice is None:
        return seeded
    return TunedInit(seeded, new.opencv_num_threads, new.worker_nice)


def _reseed(init: Any, workers: int, salt: int, ranks: int) -> Any:
    """Returns MMEngine's ``worker_init_fn`` with seeds for a new number of workers.

    It seeds a worker with ``seed + rank * num_workers + worker_id``, and the number is
    frozen when the loader is built: left as it is, ranks would share seeds.
    """
    if is_dataclass(init) and hasattr(init, 'user_init'):
        inner = _reseed(init.user_init, workers, salt, ranks)
        return replace(init, user_init=inner)  # type: ignore[type-var]
    if not isinstance(init, functools.partial):
        return init
    module, given = getattr(init.func, '__module__', ''), dict(init.keywords)
    if not module.startswith('mmengine.') or 'num_workers' not in given:
        return init
    given['num_workers'] = workers
    if isinstance(given.get('seed'), int):
        given['seed'] = (given['seed'] + salt) % (_SEEDS - ranks * workers)
    return functools.partial(init.func, *init.args, **given)
