"""Measures each validation in training: data waits, steps, parts and its workers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from msgspec import structs

from mmgpu_hooks.hooks.loop_timer import loading_cpu_clock
from mmgpu_hooks.hooks.part_timers import PartTimers
from mmgpu_hooks.hooks.recording import Recording
from mmgpu_hooks.hooks.sources import Sources
from mmgpu_hooks.hooks.validation_progress import ValidationProgress
from mmgpu_hooks.measure.clock import grown, monotonic_s, process_cpu_s
from mmgpu_hooks.measure.host import read_run_delay_s
from mmgpu_hooks.measure.ledger import summarize_durations
from mmgpu_hooks.measure.loader.batches import TensorCount, count_tensors
from mmgpu_hooks.measure.loader.owed import OwedBatch
from mmgpu_hooks.measure.loader.probe import LoaderProbe
from mmgpu_hooks.measure.loader.processes import WorkersMark, sum_workers_activity
from mmgpu_hooks.measure.loader.settings import read_length, read_loader_settings
from mmgpu_hooks.measure.loop_listener import LoopListener
from mmgpu_hooks.measure.memory import Objects, weigh_results
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.measure.save import Surroundings
from mmgpu_hooks.measure.validation_parts import (
    DATA_WAIT,
    REST,
    PartCall,
    ValidationParts,
    ValidationState,
)
from mmgpu_hooks.schema.recorded import ValidationRecord

VALIDATION_SOURCE = 'validation'
"""Name, in warnings and the evidence file, of the code that measures validations."""

_MEMORY_AT = 20
"""Number of validation batches after which the workers' memory is read, if due.

It takes up to 20 ms, in a long loop only."""


class _StepBegin(NamedTuple):
    """Clock time and CPU seconds of this process at the start of a validation step."""

    clock_s: float
    cpu_s: float


@dataclass
class _Validation:
    """Values measured in a running validation: at its start, and for each batch.

    A step is all between a batch in hand and the next one asked for, however the loop
    names its iterations. What follows the last batch, the metric above all, is in
    neither.
    """

    iteration: int
    train_workers: WorkersMark | None
    metrics: tuple[Any, ...]
    parts: ValidationParts
    delay_s: float | None = field(default_factory=read_run_delay_s)
    around: Surroundings = field(default_factory=Surroundings.read)
    waits_s: list[float] = field(default_factory=list)
    steps_s: list[float] = field(default_factory=list)
    """Seconds of each validation step, until the loop asks for the next batch.

    One fewer than waits while a step runs, or after an error."""
    firsts_s: list[float] = field(default_factory=list)
    wait_cpu_s: float = 0.0
    step_cpu_s: float = 0.0
    step: _StepBegin | None = None
    """Clock and CPU seconds at the running step's start; ``None`` between steps."""
    batch: TensorCount | None = None
    """Number and bytes of tensors in the first batch; ``None`` before that batch."""
    results: Objects | None = None
    """Bytes of results that metrics keep after the last batch; ``None`` earlier."""

    def end_step(self) -> None:
        """Ends timing a validation step, when the loop asks for the next batch."""
        step, self.step = self.step, None
        if step is not None:
            self.steps_s.append(monotonic_s() - step.clock_s)
            self.step_cpu_s += process_cpu_s() - step.cpu_s

    def add_wait(self, wait_s: float, cpu_s: float | None) -> None:
        """Adds the wall clock and CPU seconds of one wait for a validation batch.

        Args:
            wait_s: Its seconds.
            cpu_s: CPU inside it; ``None`` for the first wait of a pass, which starts
                workers.
        """
        if cpu_s is None:
            self.firsts_s.append(wait_s)
        else:
            self.wait_cpu_s += cpu_s
        self.waits_s.append(wait_s)

    def end_pass(self) -> None:
        """Estimates the bytes of results that metrics keep, after the last batch."""
        kept = weigh_results(self.metrics)
        if kept is not None:
            self.results = kept

    def begin_step(self, batch: Any) -> None:
        """Begins to time a validation step, when its batch has come."""
        if self.batch is None:
            self.batch = count_tensors(batch)
        # what we did ourselves is in no part
        self.step = _StepBegin(monotonic_s(), process_cpu_s())

    def add_batches(self, record: ValidationRecord) -> ValidationRecord:
        """Returns a validation's record, extended by measured seconds and bytes."""
        record = structs.replace(
            record,
            parts_s=self.parts.sum_up(record.wall_s),
            metrics_s=self.parts.sum_metrics('metric') or None,
            process_s=self.parts.sum_metrics('process') or None,
        )
        if self.batch is not None:
            record = structs.replace(
                record,
                batch_tensors=self.batch.tensors,
                batch_bytes=self.batch.bytes,
            )
        if self.results is not None:
            record = structs.replace(
                record,
                result_bytes=self.results.bytes,
                result_name=self.results.name,
            )
        steps_s = self.steps_s
        if not steps_s:
            return record
        waits_s = self.waits_s[: len(steps_s)]
        return structs.replace(
            record,
            iterations=len(steps_s),
            data_wait=summarize_durations(waits_s),
            step=summarize_durations(steps_s),
            iter=summarize_durations([*map(sum, zip(waits_s, steps_s))]),
            first_waits=len(self.firsts_s),
            first_wait_s=sum(self.firsts_s),
            data_wait_cpu_s=self.wait_cpu_s,
            process_cpu_s=self.step_cpu_s + self.wait_cpu_s,
        )


class ValidationSource(LoopListener):
    """Measures the validations inside a training; none of its methods raises.

    It hears of the iterators that this loader makes.

    Args:
        recording: The run.
        sources: Know the workers of the train loader, and the GPU.
        listener: Hears of each validation that was measured; what it raises ends this
            source.
        take_back: Called with what making the loader's iterator raised; True if it is
            to be made once more.
    """

    def __init__(
        self,
        recording: Recording,
        sources: Sources,
        listener: LoopListener,
        take_back: Callable[[Exception], bool],
    ) -> None:
        self._recording, self._sources = recording, sources
        self._listener, self._take_back = listener, take_back
        self._run = recording.guard.run
        self._patches = Patches()
        self._loop = getattr(recording.runner, '_val_loop', None)
        self.loader = getattr(self._loop, 'dataloader', None)
        """DataLoader of validation; ``None`` where there is none."""
        self._load_cpu = loading_cpu_clock(self.loader)
        self._batches = 0
        """Number of batches in this training's validations so far."""
        self._started_s = 0.0
        """Seconds to create the validation loader's iterator, counted as data wait."""
        self._now: _Validation | None = None
        self._progress: ValidationProgress | None = None
        self._longest_s: dict[PartCall, float] = {}
        """Longest duration in seconds of each timed call in validations so far."""
        self._has_ended = False
        """True once this training has finished a validation."""
        self._evaluator = getattr(self._loop, 'evaluator', None)
        self._timers = PartTimers(
            recording.runner, self._evaluator, recording.runner.world_size
        )
        self._creating: int | None = None
        """Nesting depth of the call that makes the validation iterator, or ``None``."""
        guarded = partial(self._run, VALIDATION_SOURCE)
        probe = guarded(LoaderProbe, self.loader, guarded, listener=self)
        self._probe = probe or LoaderProbe(None)
        # workers that live on from a validation before this training
        running = getattr(self.loader, '_iterator', None)
        if running is not None:
            self._run(VALIDATION_SOURCE, self._probe.watch_running, running)
            self._run(VALIDATION_SOURCE, self._follow, running)

    @property
    def last_index(self) -> Any:
        """Indices of a batch that validation loaded without workers, or ``None``."""
        return self._probe.last_index

    @property
    def metrics(self) -> tuple[Any, ...] | None:
        """Metric objects of the validation that runs; ``None`` while none runs."""
        now = self._now
        return None if now is None else now.metrics

    def read_state(self) -> ValidationState | None:
        """Returns which call the running validation is in, and its seconds by part."""
        now = self._now
        return None if now is None else now.parts.read()

    def usual_s(self, call: PartCall) -> float | None:
        """Returns the longest seconds of a validation's timed call so far, or ``None``.

        The call must have ended once.
        Between two calls it may be any hook that runs: then until a validation ended.
        """
        if call == REST and not self._has_ended:
            return None
        return self._longest_s.get(call)

    def find_owed(self) -> OwedBatch:
        """Finds the worker that must deliver the next validation batch."""
        return self._probe.find_owed()

    def list_workers(self) -> Sequence[int]:
        """Returns process ids of the validation loader's live workers; thread-safe."""
        processes = self._probe.processes
        return () if processes is None else processes.pids

    def begin(self) -> None:
        """Begins to measure a validation's data waits, steps, metrics and workers."""
        # a logged validation resets the allocator's peak, and has one of its own
        self._sources.gpu.begin_validation()
        self._run(VALIDATION_SOURCE, self._begin)

    def end(self) -> None:
        """Stops measuring the validation that ended, and writes its record."""
        self._run(VALIDATION_SOURCE, self._end)
        self._sources.gpu.end_validation()

    def _begin(self) -> None:
        # what an error cut short belongs to no iteration
        self._stop()
        # what workers that live on did since the last time
        self._probe.read()
        parts = ValidationParts(self._longest_s, monotonic_s, self._note_first)
        now = self._now = _Validation(
            self._recording.count_iterations(),
            self._sources.mark_workers(),
            tuple(getattr(self._evaluator, 'metrics', ())),
            parts,
        )
        self._timers.open(parts)
        if self._recording.writer is not None:
            self._progress = ValidationProgress(
                self._recording,
                VALIDATION_SOURCE,
                now.iteration,
                parts.read,
                lambda: len(now.waits_s),
                read_length(self.loader),
                monotonic_s,
            )

    def _note_first(self, call: PartCall) -> None:
        if self._progress is not None:
            self._progress.note_first(call)

    def _stop(self) -> None:
        """Stops timing the running validation, and recording its progress."""
        self._now = None
        self._timers.close()
        if self._progress is not None:
            self._progress.end()

    def on_iterator_begin(self) -> None:
        now = self._now
        self._creating = None if now is None else now.parts.begin(DATA_WAIT)
        self._started_s = -monotonic_s()

    def on_iterator_end(self, iterator: Any) -> None:
        self._started_s += monotonic_s()
        if self._now is not None:
            self._now.parts.end(self._creating)
        if iterator is not None:
            # it may have other workers than the last one
            self._load_cpu = loading_cpu_clock(self.loader)
            self._run(VALIDATION_SOURCE, self._follow, iterator)

    def on_iterator_failure(self, error: Exception) -> bool:
        return self._take_back(error)

    def _follow(self, iterator: Any) -> None:
        """Begins to time the waits for batches of a validation's iterator."""
        next_data, find_iterator = type(iterator)._next_data, weakref.ref(iterator)
        run = self._run

        def timed() -> Any:
            live: Any = find_iterator()
            now = self._now
            if now is None:
                return next_data(live)
            run(VALIDATION_SOURCE, self._begin_wait, now, live)
            is_first, depth = not live._num_yielded, now.parts.begin(DATA_WAIT)
            cpu_s, begin_s = self._load_cpu(), monotonic_s()
            try:
                try:
                    batch = next_data(live)
                finally:
                    now.parts.end(depth)
            except StopIteration:
                run(VALIDATION_SOURCE, now.end_pass)
                raise
            wait_s, wait_cpu_s = monotonic_s() - begin_s, self._load_cpu() - cpu_s
            run(VALIDATION_SOURCE, self._note_wait, now, is_first, wait_s, wait_cpu_s)
            run(VALIDATION_SOURCE, now.begin_step, batch)
            return batch

        self._patches.set(iterator, '_next_data', timed)

    def _begin_wait(self, now: _Validation, live: Any) -> None:
        now.end_step()
        self._probe.before_wait(live)

    def _note_wait(
        self, now: _Validation, is_first: bool, wait_s: float, wait_cpu_s: float
    ) -> None:
        if is_first:
            wait_s, self._started_s = wait_s + self._started_s, 0.0
        now.add_wait(wait_s, None if is_first else wait_cpu_s)
        self._batches += 1
        if self._batches % _MEMORY_AT == 0:
            self._probe.read_memory()

    def _end(self) -> None:
        now, after = self._now, Surroundings.read()
        self._stop()
        if now is None:
            return
        wall_s = after.clock_s - now.around.clock_s
        loader, workers = read_loader_settings(self.loader), self._probe.read()
        until = self._sources.mark_workers()
        train_cpu_s = sum_workers_activity(now.train_workers, until, wall_s).cpu_s
        used_s, own_s = None, 0.0 if loader.num_workers == 0 else None
        if workers is not None and workers.count:
            own_s = workers.cpu_s
        if own_s is not None and train_cpu_s is not None:
            used_s = own_s + train_cpu_s
        record = ValidationRecord(
            iteration=now.iteration,
            wall_s=wall_s,
            whole_cpu_s=after.own_cpu_s - now.around.own_cpu_s,
            run_delay_s=grown(now.delay_s, read_run_delay_s()),
            loader=loader,
            workers=workers,
            train_workers_cpu_s=train_cpu_s,
            other_cpu_s=after.since(now.around, used_s).other_cpu_s,
        )
        record, self._has_ended = now.add_batches(record), True
        self._recording.write(record)
        self._listener.on_validation_record(record)

    def close(self) -> None:
        """Restores the validation loader's replaced methods; may be called twice."""
        self._stop()
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.close()
        self._patches.close()
        self._probe.close()
