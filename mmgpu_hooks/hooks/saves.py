"""Each save of a checkpoint: taken apart, written, judged, and the waits after it.

A save of MMEngine is: copies of the model and the optimizer, the hooks of
``before_save_checkpoint``, ``torch.save`` into a buffer, and the backend's ``put`` of
that buffer. For the time of one save the backend has a stand-in that stamps and passes
on. Calls of other threads pass unseen. Whatever a save does in another way (DeepSpeed's
own files) passes no stamp and stays in ``rest``.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, Callable, NamedTuple

from mmengine.runner import checkpoint as mmengine_checkpoint

from mmgpu_hooks.hooks.guard import Guard
from mmgpu_hooks.hooks.loop_timer import SAVE, LoopTimer
from mmgpu_hooks.judge.saves import KEPT_REFERENCES, is_reference, judge_save
from mmgpu_hooks.measure.ledger import LedgerWindow
from mmgpu_hooks.measure.loader.probe import LoaderProbe
from mmgpu_hooks.measure.loader.processes import WorkersMark, sum_workers_meanwhile
from mmgpu_hooks.measure.loader.settings import read_loader_settings
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.measure.save import (
    Surroundings,
    ThreadClock,
    ThreadTimes,
    read_size_bytes,
    split_phases,
)
from mmgpu_hooks.schema.recorded import (
    HostLimits,
    Line,
    SaveAftermathRecord,
    SaveRecord,
)

SOURCE = 'checkpoint saves'
"""What the guard knows us by."""

_LOCAL = ('LocalBackend', 'HardDiskBackend')
"""Backends of MMEngine that write to a file system of this host."""

_in_use = threading.Lock()
"""Two runners that save at once in two threads would take off each other's stand-ins:
the second goes without."""


class SaveStamps:
    """Stand-ins that stamp how far one save is, from its making to :meth:`end`.

    Args:
        runner: Whose checkpoint is saved.
        clock: Of the thread that saves.
        on_error: Gets what a stamp raises, which the save must not see.
    """

    def __init__(
        self, runner: Any, clock: ThreadClock, on_error: Callable[[Exception], None]
    ) -> None:
        self.written_bytes: int | None = None
        self.written_path: str | None = None
        self.backend: str | None = None
        self.is_seen = False
        """Whether this process copied or wrote something."""
        self.stamps = [('rest', clock.read())]
        """Phases, and when each began."""
        self._clock = clock
        self._on_error = on_error
        self._thread = threading.get_ident()
        self._patches = Patches()
        self._holds_lock = _in_use.acquire(blocking=False)
        if not self._holds_lock:
            return
        try:
            make = getattr(mmengine_checkpoint, 'get_file_backend', None)
            if make is not None:
                around = self._stand_in(make, after=self._begin_serialise)
                self._patches.set(mmengine_checkpoint, 'get_file_backend', around)
        except BaseException:
            # nobody holds this one yet, to end it
            self.end()
            raise

    def end(self) -> ThreadTimes:
        """Take every stand-in away; one that was replaced meanwhile is inert."""
        self._thread = -1
        self._patches.close()
        if self._holds_lock:
            self._holds_lock = False
            _in_use.release()
        return self._clock.read()

    def _stand_in(
        self,
        original: Callable[..., Any],
        before: Callable[..., None] = lambda *args: None,
        after: Callable[[Any], None] = lambda result: None,
    ) -> Callable[..., Any]:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            self.note(before, *args, *kwargs.values())
            result = original(*args, **kwargs)
            self.note(after, result)
            return result

        return stand_in

    def note(self, function: Callable[..., None], *args: Any) -> None:
        """Call it, if this is the thread that saves."""
        if threading.get_ident() != self._thread:
            return
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001  # the save must not see it
            self._on_error(error)

    def _stamp(self, phase: str) -> None:
        self.stamps.append((phase, self._clock.read()))

    def end_copy(self) -> None:
        """The hooks of ``before_save_checkpoint`` are about to be called."""
        self.is_seen = True

    def _begin_serialise(self, backend: Any) -> None:
        put = getattr(backend, 'put', None)
        if callable(put) and hasattr(backend, '__dict__'):
            self.backend, self.is_seen = type(backend).__name__, True
            self._stamp('serialise')
            around = self._stand_in(
                put, self._begin_write, lambda result: self._stamp('rest')
            )
            self._patches.set(backend, 'put', around)

    def _begin_write(self, *given: Any) -> None:
        self._stamp('write')
        for value in given:
            if isinstance(value, (bytes, bytearray, memoryview)):
                self.written_bytes = (self.written_bytes or 0) + len(value)
            elif isinstance(value, (str, os.PathLike)):
                self.written_path = os.fspath(value)

    def read_contents(
        self, path: str | None, error: str | None
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """What was written, and where to.

        Args:
            path: The file or folder, as far as it is known.
            error: Type of the exception that ended the save.

        Returns:
            Fields of a `SaveRecord`, and why one of them is missing.
        """
        unknown: dict[str, str] = {}
        figures: dict[str, Any] = {'backend': self.backend}
        if error is not None:
            unknown['bytes'] = f'it ended with {error}'
        else:
            size = self.written_bytes
            if size is None and path is not None:
                size = read_size_bytes(path)
            figures['bytes'] = size
            if size is None:
                unknown['bytes'] = 'neither a write nor a local file was seen'
        if self.backend in _LOCAL:
            figures['is_remote'] = False
        elif error is None and self.backend is not None and path is not None:
            figures['is_remote'] = not os.path.exists(path)
        return figures, unknown


def read_save_path(
    out_dir: Any = None, filename: Any = None, *_: Any, **__: Any
) -> str | None:
    """The file or folder of ``runner.save_checkpoint`` with these arguments."""
    parts = (out_dir, filename)
    if not all(isinstance(part, (str, os.PathLike)) for part in parts):
        return None
    return os.path.join(*map(os.fspath, parts))


def mark_workers(loader: LoaderProbe | None) -> WorkersMark | None:
    """CPU of a loader's workers so far; ``None`` when it is not watched."""
    if loader is None:
        return None
    processes = loader.processes
    return {} if processes is None else processes.mark()


_USUAL_WAITS = 256
"""Waits that a usual one is the mean of, the newest: a run may change its rate."""


class WaitsAfterSaves:
    """Sorts waits into those after a save and the usual ones.

    Args:
        horizon: Batches that can be made ahead: ``prefetch_factor`` times workers.
            With 0 nothing is made during a save.
        start: Iterations done before the first wait.
        round_of: Waits that a usual one must at least rest on. Workers that are short
            of cores end their batches together, so one wait in as many as there are
            workers holds all of it, and fewer waits may miss it.
    """

    def __init__(self, horizon: int, start: int, round_of: int = 1) -> None:
        self._horizon = horizon
        self._round_of = min(max(round_of, 1), _USUAL_WAITS)
        self._done = start
        self._usual: deque[float] = deque(maxlen=_USUAL_WAITS)
        self._events: deque[tuple[int, bool]] = deque()
        """Iterations done when something ended, and whether that was a save."""
        self._saved_at: int | None = None
        self._waits: list[float] = []

    def add(self, iteration: int, is_save: bool) -> None:
        """A save, or something else that is no iteration, came after so many.

        Args:
            iteration: Iterations done by then.
            is_save: Whether it was a save. What else comes ends what follows a save.
        """
        if self._horizon and (iteration, is_save) not in self._events:
            self._events.append((iteration, is_save))

    def add_waits(
        self, waits: Sequence[float], firsts: Collection[int] = ()
    ) -> list[SaveAftermathRecord]:
        """Sort the waits of the next iterations.

        Args:
            waits: Seconds, one per iteration.
            firsts: Positions of those that began an epoch or started workers: they are
                neither usual nor after a save.

        Returns:
            What is known by now.
        """
        known: list[SaveAftermathRecord] = []
        for position, wait_s in enumerate(waits):
            self._heed_events(known)
            if position in firsts:
                self._close(known)
            self._done += 1
            if self._saved_at is not None:
                self._waits.append(wait_s)
                if len(self._waits) >= self._horizon:
                    self._close(known)
            elif position not in firsts:
                self._usual.append(wait_s)
        return known

    def _heed_events(self, known: list[SaveAftermathRecord]) -> None:
        while self._events and self._events[0][0] <= self._done:
            iteration, is_save = self._events.popleft()
            self._close(known)
            if is_save:
                self._saved_at = iteration

    def _close(self, known: list[SaveAftermathRecord]) -> None:
        if self._saved_at is not None:
            usual = self._usual
            is_usual_known = len(usual) >= self._round_of
            known.append(
                SaveAftermathRecord(
                    iteration=self._saved_at,
                    iterations=len(self._waits),
                    waits_s=sum(self._waits),
                    usual_wait_s=sum(usual) / len(usual) if is_usual_known else None,
                )
            )
        self._saved_at, self._waits = None, []

    def finish(self) -> list[SaveAftermathRecord]:
        """The run is over: what is known of the last saves."""
        known: list[SaveAftermathRecord] = []
        self._heed_events(known)
        self._close(known)
        return known


class _Begun(NamedTuple):
    """What was read before a save."""

    position: tuple[int, int]
    workers: WorkersMark | None
    around: Surroundings
    stamps: SaveStamps


class SaveSource:
    """The saves of one runner, as the thread that makes this makes them.

    A save in another thread does not hold the training up: it is left alone. Of saves
    inside a save the outer one counts. What a save raises passes through. A save costs
    1 ms more than without, measured with 16 workers on a 2-core VM.

    Args:
        runner: Whose checkpoints are saved.
        guard: Switches this off when it fails; the ledger's part goes on.
        timer: Has the ledger that books saves.
        read_position: Returns iterations done and the epoch.
        write: Takes lines of the evidence.
        on_save: Called after each save; it must not raise.
    """

    def __init__(
        self,
        runner: Any,
        guard: Guard,
        timer: LoopTimer,
        *,
        read_position: Callable[[], tuple[int, int]],
        write: Callable[[Line], None],
        on_save: Callable[[], Any],
    ) -> None:
        self._runner = runner
        self._guard = guard
        self._timer = timer
        self._read_position = read_position
        self._write = write
        self._on_save = on_save
        self._patches = Patches()
        self._probe: LoaderProbe | None = None
        self._host = HostLimits()
        self._loader = read_loader_settings(runner.train_dataloader)
        workers = self._loader.num_workers or 0
        ahead = workers * (self._loader.prefetch_factor or 2)
        self._waits = WaitsAfterSaves(ahead, read_position()[0], workers)
        self._clock = ThreadClock()
        self._stamps: SaveStamps | None = None
        """Of the save that is on."""
        self._earlier: deque[SaveRecord] = deque(maxlen=KEPT_REFERENCES)
        self._warned: set[str] = set()
        self._thread = threading.get_ident()

    def open(self, probe: LoaderProbe | None, host: HostLimits) -> None:
        """Watch every save from now on.

        Args:
            probe: Knows the loader's workers.
            host: Its limits.
        """
        runner, patches = self._runner, self._patches
        self._probe, self._host = probe, host
        self._timer.hooks.before_save = self._end_copy
        patches.set(runner, 'save_checkpoint', self._around(runner.save_checkpoint))
        for hook in runner.hooks:
            # of MMEngine's CheckpointHook: it saves without the runner
            if not runner.rank and hasattr(hook, '_publish_model'):
                publish = self._around(hook._publish_model, is_publish=True)
                patches.set(hook, '_publish_model', publish)

    def _around(
        self, original: Callable[..., Any], is_publish: bool = False
    ) -> Callable[..., Any]:
        """``original``, which saves a checkpoint, watched."""
        run, ledger, hooks = self._guard.run, self._timer.ledger, self._timer.hooks

        def save(*args: Any, **kwargs: Any) -> Any:
            # a wrapper that somebody put around ours keeps calling it
            is_ours = hooks.is_open and threading.get_ident() == self._thread
            if not is_ours or ledger.running[-1] is SAVE:
                return original(*args, **kwargs)
            begun = run(SOURCE, self._begin)
            ledger.push(SAVE)
            error: str | None = None
            try:
                return original(*args, **kwargs)
            except BaseException as raised:
                error = type(raised).__name__
                raise
            finally:
                ledger.pop(SAVE)
                self._on_save()
                self._stamps = None
                if begun is not None:
                    end = begun.stamps.end()
                    target = None if is_publish else (args, kwargs)
                    run(SOURCE, self._end, begun, end, target, error)

        return save

    def _begin(self) -> _Begun:
        def give_up(error: Exception) -> None:
            self._guard.switch_off(SOURCE, error)

        position, workers = self._read_position(), mark_workers(self._probe)
        around = Surroundings.read()
        self._stamps = SaveStamps(self._runner, self._clock, give_up)
        return _Begun(position, workers, around, self._stamps)

    def _end_copy(self, checkpoint: Any) -> None:
        stamps = self._stamps
        if stamps is not None:
            stamps.note(stamps.end_copy)

    def _end(
        self, begun: _Begun, end: ThreadTimes, target: Any, error: str | None
    ) -> None:
        path = None
        if target is not None:
            args, kwargs = target
            path = read_save_path(*args, **kwargs)
        stamps = begun.stamps
        path = path or stamps.written_path
        total, phases = split_phases(stamps.stamps, end)
        workers, why = self._read_workers(begun.workers, total.wall_s)
        around, why_around = Surroundings.read().since(
            begun.around, workers.get('workers_cpu_s')
        )
        # of a Runner's ranks the first alone saves; else each writes into the folder
        is_folder = path is not None and os.path.isdir(path)
        if self._runner.rank and not stamps.is_seen and not is_folder:
            return
        contents, why_contents = stamps.read_contents(path, error)
        unknown = {**why, **why_around, **why_contents}
        if self._clock.unknown is not None:
            unknown['run_delay_s, blocked_s'] = self._clock.unknown
        save = SaveRecord(
            iteration=begun.position[0],
            epoch=begun.position[1],
            wall_s=total.wall_s,
            occasion='publish' if target is None else 'save',
            name=os.path.basename(path.rstrip('/')) if path else None,
            phases=phases,
            cpu_s=total.cpu_s,
            run_delay_s=total.run_delay_s,
            blocked_s=total.blocked_s,
            error=error,
            unknown=unknown,
            **contents,
            **workers,
            **around,
        )
        self._write(save)
        self._waits.add(save.iteration, is_save=True)
        self._warn_of(save)

    def _read_workers(
        self, before: WorkersMark | None, wall_s: float
    ) -> tuple[dict[str, Any], dict[str, str]]:
        after = mark_workers(self._probe)
        if before is None or after is None:
            return {}, {'workers': 'the loader is not watched'}
        seen = sum_workers_meanwhile(before, after, wall_s)
        figures = {
            'workers': seen.count,
            'workers_busy': seen.busy,
            'workers_cpu_s': seen.cpu_s,
        }
        why = "the kernel hides a worker's schedstat, or it came or went meanwhile"
        return figures, {name: why for name, one in figures.items() if one is None}

    def _warn_of(self, save: SaveRecord) -> None:
        """Warn of a slow save as it happens, once per cause."""
        judged = judge_save(save, self._earlier, None, self._host, self._loader)
        if is_reference(save):
            self._earlier.append(save)
        # never a warning without proof: a slow save of no proven cause is a finding
        cause = judged.cause if judged.is_slow else None
        if cause is not None and cause not in self._warned:
            self._warned.add(cause)
            self._runner.logger.warning(f'GPUEfficiencyHook: {judged.sentence}')

    def add_waits(self, window: LedgerWindow) -> None:
        """Take the waits for data of an interval."""
        for record in self._waits.add_waits(window.waits_s.tolist(), window.firsts):
            self._write(record)

    def add_cut(self) -> None:
        """The loop does something else than iterations."""
        self._waits.add(self._read_position()[0], is_save=False)

    def leave(self) -> None:
        """Leave the runner as it was; a second call does nothing."""
        self._thread = -1
        self._patches.close()

    def finish(self) -> None:
        """All waits are known, and the run is over."""
        for record in self._waits.finish():
            self._write(record)
