"""Watches a live ``DataLoader`` from inside and outside, and never replaces it."""

from __future__ import annotations

from typing import Any, Callable

from mmgpu_hooks.records import WorkersWindow
from mmgpu_hooks.telemetry.clock import Clock, monotonic_s
from mmgpu_hooks.telemetry.loader.board import Board
from mmgpu_hooks.telemetry.loader.creation import CreationWatch
from mmgpu_hooks.telemetry.loader.inside import InsideReader, InsideTally
from mmgpu_hooks.telemetry.loader.processes import ProcessFigures, WorkerProcesses
from mmgpu_hooks.telemetry.loader.queue import QueueWatch
from mmgpu_hooks.telemetry.loader.settings import read_start_method
from mmgpu_hooks.telemetry.loader.worker import LocalProbe, WorkerInit
from mmgpu_hooks.telemetry.source_error import SourceError

_START_METHODS = ('fork', 'spawn', 'forkserver')
_MEMORY_PERIOD_S = 30.0
_NO_PROCESSES = ProcessFigures(0, 0.0, 0.0, 0.0, None, (), None)


class LoaderProbe:
    """Everything that is measured of a loader.

    Args:
        loader: The loader that trains; of anything that is no ``DataLoader`` nothing
            is known, and nothing of it is touched.
        count_iterations: Tells how many iterations are done.
        on_create_begin: Called before the loader makes an iterator and starts its
            workers; it must not raise.
        on_create_end: Called after that, also when it failed; it must not raise.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        loader: Any,
        count_iterations: Callable[[], int],
        *,
        on_create_begin: Callable[[], None] | None = None,
        on_create_end: Callable[[], None] | None = None,
        clock: Clock = monotonic_s,
    ) -> None:
        self._loader = loader
        self._count_iterations = count_iterations
        self._on_create_begin = on_create_begin
        self._on_create_end = on_create_end
        self._clock = clock
        self._queue = QueueWatch()
        self._tally = InsideTally()
        self._reader: InsideReader | None = None
        self._local: LocalProbe | None = None
        self._processes: WorkerProcesses | None = None
        self._init: WorkerInit | None = None
        self._failure: str | None = None
        self._pss_bytes: int | None = None
        self._memory_of: WorkerProcesses | None = None
        self._memory_s = 0.0
        self._since_s = clock()
        self._since_iteration = 0
        self._is_watching = self._is_fresh = False
        self.unsupported: dict[str, str] = {}
        """Reasons of figures that this loader does not give, by figure."""
        self._watch = CreationWatch(loader, self._before_creation, self._after_creation)
        # per iteration: no further call in between
        self.ask = self._queue.ask
        """Say that the loop asks for a batch; 0.2 us."""
        self.got = self._queue.got
        """Say that the loop has its batch; 0.2 us."""

    def watch_running(self, iterator: Any) -> None:
        """Follow an iterator that was made before we came.

        Its workers are out of reach: they are seen from outside only.

        Args:
            iterator: The loader's live iterator.
        """
        self._follow(iterator, None, is_running=True)

    def _before_creation(self) -> None:
        self._notify(self._on_create_begin)
        try:
            self._retire()
        except Exception as error:  # noqa: BLE001, never harm training
            self._fail(error)
        try:
            self._init = self._prepare_workers()
        except Exception as error:  # noqa: BLE001, never harm training
            self.unsupported['loader inside'] = f'no way into the workers: {error}'

    def _prepare_workers(self) -> WorkerInit | None:
        loader = self._loader
        workers = getattr(loader, 'num_workers', 0)
        if not workers:
            return None
        method = read_start_method(loader)
        if method not in _START_METHODS or not hasattr(loader, 'worker_init_fn'):
            self.unsupported['loader inside'] = (
                f'no way into workers that start by {method!r}; '
                'their CPU is seen from outside'
            )
            return None
        init = WorkerInit(loader.worker_init_fn, Board(workers, method))
        loader.worker_init_fn = init
        return init

    def _after_creation(self, iterator: Any) -> None:
        init, self._init = self._init, None
        try:
            if init is not None:
                user_init = init.user_init
                for holder, name in (
                    (self._loader, 'worker_init_fn'),
                    (iterator, '_worker_init_fn'),
                ):
                    if init is getattr(holder, name, None):
                        setattr(holder, name, user_init)
            if iterator is not None:
                self._follow(iterator, None if init is None else init.board)
        except Exception as error:  # noqa: BLE001, never harm training
            self._fail(error)
        self._notify(self._on_create_end)

    def _notify(self, listener: Callable[[], None] | None) -> None:
        try:
            if listener is not None:
                listener()
        except Exception as error:  # noqa: BLE001, never harm training
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = f'{type(error).__name__}: {error}'

    def _follow(
        self, iterator: Any, board: Board | None, *, is_running: bool = False
    ) -> None:
        self._queue.watch(iterator)
        if self._queue.unsupported is not None:
            self.unsupported['queue depth'] = self._queue.unsupported
        workers = getattr(iterator, '_workers', None) or ()
        if workers:
            pids = [worker.pid for worker in workers]
            self._processes = WorkerProcesses(
                pids, is_running=is_running, clock=self._clock
            )
            if self._processes.is_hidden:
                self.unsupported['loader processes'] = (
                    "the kernel does not show the workers' schedstat: "
                    'their CPU, run delay and blocked time are unknown'
                )
            if board is not None:
                slots = [board.slot(number) for number in range(len(workers))]
                self._reader = InsideReader(slots)
        elif hasattr(iterator, '_dataset_fetcher'):
            self._local = LocalProbe(iterator)
            self._reader = InsideReader([self._local.slot])
        self._is_watching = True
        self._begin_window()
        self._is_fresh = True

    def _begin_window(self) -> None:
        self._since_s = self._clock()
        self._since_iteration = self._count_iterations()
        self._is_fresh = False

    def _retire(self) -> None:
        """Take what the last iterator's workers still have to tell."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.collect(self._tally, is_last=True)
        local, self._local = self._local, None
        if local is not None:
            local.close()
        processes, self._processes = self._processes, None
        if processes is not None:
            processes.close()

    def read(self) -> WorkersWindow | None:
        """What the loader did since the last call, or since its workers started.

        It costs 0.2 ms with 16 workers and 2.5 ms with 256, measured on a 2-core VM;
        the first time for an iterator 1 ms and 5 ms.
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
        outside = _NO_PROCESSES
        if self._processes is not None:
            outside = self._processes.read()
        if self._reader is not None:
            self._reader.collect(self._tally)
            for reason in self._reader.off_reasons():
                self.unsupported['loader inside'] = (
                    f'measuring in a worker ended: {reason}'
                )
        inside = self._tally.drain()
        ready_mean, ready_zero_pct, out_of_order = self._queue.drain()
        pss_bytes, self._pss_bytes = self._pss_bytes, None
        window = WorkersWindow(
            count=outside.count,
            window_s=self._clock() - self._since_s,
            iterations=self._count_iterations() - self._since_iteration,
            cpu_s=outside.cpu_s,
            run_delay_s=outside.run_delay_s,
            fresh=self._is_fresh,
            source='outside' if self._reader is None else 'inside',
            blocked_s=outside.blocked_s,
            worker_cpu_s=outside.worker_cpu_s,
            ready_mean=ready_mean,
            ready_zero_pct=ready_zero_pct,
            out_of_order=out_of_order,
            affinity_cpus=outside.affinity_cpus,
            pss_bytes=pss_bytes,
            **({} if inside is None else vars(inside)),
        )
        self._begin_window()
        return window if outside.count or inside is not None else None

    @property
    def is_memory_due(self) -> bool:
        """Whether :meth:`read_memory` would look: once per iterator and 30 seconds."""
        if self._processes is None:
            return False
        is_known = self._processes is self._memory_of
        return not is_known or self._clock() - self._memory_s >= _MEMORY_PERIOD_S

    def read_memory(self) -> None:
        """Look at the workers' memory; the next :meth:`read` tells of it.

        20 ms at most. Between two dues a call does nothing. It may run on another
        thread.
        """
        processes = self._processes
        if processes is None or not self.is_memory_due:
            return
        self._memory_of, self._memory_s = processes, self._clock()
        self._pss_bytes = processes.read_pss_bytes()

    def close(self) -> None:
        """Leave the loader as it was; a second call does nothing."""
        self._watch.close()
        self._retire()
        self._memory_of = None
        self._is_watching = False
        self._queue.watch(None)
