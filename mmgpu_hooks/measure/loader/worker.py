"""Reaches into the processes that load: workers before they start, or this one."""

from __future__ import annotations

import weakref
from typing import Any, Callable

from mmgpu_hooks.measure.absent import Absent
from mmgpu_hooks.measure.loader import board
from mmgpu_hooks.measure.loader.batch_contents import BatchWatch
from mmgpu_hooks.measure.loader.board import Board, Slot, make_private_slot
from mmgpu_hooks.measure.loader.call_stack import offer_stack
from mmgpu_hooks.measure.loader.fetch import FetchProbe
from mmgpu_hooks.measure.loader.frames import hide_frame
from mmgpu_hooks.measure.loader.local_pipeline import LocalPipelineTimer
from mmgpu_hooks.measure.loader.settings import read_start_method

_START_METHODS = ('fork', 'spawn', 'forkserver')


class WorkerInit:
    """A ``worker_init_fn`` that calls the user's and then sets a probe.

    It can be pickled while workers are being started, as far as the user's can.

    Args:
        user_init: The loader's own ``worker_init_fn``, or ``None``.
        board: Where the workers write.
        pad_size_divisor: Of the model's data preprocessor.
    """

    def __init__(
        self,
        user_init: Callable[[int], Any] | None,
        board: Board,
        pad_size_divisor: int = 1,
    ) -> None:
        self.user_init = user_init
        self.board = board
        self.pad_size_divisor = pad_size_divisor

    def __call__(self, worker_id: int) -> None:
        """Run in the worker, right before it takes its first task."""
        if self.user_init is not None:
            try:
                self.user_init(worker_id)
            except BaseException as error:
                hide_frame(error)
                raise
        try:
            slot = self.board.slot(worker_id)
        except Exception:  # noqa: BLE001, there is nowhere to say why
            return
        _probe_worker(slot, self.pad_size_divisor)

    def leave(self, loader: Any, iterator: Any) -> None:
        """Give loader and iterator the user's function back."""
        for holder, name in (
            (loader, 'worker_init_fn'),
            (iterator, '_worker_init_fn'),
        ):
            if self is getattr(holder, name, None):
                setattr(holder, name, self.user_init)


def enter_workers(loader: Any, pad_size_divisor: int = 1) -> WorkerInit | Absent | None:
    """Stand in for the loader's ``worker_init_fn`` until :meth:`WorkerInit.leave`.

    Args:
        loader: The loader.
        pad_size_divisor: Of the model's data preprocessor.

    Returns:
        ``None`` for a loader without workers; a reason if they start in a way that
        cannot be joined.

    Raises:
        OSError: If there is no memory to share with them.
    """
    workers = getattr(loader, 'num_workers', 0)
    if not workers:
        return None
    method = read_start_method(loader)
    if method not in _START_METHODS or not hasattr(loader, 'worker_init_fn'):
        return Absent(
            f'no way into workers that start by {method!r}; '
            'their CPU is seen from outside'
        )
    init = WorkerInit(loader.worker_init_fn, Board(workers, method), pad_size_divisor)
    loader.worker_init_fn = init
    return init


def _probe_worker(slot: Slot, pad_size_divisor: int) -> None:
    try:
        from torch.utils.data._utils import fetch

        batches = BatchWatch(pad_size_divisor)
        probe = FetchProbe(slot, cpu_between_ends=True, batches=batches)
        # the fetcher is made after us; the classes are this worker's own
        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            kind.fetch = probe.wrap(kind.fetch)
        how = offer_stack()
        if how is not None:
            slot.figures[board.STACK_FILE] = how.descriptor
            slot.figures[board.STACK_SIGNAL] = how.number
    except Exception as error:  # noqa: BLE001, a worker must not see it
        slot.write_reason(f'{type(error).__name__}: {error}')
        slot.figures[board.STATE] = board.OFF


class LocalProbe:
    """The same probe for an iterator that loads in this process.

    Args:
        iterator: An iterator of a loader without workers.

    Raises:
        AttributeError: If it has no fetcher that can be measured.
    """

    def __init__(self, iterator: Any) -> None:
        fetcher = iterator._dataset_fetcher
        self.slot = make_private_slot()
        """Where the figures are."""
        self._probe = FetchProbe(
            self.slot, cpu_between_ends=False, timer=LocalPipelineTimer()
        )
        self._fetcher = weakref.ref(fetcher)
        fetch = self._probe.wrap(type(fetcher).fetch)
        fetcher_ref = self._fetcher  # a plain reference would be a cycle

        def measured(possibly_batched_index: Any) -> Any:
            try:
                return fetch(fetcher_ref(), possibly_batched_index)
            except BaseException as error:
                hide_frame(error)
                raise

        self._measured = fetcher.fetch = measured

    def close(self) -> None:
        """Give the iterator its own fetcher's method back."""
        self._probe.close()
        fetcher = self._fetcher()
        if fetcher is not None and vars(fetcher).get('fetch') is self._measured:
            del fetcher.fetch
