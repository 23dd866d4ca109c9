"""Each save of a checkpoint: taken apart, written, judged, and the waits after it.

A save of MMEngine is: text of the config, ``model.state_dict()`` and its copies, the
hooks of ``before_save_checkpoint``, ``torch.save`` into a buffer, and the backend's
``put`` of that buffer. For the time of one save these have a stand-in that stamps and
passes on. Calls of other threads pass unseen. Whatever a save does in another way
(DeepSpeed's own files) passes no stamp and stays in ``rest``.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Callable

from mmengine.hooks import CheckpointHook
from mmengine.runner import checkpoint as mmengine_checkpoint

from mmgpu_hooks.hooks.guard import Guard
from mmgpu_hooks.judge.saves import KEPT_REFERENCES, is_reference, judge_save
from mmgpu_hooks.measure.ledger import LedgerWindow
from mmgpu_hooks.measure.loader.probe import LoaderProbe
from mmgpu_hooks.measure.loader.processes import WorkersMark, fold_workers_meanwhile
from mmgpu_hooks.measure.loader.settings import read_loader_settings
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.measure.save import (
    Surroundings,
    ThreadClock,
    ThreadTimes,
    count_history_bytes,
    count_tensor_bytes,
    fold_phase,
    fold_phases,
    read_size_bytes,
)
from mmgpu_hooks.schema import (
    HostLimits,
    LoaderSettings,
    SaveAftermathRecord,
    SaveRecord,
)
from mmgpu_hooks.schema.recorded import Line

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
        self.checkpoint: Mapping[str, Any] | None = None
        """What is saved, once it is copied."""
        self.written_bytes: int | None = None
        self.backend: str | None = None
        self.written_path: str | None = None
        self.stamps: list[tuple[str, ThreadTimes]] = []
        """Phases, and when each began."""
        self._is_copied = False
        self._clock = clock
        self._on_error = on_error
        self._thread = threading.get_ident()
        self._patches = Patches()
        self._holds_lock = _in_use.acquire(blocking=False)
        self._stamp('rest')
        if not self._holds_lock:
            return
        try:
            # a wrapper (DDP) may be passed over for the plain model
            for model in (runner.model, getattr(runner.model, 'module', None)):
                if hasattr(model, 'state_dict') and 'state_dict' not in vars(model):
                    self._patches.set(model, 'state_dict', self._around_state(model))
            around_hooks = self._around_call_hook(runner.call_hook)
            self._patches.set(runner, 'call_hook', around_hooks)
            if hasattr(mmengine_checkpoint, 'get_file_backend'):
                self._patches.set(
                    mmengine_checkpoint, 'get_file_backend', self._around_backend()
                )
        except BaseException:
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

    @property
    def is_seen(self) -> bool:
        """Whether this process copied or wrote something."""
        return self._is_copied or self.backend is not None

    def _stamp(self, phase: str) -> None:
        self.stamps.append((phase, self._clock.read()))

    def _note(self, function: Callable[..., None], *args: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001  # the save must not see it
            self._on_error(error)

    def _begin_copy(self) -> None:
        # of a wrapper and the model in it the first counts
        if not self._is_copied:
            self._is_copied = True
            self._stamp('copy')

    def _end_copy(self, checkpoint: Any) -> None:
        if not self._is_copied:
            # the model was copied in another way: all before was the copying
            self._is_copied = True
            self.stamps[-1] = 'copy', self.stamps[-1][1]
        self._stamp('rest')
        if isinstance(checkpoint, Mapping):
            self.checkpoint = checkpoint

    def _begin_serialise(self, backend: Any) -> None:
        put = getattr(backend, 'put', None)
        if callable(put) and hasattr(backend, '__dict__'):
            self.backend = type(backend).__name__
            self._stamp('serialise')
            self._patches.set(backend, 'put', self._around_put(put))

    def _begin_write(self, *given: Any) -> None:
        self._stamp('write')
        for value in given:
            if isinstance(value, (bytes, bytearray, memoryview)):
                self.written_bytes = (self.written_bytes or 0) + len(value)
            elif isinstance(value, (str, os.PathLike)):
                self.written_path = os.fspath(value)

    def _around_state(self, model: Any) -> Callable[..., Any]:
        names, original = vars(model), model.state_dict

        def state_dict(*args: Any, **kwargs: Any) -> Any:
            # taken away at once: the model may be part of what is pickled
            is_ours = threading.get_ident() == self._thread
            if is_ours and names.get('state_dict') is state_dict:
                del names['state_dict']
            self._note(self._begin_copy)
            return original(*args, **kwargs)

        return state_dict

    def _around_call_hook(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call_hook(*args: Any, **kwargs: Any) -> Any:
            name = args[0] if args else kwargs.get('fn_name')
            if name == 'before_save_checkpoint':
                self._note(self._end_copy, kwargs.get('checkpoint'))
            return original(*args, **kwargs)

        return call_hook

    def _around_backend(self) -> Callable[..., Any]:
        original = mmengine_checkpoint.get_file_backend

        def get_file_backend(*args: Any, **kwargs: Any) -> Any:
            backend = original(*args, **kwargs)
            self._note(self._begin_serialise, backend)
            return backend

        return get_file_backend

    def _around_put(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def put(*args: Any, **kwargs: Any) -> Any:
            self._note(self._begin_write, *args, *kwargs.values())
            try:
                return original(*args, **kwargs)
            finally:
                self._note(self._stamp, 'rest')

        return put

    def read_contents(
        self, path: str | None, error: str | None
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """What was written, and where to.

        Args:
            path: The file or folder, as far as it is known.
            error: Type of the exception that ended the save.

        Returns:
            Fields of a :class:`~mmgpu_hooks.schema.SaveRecord`, and why one of them
            is missing.
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
        if self.checkpoint is None:
            unknown['optimizer_bytes, message_hub_bytes'] = (
                'its contents were not shown by before_save_checkpoint'
            )
        else:
            hub = self.checkpoint.get('message_hub')
            optimizer = self.checkpoint.get('optimizer')
            figures['optimizer_bytes'] = count_tensor_bytes(optimizer)
            figures['message_hub_bytes'] = count_history_bytes(hub)
            self.checkpoint = None
        if self.backend in _LOCAL:
            figures['is_remote'] = False
        elif error is None and self.backend is not None and path is not None:
            figures['is_remote'] = not os.path.exists(path)
        return figures, unknown


def read_save_target(
    runner: Any, out_dir: Any = None, filename: Any = None, *_: Any, **__: Any
) -> tuple[str, str | None]:
    """Occasion and path of ``runner.save_checkpoint`` with these arguments.

    The names are those that MMEngine's CheckpointHook gives.
    """
    if not isinstance(filename, (str, os.PathLike)):
        return 'other', None
    name = os.fspath(filename)
    path = None
    if isinstance(out_dir, (str, os.PathLike)):
        path = os.path.join(os.fspath(out_dir), name)
    return _find_occasion(runner, name), path


def _find_occasion(runner: Any, name: str) -> str:
    for hook in runner.hooks:
        if not isinstance(hook, CheckpointHook):
            continue
        if hook.save_best and name.startswith('best_'):
            return 'best'
        done = runner.epoch if hook.by_epoch else runner.iter
        # MMEngine counts on after the hooks of an epoch or iteration
        if name in (hook.filename_tmpl.format(number) for number in (done, done + 1)):
            return 'epoch' if hook.by_epoch else 'iteration'
    return 'other'


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


class SaveWarnings:
    """Warns of a slow save as it happens, once per cause.

    Args:
        warn: Logs one warning.
        host: Limits of the host.
        loader: Live settings of the loader.
    """

    def __init__(
        self, warn: Callable[[str], None], host: HostLimits, loader: LoaderSettings
    ) -> None:
        self._warn = warn
        self._host = host
        self._loader = loader
        self._earlier: deque[SaveRecord] = deque(maxlen=KEPT_REFERENCES)
        self._slow: Counter[str] = Counter()

    def add(self, save: SaveRecord) -> None:
        """Judge a save by those before it."""
        judged = judge_save(save, self._earlier, None, self._host, self._loader)
        if is_reference(save):
            self._earlier.append(save)
        # never a warning without proof: a slow save of no proven cause is a finding
        if not judged.is_slow or judged.cause is None:
            return
        self._slow[judged.cause] += 1
        if self._slow[judged.cause] == 1:
            self._warn(f'GPUEfficiencyHook: {judged.sentence}')

    def finish(self) -> None:
        """Say how many were slow, unless that was said."""
        if any(count > 1 for count in self._slow.values()):
            causes = ', '.join(
                f'{count} {cause}' for cause, count in self._slow.most_common()
            )
            self._warn(f'GPUEfficiencyHook: slow saves in this run by cause: {causes}.')


class SaveSource:
    """The saves of one runner, as the thread that opens it makes them.

    A save in another thread does not hold the training up: it is left alone. Of saves
    inside a save the outer one counts. What a save raises passes through. A save costs
    1 ms more than without, measured with 16 workers on a 2-core VM.

    Args:
        runner: Whose checkpoints are saved.
        guard: Switches this off when it fails.
        read_position: Returns iterations done and the epoch.
        write: Takes lines of the evidence.
    """

    def __init__(
        self,
        runner: Any,
        guard: Guard,
        read_position: Callable[[], tuple[int, int]],
        write: Callable[[Line], None],
    ) -> None:
        self._runner = runner
        self._guard = guard
        self._read_position = read_position
        self._write = write
        self._patches = Patches()
        self._loader: LoaderProbe | None = None
        self._warnings: SaveWarnings | None = None
        self._waits = WaitsAfterSaves(0, 0)
        self._clock: ThreadClock | None = None
        self._surroundings = Surroundings()
        self._thread = -1
        self._is_saving = False

    def open(self, probe: LoaderProbe | None, host: HostLimits) -> None:
        """Watch every save from now on, by the thread that calls this.

        Args:
            probe: Knows the loader's workers.
            host: Its limits.
        """
        runner, patches = self._runner, self._patches
        loader = read_loader_settings(runner.train_dataloader)
        self._loader, self._clock = probe, ThreadClock()
        self._warnings = SaveWarnings(runner.logger.warning, host, loader)
        workers = loader.num_workers or 0
        self._waits = WaitsAfterSaves(
            workers * (loader.prefetch_factor or 2), self._read_position()[0], workers
        )
        self._thread = threading.get_ident()
        patches.set(runner, 'save_checkpoint', self._around(runner.save_checkpoint))
        if runner.rank:
            return
        for hook in runner.hooks:
            # of MMEngine's CheckpointHook: it saves without the runner
            if hasattr(hook, '_publish_model'):
                publish = self._around(hook._publish_model, is_publish=True)
                patches.set(hook, '_publish_model', publish)

    def _around(
        self, original: Callable[..., Any], is_publish: bool = False
    ) -> Callable[..., Any]:
        """``original``, which saves a checkpoint, watched."""
        run = self._guard.run

        def save(*args: Any, **kwargs: Any) -> Any:
            # a wrapper that somebody put around ours keeps calling it
            is_ours = threading.get_ident() == self._thread and not self._is_saving
            begun = run(SOURCE, self._begin) if is_ours else None
            if begun is None:
                return original(*args, **kwargs)
            self._is_saving = True
            error: str | None = None
            try:
                return original(*args, **kwargs)
            except BaseException as raised:
                error = type(raised).__name__
                raise
            finally:
                self._is_saving = False
                end = begun[0].end()
                target: tuple[str, str | None] | None = ('publish', None)
                if not is_publish:
                    target = run(
                        SOURCE, read_save_target, self._runner, *args, **kwargs
                    )
                if target is not None:
                    run(SOURCE, self._end, *begun, end, target, error)

        return save

    def _begin(
        self,
    ) -> tuple[SaveStamps, tuple[int, int], WorkersMark | None] | None:
        if self._clock is None:
            return None
        position, workers = self._read_position(), mark_workers(self._loader)
        self._surroundings.begin()

        def give_up(error: Exception) -> None:
            self._guard.switch_off(SOURCE, error)

        return SaveStamps(self._runner, self._clock, give_up), position, workers

    def _end(
        self,
        stamps: SaveStamps,
        position: tuple[int, int],
        workers: WorkersMark | None,
        end: ThreadTimes,
        target: tuple[str, str | None],
        error: str | None,
    ) -> None:
        total = fold_phase(stamps.stamps[0][1], end)
        unknown: dict[str, str] = {}
        figures: dict[str, Any] = {}
        after = mark_workers(self._loader)
        if workers is None or after is None:
            unknown['workers'] = 'the loader is not watched'
        else:
            seen = fold_workers_meanwhile(workers, after, total.wall_s)
            figures = {
                'workers': seen.count,
                'workers_busy': seen.busy,
                'workers_cpu_s': seen.cpu_s,
            }
            if seen.busy is None:
                unknown['workers_busy'] = "the kernel hides the workers' schedstat"
            if seen.cpu_s is None:
                unknown['workers_cpu_s'] = 'a worker came or went, or hides it'
        around, why = self._surroundings.end(figures.get('workers_cpu_s'))
        occasion, path = target
        path = path or stamps.written_path
        # of a Runner's ranks the first alone saves; else each writes into the folder
        is_folder = path is not None and os.path.isdir(path)
        if self._runner.rank and not stamps.is_seen and not is_folder:
            return
        contents, why_not = stamps.read_contents(path, error)
        if self._clock is not None and self._clock.unknown is not None:
            unknown['run_delay_s, blocked_s'] = self._clock.unknown
        save = SaveRecord(
            iteration=position[0],
            epoch=position[1],
            wall_s=total.wall_s,
            occasion=occasion,
            name=os.path.basename(path.rstrip('/')) if path else None,
            phases=fold_phases(stamps.stamps, end),
            cpu_s=total.cpu_s,
            run_delay_s=total.run_delay_s,
            blocked_s=total.blocked_s,
            error=error,
            unknown={**unknown, **why, **why_not},
            **contents,
            **figures,
            **around,
        )
        self._write(save)
        self._waits.add(save.iteration, is_save=True)
        if self._warnings is not None:
            self._warnings.add(save)

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
        if self._warnings is not None:
            self._warnings.finish()
