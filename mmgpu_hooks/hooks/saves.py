"""Measures and judges each checkpoint save, and the waits for data after it.

A save of MMEngine is: copies of the model and the optimizer, the hooks of
``before_save_checkpoint``, ``torch.save`` into a buffer, and the backend's ``put`` of
that buffer. For the time of one save the backend has a stand-in that stamps and passes
on. Calls of other threads pass unseen. Whatever a save does in another way (DeepSpeed's
own files) passes no stamp and stays in ``rest``.

MMEngine's checkpoint module looks up its backend by a name of its own: the ``put`` of
the backend that it finds there is stamped, on the instance. Each stand-in is gone
before the save returns. Each save is judged, and a slow one warned about, as it ends;
the waits after it come out of the ledger's laps, and the finding afterwards has them.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, Callable, NamedTuple

from mmengine.runner import Runner
from mmengine.runner import checkpoint as mmengine_checkpoint

from mmgpu_hooks.hooks.loop_timer import SAVE
from mmgpu_hooks.hooks.recording import Recording
from mmgpu_hooks.hooks.sources import Sources
from mmgpu_hooks.judge.saves import KEPT_REFERENCES, is_reference, judge_save
from mmgpu_hooks.measure.loader.processes import sum_workers_activity
from mmgpu_hooks.measure.loader.settings import read_loader_settings
from mmgpu_hooks.measure.loop_listener import LoopListener
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.measure.save import (
    PhaseStamp,
    Surroundings,
    ThreadTimes,
    count_history_bytes,
    read_thread_times,
    split_phases,
)
from mmgpu_hooks.model.workload import DEFAULT_PREFETCH
from mmgpu_hooks.schema.recorded import AfterSaveRecord, LoaderSettings, SaveRecord
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show.words import say

SAVES_SOURCE = 'checkpoint saves'
"""Name, in warnings and the evidence file, of the code that times checkpoint saves."""


class _Save:
    """Checkpoint save in progress, timed by temporarily patched MMEngine functions.

    Args:
        recording: The run; a stamp that fails is not seen by the save.
        sources: Know the workers of the train loader.
    """

    def __init__(self, recording: Recording, sources: Sources) -> None:
        self.iteration = recording.count_iterations()
        self.workers = sources.mark_workers()
        self.around = Surroundings.read()
        self.path: str | None = None
        self.bytes: int | None = None
        """Size in bytes of the checkpoint that is written; ``None`` until known."""
        self.backend: str | None = None
        self.message_hub_bytes = count_history_bytes(recording.runner.message_hub)
        self.stamps = [PhaseStamp('rest', read_thread_times())]
        self._guard = recording.guard
        self._thread = threading.get_ident()
        self._patches = Patches()
        find_backend = mmengine_checkpoint.get_file_backend

        def get_file_backend(*args: Any, **kwargs: Any) -> Any:
            backend = find_backend(*args, **kwargs)
            self._note(self._begin_serialise, backend)
            return backend

        self._patches.set(mmengine_checkpoint, 'get_file_backend', get_file_backend)

    def end(self) -> ThreadTimes:
        """Restores patched functions; returns the saving thread's clock readings."""
        self._thread = -1
        self._patches.close()
        return read_thread_times()

    def _note(self, function: Callable[..., None], *args: Any) -> None:
        """Calls a measuring function, but only in the thread that makes the save."""
        if threading.get_ident() == self._thread:
            self._guard.run(SAVES_SOURCE, function, *args)

    def _stamp(self, phase: str) -> None:
        self.stamps.append(PhaseStamp(phase, read_thread_times()))

    def _begin_serialise(self, backend: Any) -> None:
        self.backend = type(backend).__name__
        self._stamp('serialise')
        write = backend.put

        def put(*args: Any, **kwargs: Any) -> Any:
            self._note(self._begin_write, *args, *kwargs.values())
            result = write(*args, **kwargs)
            self._note(self._stamp, 'rest')
            return result

        self._patches.set(backend, 'put', put)

    def _begin_write(self, *given: Any) -> None:
        self._stamp('write')
        for value in given:
            if isinstance(value, (bytes, bytearray, memoryview)):
                self.bytes = (self.bytes or 0) + len(value)
            elif isinstance(value, (str, os.PathLike)):
                self.path = os.fspath(value)


_USUAL_WAITS = 256
"""Number of most recent data waits whose mean counts as the usual wait.

A run may change its rate."""


class _Interruption(NamedTuple):
    """Event between two iterations, such as a checkpoint save or a validation."""

    iteration: int
    """Number of training iterations done before the interruption."""
    is_save: bool


class WaitsAfterSaves:
    """Compares the data waits right after each checkpoint save with usual ones.

    Args:
        horizon: Batches that can be made ahead: ``prefetch_factor`` times workers.
            With 0 nothing is made during a save.
        start: Iterations done before the first wait.
        round_of: Waits that a usual one must at least rest on. Workers that are short
            of cores end their batches together, so one wait in as many as there are
            workers holds all of it, and fewer waits may miss it.
        write: Gets what is known.
    """

    def __init__(
        self,
        horizon: int,
        start: int,
        round_of: int,
        write: Callable[[AfterSaveRecord], Any],
    ) -> None:
        self._horizon = horizon
        self._round_of = min(max(round_of, 1), _USUAL_WAITS)
        self._done = start
        self._usual: deque[float] = deque(maxlen=_USUAL_WAITS)
        self._events: deque[_Interruption] = deque()
        self._saved_at: int | None = None
        self._waits: list[float] = []
        self._write = write

    def add(self, iteration: int, is_save: bool) -> None:
        """Notes a checkpoint save or validation, and the iteration it came after.

        Args:
            iteration: Iterations done by then.
            is_save: Whether it was a save. What else comes ends what follows a save.
        """
        event = _Interruption(iteration, is_save)
        if self._horizon and event not in self._events:
            self._events.append(event)

    def add_waits(self, waits: Sequence[float], firsts: Collection[int] = ()) -> None:
        """Adds seconds of further data waits, to the usual ones or those after a save.

        Args:
            waits: Seconds, one per iteration.
            firsts: Positions of those that began an epoch or started workers: they are
                neither usual nor after a save.
        """
        for position, wait_s in enumerate(waits):
            self._heed_events()
            self._done += 1
            if position in firsts:
                self._close()
            elif self._saved_at is None:
                self._usual.append(wait_s)
            else:
                self._waits.append(wait_s)
                if len(self._waits) >= self._horizon:
                    self._close()

    def _heed_events(self) -> None:
        while self._events and self._events[0].iteration <= self._done:
            event = self._events.popleft()
            self._close()
            if event.is_save:
                self._saved_at = event.iteration

    def _close(self) -> None:
        if self._saved_at is not None:
            usual = self._usual
            is_usual_known = len(usual) >= self._round_of
            self._write(
                AfterSaveRecord(
                    iteration=self._saved_at,
                    iterations=len(self._waits),
                    waits_s=sum(self._waits),
                    usual_wait_s=sum(usual) / len(usual) if is_usual_known else None,
                )
            )
        self._saved_at, self._waits = None, []

    def finish(self) -> None:
        """Writes the record of data waits after the last save, at training's end."""
        self._heed_events()
        self._close()


class SaveSource:
    """Measures each checkpoint save that a Runner makes in the training thread.

    A save in another thread does not hold the training up: it is left alone. Of saves
    inside a save the outer one counts. What a save raises passes through. A save costs
    1 ms more than without, measured with 16 workers on a 2-core VM.

    Args:
        recording: The run, whose ledger books saves.
        sources: Know the workers of the train loader, the host and the GPU.
        listener: Hears of each save; what it raises ends this source.
    """

    def __init__(
        self, recording: Recording, sources: Sources, listener: LoopListener
    ) -> None:
        self._recording, self._sources = recording, sources
        self._listener = listener
        self._guard, self._runner = recording.guard, recording.runner
        self._patches = Patches()
        loader = self._runner.train_dataloader
        found = self._guard.run(SAVES_SOURCE, read_loader_settings, loader)
        self._loader = found or LoaderSettings()
        workers = self._loader.num_workers or 0
        ahead = workers * (self._loader.prefetch_factor or DEFAULT_PREFETCH)
        self.waits = WaitsAfterSaves(
            ahead, recording.iteration, workers, recording.write
        )
        self.count = 0
        """Number of checkpoint saves in this training so far."""
        self._earlier: deque[SaveRecord] = deque(maxlen=KEPT_REFERENCES)
        self._warned: set[str] = set()
        self._thread = threading.get_ident()

    def open(self) -> None:
        """Begins to measure saves: replaces the Runner's ``save_checkpoint``."""
        recording, original = self._recording, self._runner.save_checkpoint
        ledger, hooks = recording.ledger, recording.timer.hooks
        # of a Runner, the first rank alone saves; a FlexibleRunner's ranks all do
        counts = not self._runner.rank or not isinstance(self._runner, Runner)

        def save(*args: Any, **kwargs: Any) -> Any:
            # a wrapper that somebody put around ours keeps calling it
            is_ours = hooks.is_open and threading.get_ident() == self._thread
            if not is_ours or ledger.running[-1] is SAVE:
                return original(*args, **kwargs)
            begun = self._guard.run(SAVES_SOURCE, _Save, recording, self._sources)
            ledger.push(SAVE)
            error: str | None = None
            try:
                return original(*args, **kwargs)
            except BaseException as raised:
                error = type(raised).__name__
                raise
            finally:
                ledger.pop(SAVE)
                self.count += counts
                self._sources.gpu.interrupt()
                if begun is not None:
                    end = begun.end()
                    self._guard.run(SAVES_SOURCE, self._end, begun, end, error)

        self._patches.set(self._runner, 'save_checkpoint', save)

    def _end(self, begun: _Save, end: ThreadTimes, error: str | None) -> None:
        split = split_phases(begun.stamps, end)
        whole, path = split.whole, begun.path
        after = self._sources.mark_workers()
        workers = sum_workers_activity(begun.workers, after, whole.wall_s)
        around = Surroundings.read().since(begun.around, workers.cpu_s)
        # of most runners' ranks the first alone saves
        if self._runner.rank and begun.backend is None:
            return
        save = SaveRecord(
            iteration=begun.iteration,
            name=os.path.basename(path.rstrip('/')) if path else None,
            phases=split.phases,
            wall_s=whole.wall_s,
            cpu_s=whole.cpu_s,
            run_delay_s=whole.run_delay_s,
            blocked_s=whole.blocked_s,
            bytes=begun.bytes if error is None else None,
            message_hub_bytes=begun.message_hub_bytes if error is None else None,
            backend=begun.backend,
            workers=workers.count,
            workers_busy=workers.busy,
            workers_cpu_s=workers.cpu_s,
            other_cpu_s=around.other_cpu_s,
            memory_pressure_pct=around.memory_pressure_pct,
            major_faults=around.major_faults,
            error=error,
        )
        self._recording.write(save)
        self._listener.on_save_record(save)
        self.waits.add(save.iteration, is_save=True)
        self._warn_of(save)

    def _warn_of(self, save: SaveRecord) -> None:
        """Logs a warning if a checkpoint save was slow, once for each proven cause."""
        host = self._sources.host
        judged = judge_save(save, self._earlier, None, host, self._loader)
        if is_reference(save):
            self._earlier.append(save)
        # never a warning without proof: a slow save of no proven cause is a finding
        cause = judged.cause if judged.is_slow else None
        if cause is not None and cause not in self._warned:
            self._warned.add(cause)
            said = phrase('GPUEfficiencyHook: {sentence}', judged)
            self._runner.logger.warning(say(said))

    def leave(self) -> None:
        """Restores the Runner's own ``save_checkpoint``; a second call does nothing."""
        self._patches.close()
