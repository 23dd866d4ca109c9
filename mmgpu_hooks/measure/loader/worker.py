"""Measures in a worker (or the loading process) how long each fetch of a batch takes.

Batches are examined where they are made: that costs 15 us between two steps, and in a
worker it costs the training thread nothing. Inside a worker process PyTorch's fetch
functions are replaced. A worker leaves what each batch took and held in a ring buffer
in shared memory, under the number that the loader gave the batch (from the frame of
PyTorch's worker loop, which alone knows it), so the figures are those of the batches
that the loop took. A training process without workers does the same in its own fetch.
Where workers cannot be reached, images are counted by an interval's last batch, and
pixels and boxes are unknown. Where the step resizes batches
(``BatchSyncRandomResize``), pixels are unknown too: no worker sees that size.

A worker copies a batch to shared memory and passes descriptors in two threads of its
own, beside the fetches. Their clocks measure what sends a batch, and their CPU is taken
out of a fetch's (``fetch_cpu_s``): that is what loading without workers takes. Where a
run has no workers it is assumed from the tensors and bytes of a batch, with a wide
interval.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import operator
import sys
import weakref
from dataclasses import dataclass, field
from functools import wraps
from multiprocessing import resource_sharer
from types import FrameType
from typing import Any, Callable

from mmgpu_hooks.measure.clock import Clock, grown, monotonic_s, process_cpu_s
from mmgpu_hooks.measure.loader.batches import BatchWatch
from mmgpu_hooks.measure.loader.call_stack import offer_stack
from mmgpu_hooks.measure.loader.counters import Counters, WorkerNotes
from mmgpu_hooks.measure.loader.pipeline import Costs, PipelineTimer
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.measure.proc import read_thread_cpu_s

_TIMING_PERIOD_S = 1.0
"""Minimum seconds between two batches whose transforms a worker times."""


class WatchedDataset:
    """Wrapper of a fetcher's dataset that reports when loading a sample begins.

    Args:
        dataset: The user's map-style dataset.
        begin: Called with the index before each sample; it must not raise.
    """

    def __init__(self, dataset: Any, begin: Callable[[Any], None]) -> None:
        self._mmgpu_dataset = dataset
        self._mmgpu_begin = begin

    def __getitem__(self, index: Any) -> Any:
        self._mmgpu_begin(index)
        return self._mmgpu_dataset[index]

    def __getattr__(self, name: str) -> Any:
        # among others __getitems__, which then makes the samples of a batch unseen
        return getattr(self._mmgpu_dataset, name)


class _ImagePaths:
    """Makes data sets report the image path of each sample that is being loaded.

    There is one for the process. Each pass without workers has a probe of its own, and
    a wrapper of each would stack up around those before.
    """

    def __init__(self) -> None:
        self._note: Callable[[str], None] | None = None
        """Callback that gets image paths while a batch is fetched, else ``None``."""
        self._patches = Patches()
        self._is_open = False

    def begin(self, note: Callable[[str], None]) -> None:
        """Reports image paths from now on; to be called before each batch.

        The first call replaces ``BaseDataset.get_data_info``, if MMEngine's data sets
        are there.

        Args:
            note: Called with each path, or an empty text.
        """
        self._note = note
        if self._is_open:
            return
        kind = getattr(sys.modules.get('mmengine.dataset'), 'BaseDataset', None)
        if kind is None:
            return
        original = kind.get_data_info

        @wraps(original)
        def get_data_info(dataset: Any, *args: Any, **kwargs: Any) -> Any:
            info = original(dataset, *args, **kwargs)
            note = self._note
            if note is not None:
                path = info.get('img_path') if isinstance(info, dict) else None
                note(path if isinstance(path, str) else '')
            return info

        self._patches.set(kind, 'get_data_info', get_data_info)
        self._is_open = True

    def end(self) -> None:
        """Reports no more image paths until the next batch; may be called twice."""
        self._note = None

    def close(self) -> None:
        """Restores ``BaseDataset.get_data_info``; may be called twice."""
        self.end()
        self._is_open = False
        self._patches.close()


_IMAGE_PATHS = _ImagePaths()


class FetchProbe:
    """Writes seconds and contents of each fetched batch to shared-memory counters.

    The second batch is timed transform by transform, and after it one a second.

    Whatever fails in here ends the probe, not the fetch: the notes say why.

    Args:
        counters: Where to write.
        worker: Id of the worker; ``None`` in the process that trains. A worker's CPU
            counts from the end of one fetch to the end of the next, so that what it
            does to hand a batch over is in it.
        watch: Examines what each batch holds.
        clock: Monotonic seconds.
        cpu_clock: CPU seconds of this process, all threads.
    """

    def __init__(
        self,
        counters: Counters,
        worker: int | None,
        watch: BatchWatch,
        *,
        clock: Clock = monotonic_s,
        cpu_clock: Clock = process_cpu_s,
    ) -> None:
        self._counters = counters
        self._is_worker = worker is not None
        self._worker = worker or 0
        # a column each: to find one by its name takes as long as to write it
        self._made = counters.workers['made']
        self._loading_since_s = counters.workers['loading_since_s']
        self._loading_index = counters.workers['loading_index']
        self._batch_since_s = counters.workers['batch_since_s']
        self._batch_samples = counters.workers['batch_samples']
        self._batch_begun = counters.workers['batch_begun']
        self._begun = 0
        self._watch = watch
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._timer = PipelineTimer(clock)
        self._is_timing = False
        self._timing_due_s = -math.inf
        self._timed_samples = 0
        self._since_s = 0.0
        self._since_cpu_s: float | None = None
        self._begin_cpu_s = 0.0
        self._begin_sending_s: float | None = None
        self._queue: Any = None
        self._is_busy = False
        self._fetcher: Callable[[], Any] = lambda: None
        self._fetch = Patches()
        self.index: Any = None
        """Sample index, or list of them, of the last fetched batch; else ``None``."""
        self.is_off = False
        """True if the probe measures no more: it failed or was closed."""

    def follow(self, fetcher: Any) -> None:
        """Begins to measure the ``fetch`` calls of one DataLoader fetcher."""
        fetch = self.wrap(type(fetcher).fetch)
        find_fetcher = weakref.ref(fetcher)  # a plain reference would be a cycle
        self._fetch.set(fetcher, 'fetch', lambda index: fetch(find_fetcher(), index))

    def wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a version of a fetcher's ``fetch`` method whose calls are measured.

        Args:
            original: Called with the fetcher and what to fetch.
        """

        def fetch(fetcher: Any, index: Any) -> Any:
            # busy: a loader that the dataset runs itself, within a sample
            if self.is_off or self._is_busy:
                return original(fetcher, index)
            try:  # a signal handler may raise anywhere in here
                self._guard(self._begin, fetcher, index)
                batch = original(fetcher, index)
                self._guard(self._end, fetcher, index, batch, sys._getframe(1))
            finally:
                self._guard(self._leave)
            return batch

        return fetch

    def _guard(self, function: Callable[..., None], *args: Any) -> None:
        """Calls a measuring function; if it raises, switches the probe off."""
        if self.is_off:
            return
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001, a fetch must not see it
            self.close()
            reason = f'{type(error).__name__}: {error}'[:200]
            self._counters.write_notes(self._worker, WorkerNotes(failure=reason))

    def _begin(self, fetcher: Any, index: Any) -> None:
        self._is_busy = True
        _IMAGE_PATHS.begin(self._note_path)
        if self._fetcher() is not fetcher:
            self._release()
            self._fetcher = weakref.ref(fetcher)
            # iterable-style datasets have no samples to ask for
            if not hasattr(fetcher, 'dataset_iter'):
                fetcher.dataset = WatchedDataset(fetcher.dataset, self._begin_sample)
        # the first batch also warms caches up
        if self._made[self._worker] and self._clock() >= self._timing_due_s:
            self._timing_due_s = self._clock() + _TIMING_PERIOD_S
            self._is_timing = True
            self._timer.start(fetcher.dataset)
        self._begin_cpu_s = self._cpu_clock()
        self._begin_sending_s = self._read_sending_s()
        if self._since_cpu_s is None or not self._is_worker:
            self._since_cpu_s = self._begin_cpu_s
        self._since_s, self._begun = self._clock(), 0
        self._batch_since_s[self._worker] = self._since_s
        samples = len(index) if isinstance(index, (list, tuple)) else 1
        self._batch_samples[self._worker] = samples
        self._batch_begun[self._worker] = 0

    def _read_sending_s(self) -> float | None:
        """Reads the CPU seconds so far of threads that send this worker's batches."""
        if not self._is_worker:
            return 0.0
        senders = self._queue, getattr(resource_sharer, '_resource_sharer', None)
        total_s = 0.0
        for sender in senders:
            cpu_s = read_thread_cpu_s(getattr(sender, '_thread', None))
            if cpu_s is None:
                return None
            total_s += cpu_s
        return total_s

    def _end(self, fetcher: Any, index: Any, batch: Any, loop: FrameType) -> None:
        now, cpu_s = self._clock(), self._cpu_clock()
        wall_s, used_s = now - self._since_s, cpu_s - (self._since_cpu_s or cpu_s)
        self._since_cpu_s = cpu_s
        sent_s = grown(self._begin_sending_s, self._read_sending_s())
        # as the ring has it
        sent_s = math.nan if sent_s is None else sent_s
        # the worker's loop alone knows a batch's number in the loader's order
        number: Any = int(self._made[self._worker])
        if self._is_worker:
            number = loop.f_locals.get('idx')
        self._queue = loop.f_locals.get('data_queue')
        if isinstance(number, int):
            self._counters.write_batch(
                number=number,
                wall_s=wall_s,
                cpu_s=used_s,
                fetch_cpu_s=max(cpu_s - self._begin_cpu_s - sent_s, 0.0),
                held=self._watch.examine(batch),
            )
        if self._is_timing:
            self._write_notes(len(index) if fetcher.auto_collation else 1)
        self.index = index
        self._made[self._worker] += 1

    def _leave(self) -> None:
        if self._is_timing:  # the fetch raised
            self._stop_timing()
        self._is_busy = False
        _IMAGE_PATHS.end()
        self._loading_since_s[self._worker] = 0.0

    def _begin_sample(self, index: Any) -> None:
        try:
            self._loading_index[self._worker] = operator.index(index)
        except Exception:  # noqa: BLE001, a sampler of the user's own kind of index
            self._loading_index[self._worker] = -1.0
        self._counters.write_file(self._worker, '')
        self._begun += 1
        self._batch_begun[self._worker] = self._begun
        self._loading_since_s[self._worker] = self._clock()

    def _note_path(self, path: str) -> None:
        self._counters.write_file(self._worker, path)

    def _write_notes(self, samples: int) -> None:
        self._timed_samples += samples
        notes = WorkerNotes(
            transforms_s=self._stop_timing(),
            timed_samples=self._timed_samples,
            opencv_threads=_count_opencv_threads(),
        )
        self._counters.write_notes(self._worker, notes)

    def close(self) -> None:
        """Stops measuring fetches, and restores the fetcher's ``fetch``."""
        self.is_off = True
        self._stop_timing()
        self._release()
        self._fetch.close()
        _IMAGE_PATHS.close()

    def _release(self) -> None:
        fetcher = self._fetcher()
        if isinstance(getattr(fetcher, 'dataset', None), WatchedDataset):
            fetcher.dataset = fetcher.dataset._mmgpu_dataset

    def _stop_timing(self) -> Costs:
        self._is_timing = False
        return self._timer.stop()


def _count_opencv_threads() -> int | None:
    """Asks OpenCV how many threads it uses in this worker; ``None`` if not loaded."""
    count = getattr(sys.modules.get('cv2'), 'getNumThreads', None)
    return None if count is None else max(int(count()), 0)


@dataclass(eq=False)
class WorkerInit:
    """A ``worker_init_fn`` that calls the user's, then measures the worker's fetches.

    It can be pickled while workers are being started, as far as the user's can.
    """

    user_init: Callable[[int], Any] | None
    """User's own ``worker_init_fn``, which the DataLoader had before."""
    counters: Counters
    """Shared memory into which the workers write their batch times."""
    pad_size_divisor: int
    """Number of pixels of which the model's padded image sides are multiples."""
    patches: Patches = field(default_factory=Patches)

    def __reduce__(self) -> tuple[Any, ...]:
        return WorkerInit, (self.user_init, self.counters, self.pad_size_divisor)

    def __call__(self, worker_id: int) -> None:
        """Initialises a DataLoader worker, right before it takes its first task."""
        if self.user_init is not None:
            self.user_init(worker_id)
        try:
            _probe_worker(self.counters, worker_id, self.pad_size_divisor)
        except Exception as error:  # noqa: BLE001, a worker must not see it
            reason = f'{type(error).__name__}: {error}'[:200]
            self.counters.write_notes(worker_id, WorkerNotes(failure=reason))

    def leave(self, iterator: Any) -> None:
        """Restores the user's ``worker_init_fn`` on DataLoader and iterator."""
        self.patches.close()
        # it took what it found on the loader
        if getattr(iterator, '_worker_init_fn', None) is self:
            iterator._worker_init_fn = self.user_init


def enter_workers(loader: Any, pad_size_divisor: int = 1) -> WorkerInit | None:
    """Sets a `WorkerInit` as a DataLoader's ``worker_init_fn``, to time its workers.

    Args:
        loader: The loader.
        pad_size_divisor: Of the model's data preprocessor.

    Returns:
        ``None`` for a loader without workers.

    Raises:
        OSError: If there is no memory to share with them.
    """
    workers = getattr(loader, 'num_workers', 0)
    if not workers:
        return None
    context = getattr(loader, 'multiprocessing_context', None) or multiprocessing
    counters = Counters(workers, context.get_start_method())
    init = WorkerInit(loader.worker_init_fn, counters, pad_size_divisor)
    init.patches.set(loader, 'worker_init_fn', init)
    return init


def _probe_worker(counters: Counters, worker: int, pad_size_divisor: int) -> None:
    from torch.utils.data._utils import fetch

    probe = FetchProbe(counters, worker, BatchWatch(pad_size_divisor))
    # the fetcher is made after us; the classes are this worker's own
    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        kind.fetch = probe.wrap(kind.fetch)
    # last: what fails here costs no figure
    with contextlib.suppress(Exception):
        counters.workers['stack_file'][worker] = offer_stack()
