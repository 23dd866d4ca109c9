"""Each save of a checkpoint: watched, written, judged, set beside what followed."""

from __future__ import annotations

import functools
import os
import threading
from collections import Counter, deque
from collections.abc import Collection, Sequence
from typing import Any, Callable, NamedTuple

from mmengine.hooks import CheckpointHook

from mmgpu_hooks.hooks.guard import Guard
from mmgpu_hooks.hooks.save_phases import SaveProgress, SaveStamps
from mmgpu_hooks.judge.saves import KEPT_REFERENCES, is_reference, judge_save
from mmgpu_hooks.measure.ledger import LedgerWindow
from mmgpu_hooks.measure.loader.probe import LoaderProbe
from mmgpu_hooks.measure.loader.processes import WorkersMark, fold_workers_meanwhile
from mmgpu_hooks.measure.loader.settings import read_loader_settings
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.measure.save import Surroundings, ThreadClock
from mmgpu_hooks.schema import (
    HostLimits,
    LoaderSettings,
    SaveAftermathRecord,
    SaveRecord,
)
from mmgpu_hooks.schema.recorded import Line


def read_save_target(
    runner: Any, out_dir: Any = None, filename: Any = None, *_: Any, **__: Any
) -> Target:
    """Of ``runner.save_checkpoint``, which is called with these arguments.

    The names are those that MMEngine's CheckpointHook gives.
    """
    if not isinstance(filename, (str, os.PathLike)):
        return Target('other')
    name = os.fspath(filename)
    path = None
    if isinstance(out_dir, (str, os.PathLike)):
        path = os.path.join(os.fspath(out_dir), name)
    return Target(_find_occasion(runner, name), path)


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


def read_publish_target(*_: Any, **__: Any) -> Target:
    """Of ``CheckpointHook._publish_model``, which finds the name as it goes."""
    return Target('publish')


_USUAL_WAITS = 256
"""Waits that a usual one is the mean of, the newest: a run may change its pace."""


class AftermathFolder:
    """Sorts waits into those after a save and the usual ones.

    Saves and what ends a span are told when they happen, the waits whenever somebody
    has them, in order. Two saves at the same iteration have one aftermath. One without
    iterations is of a save after which something else came at once.

    Args:
        horizon: Batches that can be made ahead: ``prefetch_factor`` times workers.
            With 0 there is no aftermath.
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
        self._saves: deque[int] = deque()
        self._cuts: deque[int] = deque()
        self._open: int | None = None
        self._waits: list[float] = []

    def add_save(self, iteration: int) -> None:
        """A save ended, after so many iterations."""
        if self._horizon and iteration not in self._saves:
            self._saves.append(iteration)

    def add_cut(self, iteration: int) -> None:
        """The loop did something else than iterations, after so many of them."""
        is_wanted = self._saves or self._open is not None
        if is_wanted and iteration not in self._cuts:
            self._cuts.append(iteration)

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
        if not (self._saves or self._cuts or firsts) and self._open is None:
            # what most intervals are: no save was near
            self._done += len(waits)
            self._usual.extend(waits)
            return known
        for position, wait_s in enumerate(waits):
            self._begin_and_end(known, position in firsts)
            self._done += 1
            if self._open is not None:
                self._waits.append(wait_s)
                if len(self._waits) >= self._horizon:
                    self._close(known)
            elif position not in firsts:
                self._usual.append(wait_s)
        return known

    def _begin_and_end(self, known: list[SaveAftermathRecord], is_cut: bool) -> None:
        """Heed what happened between the last iteration and the next."""
        while self._cuts and self._cuts[0] <= self._done:
            self._cuts.popleft()
            is_cut = True
        while self._saves and self._saves[0] <= self._done:
            self._close(known)
            self._open = self._saves.popleft()
        if is_cut:
            self._close(known)

    def _close(self, known: list[SaveAftermathRecord]) -> None:
        if self._open is not None:
            usual = self._usual
            is_usual_known = len(usual) >= self._round_of
            known.append(
                SaveAftermathRecord(
                    iteration=self._open,
                    iterations=len(self._waits),
                    waits_s=sum(self._waits),
                    usual_wait_s=sum(usual) / len(usual) if is_usual_known else None,
                )
            )
        self._open, self._waits = None, []

    def finish(self) -> list[SaveAftermathRecord]:
        """The run is over: what is known of the last saves."""
        known: list[SaveAftermathRecord] = []
        self._begin_and_end(known, is_cut=True)
        return known


_MOST_PENDING = 32
"""Saves whose aftermath is awaited; of more the oldest are judged without."""


class SaveWarnings:
    """Judges each save once it is known what followed.

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
        self._pending: deque[SaveRecord] = deque()
        self._slow: Counter[str] = Counter()

    def add_save(self, save: SaveRecord) -> None:
        """Take a save; whether it was slow is said when it is known what it cost."""
        self._pending.append(save)
        # without workers nothing is made ahead: there will be no aftermath
        most = _MOST_PENDING if self._loader.num_workers else 0
        while len(self._pending) > most:
            self._judge(self._pending.popleft(), None)

    def add_aftermath(self, aftermath: SaveAftermathRecord) -> None:
        """Take what followed a save; of several at one iteration the last one, or
        all where nothing was won back.
        """
        while self._pending and self._pending[0].iteration <= aftermath.iteration:
            save = self._pending.popleft()
            is_last = not self._pending or self._pending[0].iteration > save.iteration
            # what won nothing back did so for every save before it
            is_known = is_last or not aftermath.iterations
            is_its = save.iteration == aftermath.iteration and is_known
            self._judge(save, aftermath if is_its else None)

    def _judge(self, save: SaveRecord, aftermath: SaveAftermathRecord | None) -> None:
        judged = judge_save(save, self._earlier, aftermath, self._host, self._loader)
        if is_reference(save):
            self._earlier.append(save)
        # never a warning without proof: a slow save of no proven cause is a finding
        if not judged.is_slow or judged.cause is None:
            return
        self._slow[judged.cause] += 1
        if self._slow[judged.cause] == 1:
            self._warn(f'GPUEfficiencyHook: {judged.sentence}')

    def finish(self) -> None:
        """Judge what is left, and say how many were slow, unless that was said."""
        while self._pending:
            self._judge(self._pending.popleft(), None)
        if any(count > 1 for count in self._slow.values()):
            causes = ', '.join(
                f'{count} {cause}' for cause, count in self._slow.most_common()
            )
            self._warn(f'GPUEfficiencyHook: slow saves in this run by cause: {causes}.')


SOURCE = 'checkpoint saves'
"""What the guard knows us by."""


class Target(NamedTuple):
    """Where a save goes to, as far as its arguments tell."""

    occasion: str
    """As in :class:`~mmgpu_hooks.schema.SaveRecord`."""
    path: str | None = None


class SaveWatch:
    """Measures the saves of one runner; it must be made by the thread that trains.

    A save in another thread does not hold the training up: it is left alone. Of saves
    inside a save the outer one counts. What a save raises passes through. A save costs
    1 ms more than without, measured with 16 workers on a 2-core VM.

    Args:
        runner: Whose checkpoints are saved.
        guard: Switches the watch off when it fails.
        loader: Knows the loader's workers.
        read_position: Tells iterations done and the epoch.
        on_save: Gets the record right after each save.
    """

    def __init__(
        self,
        runner: Any,
        guard: Guard,
        loader: LoaderProbe | None,
        read_position: Callable[[], tuple[int, int]],
        on_save: Callable[[SaveRecord], None],
    ) -> None:
        self._runner = runner
        self._guard = guard
        self._loader = loader
        self._read_position = read_position
        self._on_save = on_save
        self._thread = threading.get_ident()
        self._clock = ThreadClock()
        self._surroundings = Surroundings()
        self._is_saving = False
        self._is_open = True

    def around(
        self, original: Callable[..., Any], read_target: Callable[..., Target]
    ) -> Callable[..., Any]:
        """``original``, which saves a checkpoint, watched.

        Args:
            original: Called with whatever it is called with.
            read_target: Gets the same arguments.
        """

        def save(*args: Any, **kwargs: Any) -> Any:
            is_ours = self._is_open and threading.get_ident() == self._thread
            if not is_ours or self._is_saving:
                return original(*args, **kwargs)
            one = self._guard.run(SOURCE, self._begin)
            if one is None:
                return original(*args, **kwargs)
            self._is_saving = True
            error: str | None = None
            try:
                return original(*args, **kwargs)
            except BaseException as raised:
                error = type(raised).__name__
                raise
            finally:
                self._guard.clean_up(SOURCE, one.progress.end)
                one.stamps.close()
                self._is_saving = False
                target = self._guard.run(SOURCE, read_target, *args, **kwargs)
                if target is not None:
                    self._guard.run(SOURCE, self._end, one, target, error)

        return save

    def _begin(self) -> _Save:
        iteration, epoch = self._read_position()
        marked = mark_workers(self._loader)
        self._surroundings.begin()
        progress = SaveProgress(self._clock, self._surroundings)
        stamps = SaveStamps(
            self._runner,
            progress,
            lambda error: self._guard.switch_off(SOURCE, error),
        )
        return _Save(progress, stamps, iteration, epoch, marked)

    def _end(self, one: _Save, target: Target, error: str | None) -> None:
        progress, loader = one.progress, self._loader
        total = progress.total
        unknown: dict[str, str] = {}
        workers: dict[str, Any] = {}
        after = mark_workers(loader)
        if one.workers is None or after is None:
            unknown['workers'] = 'the loader is not watched'
        else:
            seen = fold_workers_meanwhile(one.workers, after, total.wall_s)
            workers = {
                'workers': seen.count,
                'workers_busy': seen.busy,
                'workers_cpu_s': seen.cpu_s,
            }
            if seen.busy is None:
                unknown['workers_busy'] = "the kernel hides the workers' schedstat"
            if seen.cpu_s is None:
                unknown['workers_cpu_s'] = 'a worker came or went, or hides it'
        around, why = self._surroundings.end(workers.get('workers_cpu_s'))
        path = target.path or progress.written_path
        if not self._is_recorded(progress, path):
            return
        contents, why_not = progress.read_contents(path, error)
        if self._clock.unknown is not None:
            unknown['run_delay_s, blocked_s'] = self._clock.unknown
        unknown.update({**why, **why_not})
        self._on_save(
            SaveRecord(
                iteration=one.iteration,
                epoch=one.epoch,
                wall_s=total.wall_s,
                occasion=target.occasion,
                name=os.path.basename(path.rstrip('/')) if path else None,
                phases=progress.phases,
                cpu_s=total.cpu_s,
                run_delay_s=total.run_delay_s,
                blocked_s=total.blocked_s,
                error=error,
                unknown=unknown,
                **contents,
                **workers,
                **around,
            )
        )

    def _is_recorded(self, progress: SaveProgress, path: str | None) -> bool:
        """Whether this rank took part; of most saves the first rank alone does."""
        if not self._runner.rank or progress.is_seen:
            return True
        # each rank writes into the folder, in a way of its own
        return path is not None and os.path.isdir(path)

    def close(self) -> None:
        """Watch no more; a second call does nothing."""
        # a wrapper that somebody put around ours keeps calling it
        self._is_open = False
        self._clock.close()
        self._surroundings.close()


class _Save(NamedTuple):
    progress: SaveProgress
    stamps: SaveStamps
    iteration: int
    epoch: int
    workers: WorkersMark | None


def mark_workers(loader: LoaderProbe | None) -> WorkersMark | None:
    """Where the workers of a loader stand; ``None`` when it is not watched."""
    if loader is None:
        return None
    processes = loader.processes
    return {} if processes is None else processes.mark()


DEFAULT_PREFETCH_FACTOR = 2
"""PyTorch's own, where a loader does not tell."""


class SaveSource:
    """The saves of one runner. No call of it raises.

    Args:
        runner: Whose checkpoints are saved.
        guard: Switches this off when it fails.
        read_position: Tells iterations done and the epoch.
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
        self._watch: SaveWatch | None = None
        self._warnings: SaveWarnings | None = None
        self._aftermaths = AftermathFolder(0, 0)
        self._patches = Patches()

    def open(self, probe: LoaderProbe | None, host: HostLimits) -> None:
        """Watch every save from now on, by the thread that calls this.

        Args:
            probe: Knows the loader's workers.
            host: Its limits.
        """
        self._guard.run(SOURCE, self._open, probe, host)

    def _open(self, probe: LoaderProbe | None, host: HostLimits) -> None:
        runner, patches = self._runner, self._patches
        loader = read_loader_settings(runner.train_dataloader)
        self._warnings = SaveWarnings(runner.logger.warning, host, loader)
        self._aftermaths = AftermathFolder(
            _fold_horizon(loader), self._read_position()[0], loader.num_workers or 1
        )
        self._watch = SaveWatch(
            runner, self._guard, probe, self._read_position, self._note
        )
        around = self._watch.around
        target = functools.partial(read_save_target, runner)
        saves = around(runner.save_checkpoint, target)
        patches.set(runner, 'save_checkpoint', saves)
        if runner.rank:
            return
        for hook in runner.hooks:
            # of MMEngine's CheckpointHook: it saves without the runner
            if hasattr(hook, '_publish_model'):
                publish = around(hook._publish_model, read_publish_target)
                patches.set(hook, '_publish_model', publish)

    def _note(self, save: SaveRecord) -> None:
        self._write(save)
        self._aftermaths.add_save(save.iteration)
        if self._warnings is not None:
            self._warnings.add_save(save)

    def add_waits(self, window: LedgerWindow) -> None:
        """Take the waits for data of an interval."""
        self._guard.run(SOURCE, self._add_waits, window)

    def _add_waits(self, window: LedgerWindow) -> None:
        for record in self._aftermaths.add_waits(window.waits_s, window.firsts):
            self._note_aftermath(record)

    def add_cut(self) -> None:
        """The loop does something else than iterations."""
        self._guard.run(SOURCE, self._add_cut)

    def _add_cut(self) -> None:
        self._aftermaths.add_cut(self._read_position()[0])

    def _note_aftermath(self, record: SaveAftermathRecord) -> None:
        self._write(record)
        if self._warnings is not None:
            self._warnings.add_aftermath(record)

    def leave(self) -> None:
        """Leave the runner as it was; a second call does nothing."""
        self._guard.clean_up(SOURCE, self._patches.close)
        if self._watch is not None:
            self._guard.clean_up(SOURCE, self._watch.close)

    def finish(self) -> None:
        """All waits are told, and the run is over."""
        self._guard.run(SOURCE, self._finish)

    def _finish(self) -> None:
        for record in self._aftermaths.finish():
            self._note_aftermath(record)
        if self._warnings is not None:
            self._warnings.finish()


def _fold_horizon(loader: LoaderSettings) -> int:
    """Batches that can be made ahead."""
    ahead = loader.prefetch_factor or DEFAULT_PREFETCH_FACTOR
    return (loader.num_workers or 0) * ahead
