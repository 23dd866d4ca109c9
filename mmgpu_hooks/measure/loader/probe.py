"""Measures batches and workers of a live ``DataLoader``, which is never replaced."""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from functools import partial
from typing import Any, Callable

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.measure.ledger import summarize_some
from mmgpu_hooks.measure.loader.batches import BatchWatch, IntervalContents
from mmgpu_hooks.measure.loader.counters import (
    BATCH,
    Counters,
    Rows,
    WorkerNotes,
    join_rows,
)
from mmgpu_hooks.measure.loader.owed import OwedBatch, find_owed
from mmgpu_hooks.measure.loader.processes import WorkerProcesses, WorkersUse
from mmgpu_hooks.measure.loader.switch import owes_first
from mmgpu_hooks.measure.loader.worker import FetchProbe, enter_workers
from mmgpu_hooks.measure.loop_listener import NO_LISTENER, LoopListener
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.schema.recorded import MOST_BATCH_SIZES, WorkersWindow

_MEMORY_PERIOD_S = 300.0


class _IteratorMaker:
    """Replacement for a DataLoader's ``_get_iterator`` that reports each new iterator.

    ``DataLoader.__iter__`` makes them through ``_get_iterator``, in both train loops.
    A copy or a pickle of the loader has the loader's own method in its place.
    """

    def __init__(self, loader: Any, watch: Callable[[Callable[[], Any]], Any]) -> None:
        self._loader = loader
        self._make = partial(type(loader)._get_iterator, loader)
        self._watch = watch

    def __call__(self) -> Any:
        return self._watch(self._make)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._loader, '_get_iterator')


class _Tally:
    """Sums of times of a DataLoader's batches and workers since the last reading."""

    def __init__(self) -> None:
        self.rows: list[Rows] = []
        """Arrays of ring buffer rows, for the batches that the training loop took."""
        self.made = 0
        self.transforms_s: dict[str, float] = defaultdict(float)
        self.timed_samples = 0
        self.opencv_threads: int | None = None
        self.uses: list[WorkersUse] = []

    def summarize(self, pss_bytes: int | None) -> WorkersWindow | None:
        """Summarises times of batches and workers; ``None`` if nothing was measured."""
        uses = self.uses or [WorkersUse()]
        cpus = [use.affinity_cpus for use in uses if use.affinity_cpus is not None]
        window = WorkersWindow(
            count=max(use.count for use in uses),
            cpu_s=sum(use.cpu_s for use in uses),
            run_delay_s=sum(use.run_delay_s for use in uses),
            thread_cpu_s=sum(use.thread_cpu_s for use in uses),
            affinity_cpus=min(cpus, default=None),
            pss_bytes=pss_bytes,
        )
        rows, made = join_rows(self.rows), self.made
        taken = len(rows)
        if not made or not taken:
            return window if window.count else None
        walls_s, used_s = rows['wall_s'], rows['cpu_s']
        wall_s, cpu_s = float(walls_s.sum()) / taken, float(used_s.sum()) / taken
        fetch_s = float(rows['fetch_cpu_s'].sum()) / taken
        return structs.replace(
            window,
            batch_time=summarize_some(walls_s, made, wall_s * made),
            batch_time_std_s=float(walls_s.std()) if taken > 1 else None,
            batch_cpu=summarize_some(used_s, made, cpu_s * made),
            fetch_cpu_s=None if math.isnan(fetch_s) else fetch_s,
            transforms_s=self.transforms_s,
            timed_samples=self.timed_samples,
            opencv_threads=self.opencv_threads,
        )

    def add_notes(self, before: WorkerNotes, notes: WorkerNotes) -> None:
        """Adds the seconds by transform that a worker noted since its earlier notes."""
        for name, seconds in notes.transforms_s.items():
            self.transforms_s[name] += seconds - before.transforms_s.get(name, 0.0)
        self.timed_samples += notes.timed_samples - before.timed_samples
        self.opencv_threads = notes.opencv_threads


class _Followed:
    """A DataLoader's iterator that is measured, with its worker processes and counters.

    Args:
        iterator: The iterator; it is not kept alive.
        counters: What its workers write to, if they were reached.
        divisor: Of the sides of padded images.
        may_probe: Whether an iterator without workers may be measured from inside.
    """

    def __init__(
        self, iterator: Any, counters: Counters | None, divisor: int, may_probe: bool
    ) -> None:
        self.iterator: Callable[[], Any] = weakref.ref(iterator)
        self.counters = counters
        self.local: FetchProbe | None = None
        """Probe of batches loaded in this process; ``None`` if workers load them."""
        self.processes: WorkerProcesses | None = None
        workers = getattr(iterator, '_workers', None) or ()
        if workers:
            self.processes = WorkerProcesses([worker.pid for worker in workers])
        elif may_probe and hasattr(iterator, '_dataset_fetcher'):
            self.counters = Counters(1)
            self.local = FetchProbe(self.counters, None, BatchWatch(divisor))
            self.local.follow(iterator._dataset_fetcher)
        self._taken = self._made = 0
        self._epoch: Any = None
        """``_task_info`` dict of PyTorch's iterator; a restart makes a new dict."""
        self.notes: dict[int, WorkerNotes] = {}
        """Newest message (`WorkerNotes`) of each DataLoader worker, by worker id."""

    def living(self) -> Any:
        """Returns the DataLoader iterator; ``None`` if it was freed or shut down."""
        iterator = self.iterator()
        return None if getattr(iterator, '_shutdown', False) else iterator

    def close(self) -> None:
        """Stops measuring batches that this process loads."""
        if self.local is not None:
            self.local.close()

    def collect(self, tally: _Tally) -> str | None:
        """Adds new batch and worker times to given sums; returns a worker's failure."""
        if self.processes is not None and self.living() is not None:
            tally.uses.append(self.processes.read())
        counters = self.counters
        if counters is None:
            return None
        tally.rows.append(self._take_rows(counters))
        made = int(counters.workers['made'].sum())
        tally.made += made - self._made
        self._made, failure = made, None
        for worker, notes in counters.read_notes().items():
            if notes.failure is not None:
                failure = notes.failure
                continue
            tally.add_notes(self.notes.get(worker, WorkerNotes()), notes)
            self.notes[worker] = notes
        return failure

    def _take_rows(self, counters: Counters) -> Rows:
        """Reads ring buffer rows of batches that training took since the last call."""
        iterator, taken = self.iterator(), self._taken
        if self.local is not None:
            taken = int(counters.workers['made'][0])
        elif iterator is not None:
            taken = iterator._rcvd_idx
            if iterator._task_info is not self._epoch:
                self._epoch, self._taken = iterator._task_info, 0
        first, self._taken = self._taken, taken
        return counters.read_batches(first, taken)


class LoaderProbe:
    """Measures a DataLoader: its iterators, its workers and the batches they make.

    Args:
        loader: That trains; anything that is no ``DataLoader`` is left alone.
        run: Calls a function with arguments, and keeps from training what it raises.
        listener: Hears of the iterators that the loader makes.
        pad_size_divisor: Of the model's data preprocessor.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        loader: Any,
        run: Callable[..., Any] = lambda function, *args: function(*args),
        *,
        listener: LoopListener = NO_LISTENER,
        pad_size_divisor: int = 1,
        clock: Clock = monotonic_s,
    ) -> None:
        self.loader = loader
        self._listener = listener
        self.unsupported: dict[str, str] = {}
        """Reasons why values of the DataLoader are not measured, by value name."""
        self.inside_failure: str | None = None
        """Reason why measuring inside the workers ended; ``None`` while it goes on."""
        self._run = run
        self._divisor = pad_size_divisor
        self._clock = clock
        self._followed: list[_Followed] = []
        """Live iterators of the DataLoader, in the order of their creation."""
        self._tally = _Tally()
        self._contents: Rows = np.empty(0, BATCH)
        self._sizes: set[float] = set()
        """Distinct sizes of the padded batches so far, each as its number of pixels."""
        self._memory_due_s = clock()
        self._pss_bytes: int | None = None
        self._patches = Patches()
        self._is_open = True
        if not callable(getattr(type(loader), '_get_iterator', None)):
            self.unsupported['loader workers'] = (
                f'batches come from a {type(loader).__name__}, which is no DataLoader '
                'of PyTorch: its settings and workers cannot be seen'
            )
        elif '_get_iterator' in vars(loader):
            self.unsupported['loader workers'] = (
                'something else stands where the loader makes its iterators'
            )
        else:
            maker = _IteratorMaker(loader, self._watch_creation)
            self._patches.set(loader, '_get_iterator', maker)

    def hand_over(self, listener: LoopListener) -> None:
        """Sets the listener to which new DataLoader iterators are reported.

        The start hands the loader to the recording.

        Args:
            listener: Hears of the iterators that the loader makes from now on.
        """
        self._listener = listener

    def watch_running(self, iterator: Any) -> None:
        """Begins to measure a DataLoader iterator that already exists."""
        if all(known.iterator() is not iterator for known in self._followed):
            self._follow(iterator, None)

    def _watch_creation(self, make: Callable[[], Any]) -> Any:
        if not self._is_open:  # a wrapper around ours may go on calling it
            return make()
        try:
            return self._create(make)
        except Exception as error:
            if not self._listener.on_iterator_failure(error):
                raise
        return self._create(make)

    def _create(self, make: Callable[[], Any]) -> Any:
        self._listener.on_iterator_begin()
        iterator = init = None
        if self.inside_failure is None:
            try:
                init = enter_workers(self.loader, self._divisor)
            except Exception as error:  # noqa: BLE001, never harm training
                self.inside_failure = f'no way into the workers: {error}'
        try:
            iterator = make()
        finally:
            if init is not None:
                init.leave(iterator)
            if iterator is not None:
                counters = None if init is None else init.counters
                self._run(self._follow, iterator, counters)
            self._listener.on_iterator_end(iterator)
        return iterator

    def _follow(self, iterator: Any, counters: Counters | None) -> None:
        self._collect()
        alive = [known for known in self._followed if known.living() is not None]
        for known in self._followed:
            if known not in alive:
                known.close()
        may_probe = self.inside_failure is None
        newest = _Followed(iterator, counters, self._divisor, may_probe)
        self._followed = [*alive, newest]
        if newest.processes is not None and newest.processes.is_hidden:
            self.unsupported['loader processes'] = (
                "the kernel does not show the workers' schedstat: "
                'their CPU and run delay are unknown'
            )

    def before_wait(self, iterator: Any) -> None:
        """Reads the workers' batch and CPU times before an epoch's end stops them."""
        # no batch is owed, and they are still there
        if getattr(iterator, '_task_info', None) == {}:
            self._run(self._collect)

    def _collect(self) -> None:
        for followed in self._followed:
            reason = followed.collect(self._tally)
            if reason is not None and self.inside_failure is None:
                self.inside_failure = f'measuring in a worker ended: {reason}'

    def read(self) -> WorkersWindow | None:
        """Returns times of the DataLoader's batches and workers since the last call.

        Figures per batch are over those that the loop took, counted are those that were
        made, by workers that have ended too. Where no worker can be read (``count`` is
        0: the loader loads in this process, or ``/proc`` is hidden) ``cpu_s`` and
        ``run_delay_s`` cover nothing.

        Returns:
            ``None`` when nothing is known.
        """
        self._collect()
        tally, self._tally = self._tally, _Tally()
        self._contents = join_rows(tally.rows)
        pss_bytes, self._pss_bytes = self._pss_bytes, None
        return tally.summarize(pss_bytes)

    def read_contents(self, iterations: int) -> IntervalContents:
        """Summarises images, pixels and boxes of the last log interval's batches.

        Args:
            iterations: How many it took; where others are known, nothing is.
        """
        rows, self._contents = self._contents, np.empty(0, BATCH)
        if not iterations or len(rows) != iterations:
            return IntervalContents()
        pixels = rows['pixels']
        # of unknown ones the sum is none, and the largest that of the others
        largest = rows[np.where(np.isnan(pixels), -1.0, pixels).argmax()]
        return IntervalContents(
            images=_known(rows['images'].sum()),
            pixels=_known(largest['pixels']),
            height=_known(largest['height']),
            width=_known(largest['width']),
            boxes=_known(np.fmax.reduce(rows['boxes'])),
            new_sizes=self._count_new_sizes(pixels),
        )

    def _count_new_sizes(self, pixels: NDArray[np.float64]) -> int | None:
        if np.isnan(pixels).any() or len(self._sizes) >= MOST_BATCH_SIZES:
            return None
        new = set(pixels.tolist()) - self._sizes
        self._sizes |= new
        return len(new)

    @property
    def processes(self) -> WorkerProcesses | None:
        """Worker processes of the newest iterator; ``None`` once they have ended."""
        newest = self._newest()
        return newest.processes if newest else None

    @property
    def last_index(self) -> Any:
        """Sample index, or list of them, of a batch that this process loaded.

        ``None`` if it has loaded none.
        """
        local = [known.local for known in self._followed if known.local is not None]
        known = [probe.index for probe in local if probe.index is not None]
        return known[-1] if known else None

    @property
    def is_watching(self) -> bool:
        """True if new iterators of the DataLoader are reported to the probe."""
        return self._is_open and 'loader workers' not in self.unsupported

    def list_living(self) -> list[Any]:
        """Lists the live iterators of the DataLoader, the newest last."""
        living = [known.living() for known in self._followed]
        return [iterator for iterator in living if iterator is not None]

    def _newest(self) -> _Followed | None:
        newest = self._followed[-1] if self._followed else None
        return newest if newest and newest.living() is not None else None

    def find_owed(self) -> OwedBatch:
        """Finds the worker that must deliver the next batch, its state and stack."""
        newest = self._newest()
        if newest is None:
            return OwedBatch()
        owing = next(
            (known for known in self._followed if owes_first(known.living())), newest
        )
        return find_owed(owing.living(), owing.counters, self._clock)

    @property
    def is_memory_due(self) -> bool:
        """True if the workers' memory should be read again: at most every 5 minutes."""
        return self.processes is not None and self._clock() >= self._memory_due_s

    def read_memory(self) -> None:
        """Reads the workers' bytes of memory, if due; :meth:`read` returns them.

        After a worker that took 20 ms, as those of some GiB do, none is read again. It
        may be called on any thread.
        """
        workers = self.processes
        if workers is not None and self.is_memory_due:
            self._memory_due_s = self._clock() + _MEMORY_PERIOD_S
            memory = workers.read_pss_bytes(self._clock)
            self._pss_bytes = memory.pss_bytes
            if memory.is_costly:
                self._memory_due_s = math.inf

    def close(self) -> None:
        """Restores the DataLoader's replaced methods; a second call does nothing."""
        self._is_open = False
        self._patches.close()
        for followed in self._followed:
            followed.close()
        self._followed = []


def _known(figure: float) -> int | None:
    return None if math.isnan(figure) else int(figure)
