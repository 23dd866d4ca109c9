"""Looks at a live ``DataLoader`` without ever replacing or driving it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Callable, Optional

from mmgpu_hooks.records import LoaderSettings, SchedStat, WorkersWindow
from mmgpu_hooks.telemetry.clock import Clock, monotonic_s
from mmgpu_hooks.telemetry.proc import read_schedstat

ReadSchedStat = Callable[[int], Optional[SchedStat]]


def read_loader_settings(loader: Any) -> LoaderSettings:
    """Read the live attributes of a loader.

    Args:
        loader: A ``torch.utils.data.DataLoader`` or anything like it.

    Returns:
        Its settings; what it does not have, or will not tell, is ``None``.
    """
    batch_sampler = getattr(loader, 'batch_sampler', None)
    # with a batch_sampler DataLoader.batch_size is None
    batch_size = getattr(loader, 'batch_size', None)
    if batch_size is None:
        batch_size = getattr(batch_sampler, 'batch_size', None)
    context = getattr(loader, 'multiprocessing_context', None)
    start_method = context.get_start_method() if context is not None else None
    return LoaderSettings(
        num_workers=_whole(getattr(loader, 'num_workers', None)),
        persistent_workers=_flag(getattr(loader, 'persistent_workers', None)),
        prefetch_factor=_whole(getattr(loader, 'prefetch_factor', None)),
        pin_memory=_flag(getattr(loader, 'pin_memory', None)),
        batch_size=_whole(batch_size),
        batches_per_epoch=_length(loader),
        dataset_length=_length(getattr(loader, 'dataset', None)),
        start_method=start_method or _default_start_method(),
    )


def _whole(value: Any) -> int | None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return int(value) if is_whole else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None


def _default_start_method() -> str:
    from torch import multiprocessing

    method: str = multiprocessing.get_context().get_start_method()
    return method


def count_images(batch: Any) -> int | None:
    """Images in one batch of MMEngine's data protocol.

    Args:
        batch: What the loader returned: usually ``dict(inputs=..., data_samples=...)``
            with one entry per image.

    Returns:
        The count, or ``None`` when the batch has another form (several branches of
        a semi-supervised sampler, custom collate functions).
    """
    inputs = batch.get('inputs') if isinstance(batch, Mapping) else batch
    if isinstance(inputs, (list, tuple)) or hasattr(inputs, 'shape'):
        return _length(inputs)
    return None


def count_tensors(batch: Any) -> tuple[int, int]:
    """How many tensors a batch carries, and their bytes.

    Data samples are opened through ``all_items`` (MMEngine's ``BaseDataElement``).
    """
    if hasattr(batch, 'element_size') and hasattr(batch, 'nelement'):
        return 1, batch.element_size() * batch.nelement()
    if isinstance(batch, Mapping):
        parts = list(batch.values())
    elif isinstance(batch, (list, tuple)):
        parts = list(batch)
    elif callable(getattr(batch, 'all_items', None)):
        parts = [value for _, value in batch.all_items()]
    elif hasattr(batch, 'tensor'):
        parts = [batch.tensor]
    else:
        return 0, 0
    counts = [count_tensors(part) for part in parts]
    return sum(count for count, _ in counts), sum(size for _, size in counts)


class IteratorWatch:
    """Notices each iterator that a loader makes.

    ``DataLoader.__iter__`` makes iterators through ``_get_iterator``; an instance
    attribute of that name sees them all, in both train loops, and the loader stays
    the object it was.

    Args:
        loader: The loader; anything without ``_get_iterator`` is left alone.
        on_iterator: Called with each new iterator.
    """

    def __init__(self, loader: Any, on_iterator: Callable[[Any], None]) -> None:
        self._loader = loader
        original: Any = getattr(loader, '_get_iterator', None)
        self.active = callable(original) and '_get_iterator' not in vars(loader)
        if not self.active:
            return

        def get_iterator() -> Any:
            iterator = original()
            on_iterator(iterator)
            return iterator

        loader._get_iterator = get_iterator

    def close(self) -> None:
        """Give the loader its own method back."""
        if self.active:
            del self._loader._get_iterator
            self.active = False


class WorkerProbe:
    """CPU and run delay of the live iterator's worker processes.

    Args:
        read_schedstat: Reads one process; ``None`` when it is gone.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        read_schedstat: ReadSchedStat = read_schedstat,
        clock: Clock = monotonic_s,
    ) -> None:
        self._read_schedstat = read_schedstat
        self._clock = clock
        self._iterator: Callable[[], Any] = lambda: None
        self._before: dict[int, SchedStat] = {}
        self._since = 0.0
        self._iteration = 0
        self._fresh = False

    def watch(self, iterator: Any, iteration: int) -> None:
        """Follow the workers of a new iterator.

        Args:
            iterator: The loader's iterator; without ``_workers`` (no worker
                processes) nothing is followed.
            iteration: Iterations done so far.
        """
        self._iterator = weakref.ref(iterator)
        self._begin(iteration)
        self._fresh = True

    def _begin(self, iteration: int) -> None:
        workers = getattr(self._iterator(), '_workers', None) or ()
        reads = {worker.pid: self._read_schedstat(worker.pid) for worker in workers}
        self._before = {pid: stat for pid, stat in reads.items() if stat is not None}
        self._since = self._clock()
        self._iteration = iteration
        self._fresh = False

    def read(self, iteration: int) -> WorkersWindow | None:
        """What the workers did since the last call, or since they started.

        Args:
            iteration: Iterations done so far.

        Returns:
            ``None`` when no worker could be read at both ends.
        """
        cpu_s = run_delay_s = 0.0
        count = 0
        for pid, before in self._before.items():
            now = self._read_schedstat(pid)
            if now is not None:
                count += 1
                # threads that ended take their figures with them
                cpu_s += max(now.cpu_s - before.cpu_s, 0.0)
                run_delay_s += max(now.run_delay_s - before.run_delay_s, 0.0)
        window = WorkersWindow(
            count=count,
            window_s=self._clock() - self._since,
            iterations=iteration - self._iteration,
            cpu_s=cpu_s,
            run_delay_s=run_delay_s,
            fresh=self._fresh,
        )
        self._begin(iteration)
        return window if count else None
