"""Watches a live ``DataLoader`` from inside and outside, and never replaces it."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable, TypeVar

from mmgpu_hooks.measure.absent import Absent, SourceError
from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.measure.loader.batches import DeliveredBatches
from mmgpu_hooks.measure.loader.board import Board, Slot
from mmgpu_hooks.measure.loader.inside import InsideReader, InsideTally
from mmgpu_hooks.measure.loader.owed import Owed, find_owed
from mmgpu_hooks.measure.loader.processes import (
    MemoryLook,
    ProcessFigures,
    WorkerProcesses,
)
from mmgpu_hooks.measure.loader.queue import QueueWatch
from mmgpu_hooks.measure.loader.worker import LocalProbe, WorkerInit, enter_workers
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.schema import WorkersWindow


class CreationWatch:
    """Stands where a loader makes its iterators.

    ``DataLoader.__iter__`` makes them through ``_get_iterator``; an instance attribute
    of that name sees them all, in both train loops, and the loader stays the object it
    was. A copy or a pickle of the loader has the loader's own method in its place.

    Args:
        loader: The loader; anything without ``_get_iterator`` is left alone.
        before: Called before each creation; it must not raise.
        after: Called with the new iterator, or with ``None`` when the creation
            failed; it must not raise.
    """

    def __init__(
        self,
        loader: Any,
        before: Callable[[], None],
        after: Callable[[Any], None],
    ) -> None:
        self._loader = loader
        self._before = before
        self._after = after
        self._make = getattr(type(loader), '_get_iterator', None)
        own = getattr(loader, '__dict__', {})
        self.untold: dict[str, str] = {}
        """Why iterators are not seen, by figure."""
        if not callable(self._make):
            self.untold['loader workers'] = (
                f'batches come from a {type(loader).__name__}, which is no DataLoader '
                'of PyTorch: its settings and workers cannot be seen'
            )
        elif '_get_iterator' in own:
            self.untold['loader workers'] = (
                'something else stands where the loader makes its iterators'
            )
        self.active = not self.untold
        self._patches = Patches()
        if self.active:
            self._patches.set(loader, '_get_iterator', self)

    def __call__(self) -> Any:
        """Make an iterator, as the loader would."""
        assert self._make is not None
        if not self.active:  # a wrapper around us may go on calling us
            return self._make(self._loader)
        iterator = None
        self._before()
        try:
            iterator = self._make(self._loader)
        finally:
            self._after(iterator)
        return iterator

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._loader, '_get_iterator')

    def close(self) -> None:
        """Give the loader its own method back."""
        self._patches.close()
        self.active = False


_T = TypeVar('_T')


class OutsideTally:
    """Adds up what the workers of several iterators did, until :meth:`drain`."""

    def __init__(self) -> None:
        self._parts: list[ProcessFigures] = []

    def add(self, figures: ProcessFigures) -> None:
        """Add a window in which some worker was read at both ends."""
        if figures.count:
            self._parts.append(figures)

    def drain(self) -> ProcessFigures:
        """Sums since the last call; the most workers that there were at a time."""
        parts, self._parts = self._parts, []
        if len(parts) == 1:
            return parts[0]
        blocked = [one.blocked_s for one in parts if one.blocked_s is not None]
        affinities = [one.affinity_cpus for one in parts if one.affinity_cpus]
        return ProcessFigures(
            count=max((one.count for one in parts), default=0),
            window_s=sum(one.window_s for one in parts),
            cpu_s=sum(one.cpu_s for one in parts),
            run_delay_s=sum(one.run_delay_s for one in parts),
            blocked_s=sum(blocked) if blocked else None,
            worker_cpu_s=_add_by_worker([one.worker_cpu_s for one in parts]),
            affinity_cpus=min(affinities, default=None),
            worker_run_delay_s=_add_by_worker([p.worker_run_delay_s for p in parts]),
            worker_affinity_cpus=_fold_by_worker(
                min, [p.worker_affinity_cpus for p in parts]
            ),
        )


def _add_by_worker(parts: list[tuple[float, ...]]) -> tuple[float, ...]:
    return _fold_by_worker(sum, parts)


def _fold_by_worker(
    fold: Callable[[tuple[_T, ...]], _T], parts: list[tuple[_T, ...]]
) -> tuple[_T, ...]:
    # in a part that lacks a worker the others cannot be named
    if len({len(part) for part in parts}) != 1:
        return ()
    return tuple(fold(by_worker) for by_worker in zip(*parts))


class Generation:
    """What can be measured of one iterator and its workers.

    Args:
        iterator: The iterator; it is not kept alive.
        board: What its workers write to, if they do.
        is_running: They were there before we came.
        may_probe: Whether an iterator without workers may be measured from inside.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        iterator: Any,
        board: Board | None,
        *,
        is_running: bool,
        may_probe: bool,
        clock: Clock,
    ) -> None:
        self._iterator: Callable[[], Any] = lambda: None
        with contextlib.suppress(TypeError):  # an iterator of another kind
            self._iterator = weakref.ref(iterator)
        self._reader: InsideReader | None = None
        self._local: LocalProbe | None = None
        self.processes: WorkerProcesses | None = None
        """Its workers, seen from outside."""
        self.slots: list[Slot] = []
        """What the workers write to, by worker id."""
        workers = getattr(iterator, '_workers', None) or ()
        if workers:
            pids = [worker.pid for worker in workers]
            self.processes = WorkerProcesses(pids, is_running=is_running, clock=clock)
            if board is not None:
                self.slots = [board.slot(number) for number in range(len(workers))]
                self._reader = InsideReader(self.slots)
        elif may_probe and hasattr(iterator, '_dataset_fetcher'):
            self._local = LocalProbe(iterator)
            self.slots = [self._local.slot]
            self._reader = InsideReader(self.slots)

    def living(self) -> Any:
        """The iterator, or ``None`` when it is gone or has ended its workers."""
        iterator = self._iterator()
        return None if getattr(iterator, '_shutdown', False) else iterator

    def living_processes(self) -> WorkerProcesses | None:
        """Its workers, unless it has ended them."""
        return None if self.living() is None else self.processes

    @property
    def is_inside(self) -> bool:
        """Whether figures are taken where the batches are made."""
        return self._reader is not None

    def collect(self, inside: InsideTally) -> None:
        """Add what was written inside since the last call."""
        if self._reader is not None:
            self._reader.collect(inside)

    def read_processes(self, outside: OutsideTally) -> None:
        """Add what the workers did since the last call; nothing when they are gone.

        Raises:
            SourceError: If the kernel's text is not understood.
        """
        if self.processes is not None:
            outside.add(self.processes.read())

    def retire(self, inside: InsideTally) -> None:
        """Take what its workers still have to tell, and leave the iterator."""
        try:
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.collect(inside, is_last=True)
        finally:
            self.close()

    def close(self) -> None:
        """Leave the iterator as it was; a second call does nothing."""
        try:
            if self._local is not None:
                self._local.close()
        finally:
            if self.processes is not None:
                self.processes.close()


class LoaderProbe:
    """Everything that is measured of a loader.

    Args:
        loader: That trains; anything that is no ``DataLoader`` is left alone.
        count_iterations: Tells how many iterations are done.
        pad_size_divisor: Of the model's data preprocessor.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        loader: Any,
        count_iterations: Callable[[], int] = lambda: 0,
        *,
        pad_size_divisor: int = 1,
        clock: Clock = monotonic_s,
    ) -> None:
        self.loader = loader
        self.count_iterations = count_iterations
        self.on_create_begin: Callable[[], None] | None = None
        """Called before the loader makes an iterator and starts its workers."""
        self.on_create_end: Callable[[Any], None] | None = None
        """Called after that with the iterator, or with ``None`` when that failed."""
        self._pad_size_divisor = pad_size_divisor
        self._clock = clock
        self.delivered = DeliveredBatches()
        """What the batches held."""
        self._queue = QueueWatch(self._take_processes, self._return_to_former)
        self._inside = InsideTally()
        self._outside = OutsideTally()
        self._current: Generation | None = None
        # a further iterator may have been made to look at a batch or two, only
        self._former: Generation | None = None
        self._was_fresh = False
        self._init: WorkerInit | None = None
        self._failure: str | None = None
        self._memory = MemoryLook(clock)
        self._since_s = clock()
        self._since_iteration = 0
        self._is_watching = self._is_fresh = False
        self._watch = CreationWatch(loader, self._before_creation, self._after_creation)
        self.unsupported = dict(self._watch.untold)
        """Reasons of figures that this loader does not give, by figure."""
        self.ask = self._queue.ask
        """Say that the loop asks for a batch."""
        self.got = self._queue.got
        """Say that the loop has it."""

    def watch_running(self, iterator: Any) -> None:
        """Follow an iterator, which may have been made before we came."""
        if self._current is None or self._current.living() is not iterator:
            self._follow(iterator, None, is_running=True)

    def _before_creation(self) -> None:
        self._notify(self.on_create_begin)
        try:
            self._step_back()
        except Exception as error:  # noqa: BLE001, never harm training
            self._fail(error)
        if self.inside_failure is not None:
            return
        try:
            init = enter_workers(self.loader, self._pad_size_divisor)
            if isinstance(init, Absent):
                self.unsupported['loader inside'] = init.reason
            else:
                self._init = init
        except Exception as error:  # noqa: BLE001, never harm training
            self._inside.off_reason = f'no way into the workers: {error}'

    def _after_creation(self, iterator: Any) -> None:
        init, self._init = self._init, None
        try:
            if init is not None:
                init.leave(iterator)
            if iterator is not None:
                self._follow(iterator, None if init is None else init.board)
            elif self._former is not None:
                self._return_to_former()
        except Exception as error:  # noqa: BLE001, never harm training
            self._fail(error)
        self._notify(self.on_create_end, iterator)

    def _notify(self, listener: Callable[..., None] | None, *args: Any) -> None:
        try:
            if listener is not None:
                listener(*args)
        except Exception as error:  # noqa: BLE001, never harm training
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = f'{type(error).__name__}: {error}'

    def _follow(
        self, iterator: Any, board: Board | None, *, is_running: bool = False
    ) -> None:
        self._watch_queue(iterator)
        self._current = current = Generation(
            iterator,
            board,
            is_running=is_running,
            may_probe=self.inside_failure is None,
            clock=self._clock,
        )
        self.delivered.follow(iterator, current.slots)
        if current.processes is not None and current.processes.is_hidden:
            self.unsupported['loader processes'] = (
                "the kernel does not show the workers' schedstat: "
                'their CPU, run delay and blocked time are unknown'
            )
        if not self._is_watching:
            self._is_watching = True
            self._begin_window(self._clock(), self.count_iterations())
        self._was_fresh = self._is_fresh
        # what is running made its batches ahead before we came
        self._is_fresh = self._is_fresh or not is_running

    def _watch_queue(self, iterator: Any) -> None:
        self._queue.watch(iterator)
        if self._queue.unsupported is not None:
            self.unsupported['queue depth'] = self._queue.unsupported

    def _begin_window(self, now_s: float, iteration: int) -> None:
        self._since_s, self._since_iteration = now_s, iteration
        self._is_fresh = self._was_fresh = False

    def _take_processes(self) -> None:
        """Read the workers before they end with their epoch; 0.2 ms for 16."""
        try:
            self.delivered.collect()
            if self._current is not None:
                self._current.read_processes(self._outside)
        except Exception as error:  # noqa: BLE001, never harm training
            self._fail(error)

    def _step_back(self) -> None:
        """Make room for a new iterator; one that lives may yet be the loop's."""
        self._take_processes()
        current, self._current = self._current, None
        former = self._former
        if current is None:
            return
        if current.living() is not None and (
            former is None or former.living() is None or self._queue.is_taken
        ):
            self._former, current = current, former
        if current is not None:
            current.retire(self._inside)

    def _return_to_former(self) -> None:
        """Follow the iterator before this one, which the loop never left."""
        try:
            other, self._current = self._current, None
            if other is not None:
                other.close()
            former, self._former = self._former, None
            iterator = None if former is None else former.living()
            if iterator is None:
                self._is_watching = False
                self.unsupported['loader workers'] = (
                    'the loop takes its batches from an iterator that was not seen'
                )
            self._watch_queue(iterator)
            # what it gave meanwhile was not followed
            self.delivered.follow(None, ())
            self._current = former
            self._is_fresh = self._was_fresh
        except Exception as error:  # noqa: BLE001, never harm training
            self._fail(error)

    def _settle(self) -> None:
        """Decide which of two iterators is the loop's, as far as it shows."""
        current, former = self._current, self._former
        if former is None:
            return
        if former.living() is None or self._queue.is_taken:
            self._former = None
            former.retire(self._inside)
        elif current is None or current.living() is None:
            self._return_to_former()
        elif former.processes is None:  # it loads in this process
            former.collect(self._inside)

    def read(self) -> WorkersWindow | None:
        """What the loader did since the last call, or since its workers started.

        It costs 0.2 ms with 16 workers, the first time for an iterator 1 ms.
        Figures per batch are over all batches made since the last call, by workers
        that have ended too. Where no worker can be read (``count`` is 0: the loader
        loads in this process, or ``/proc`` is hidden) ``cpu_s`` and ``run_delay_s``
        cover nobody.

        Returns:
            ``None`` when nothing is known.

        Raises:
            SourceError: If the probe failed; it should be closed.
        """
        if self._failure is not None:
            raise SourceError(self._failure)
        if not self._is_watching:
            return None
        self._settle()
        current = self._current
        if current is not None:
            current.read_processes(self._outside)
            current.collect(self._inside)
        outside, inside = self._outside.drain(), self._inside.drain()
        asks, ready_mean, ready_zero_pct, out_of_order = self._queue.drain()
        pss_bytes = self._memory.drain()
        now_s, iteration = self._clock(), self.count_iterations()
        is_inside = current is not None and current.is_inside
        fields = {
            **vars(outside),
            'window_s': now_s - self._since_s,
            'iterations': iteration - self._since_iteration,
            'fresh': self._is_fresh,
            'source': 'inside' if is_inside else 'outside',
            'asks': asks,
            'ready_mean': ready_mean,
            'ready_zero_pct': ready_zero_pct,
            'out_of_order': out_of_order,
            'pss_bytes': pss_bytes,
        }
        self._begin_window(now_s, iteration)
        if inside is not None:
            fields.update(inside._asdict())
        elif not outside.count:
            return None
        return WorkersWindow(**fields)

    @property
    def inside_failure(self) -> str | None:
        """Why nothing is measured inside from the next iterator on, if we failed."""
        return self._inside.off_reason

    @property
    def processes(self) -> WorkerProcesses | None:
        """The workers of the newest iterator, seen from outside."""
        return self._current.living_processes() if self._current else None

    @property
    def is_memory_due(self) -> bool:
        """Whether :meth:`read_memory` would read it: at most every 5 minutes."""
        return self._memory.is_due(self.processes)

    def find_owed(self) -> Owed | None:
        """Who owes the loop its next batch; ``None`` where that is not known."""
        current = self._current
        iterator = None if current is None else current.living()
        if current is None or iterator is None:
            return None
        return find_owed(iterator, current.slots, self._clock)

    def read_memory(self) -> None:
        """Look at it, on any thread, if it is due; the next :meth:`read` tells of it.

        A failure is the next :meth:`read`'s too.
        """
        try:
            workers = self.processes
            if workers is not None and self._memory.is_due(workers):
                self._memory.look(workers)
        except Exception as error:  # noqa: BLE001, nobody listens in a thread
            self._fail(error)

    def close(self) -> None:
        """Leave the loader as it was; a second call does nothing."""
        try:
            self._watch.close()
        finally:
            generations = (self._current, self._former)
            self._current = self._former = None
            self._is_watching = False
            self._queue.watch(None)
            self.delivered.follow(None, ())
            for one in generations:
                if one is not None:
                    one.close()
