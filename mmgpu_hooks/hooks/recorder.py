"""Records a training in its evidence file: its time by part and all measured values."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from msgspec import structs

from mmgpu_hooks.hooks.end_source import END_SOURCE, EndSource
from mmgpu_hooks.hooks.figure_source import IntervalEnd
from mmgpu_hooks.hooks.log_schedule import LogSchedule
from mmgpu_hooks.hooks.loop_timer import LoopTimer, open_ledger
from mmgpu_hooks.hooks.memory_source import MEMORY_SOURCE, MemorySource
from mmgpu_hooks.hooks.recording import Guard, Recording
from mmgpu_hooks.hooks.resume_source import ResumeProgress
from mmgpu_hooks.hooks.run_description import describe_training
from mmgpu_hooks.hooks.run_end import (
    RaisedError,
    describe_raised,
    find_without_gradient,
    list_trained,
)
from mmgpu_hooks.hooks.saves import SAVES_SOURCE, SaveSource
from mmgpu_hooks.hooks.scalars import ScalarPublisher
from mmgpu_hooks.hooks.sources import UNPROVEN, GpuSources, Sources, read_device
from mmgpu_hooks.hooks.start_source import ACCOUNT_SOURCE, StartSource
from mmgpu_hooks.hooks.stuck_source import WATCHDOG_SOURCE, StuckSource
from mmgpu_hooks.hooks.trackers import TRACKERS_SOURCE, write_summary_fields
from mmgpu_hooks.hooks.tuner import TUNER_SOURCE, Tuner
from mmgpu_hooks.hooks.validation import VALIDATION_SOURCE, ValidationSource
from mmgpu_hooks.hooks.validation_tuner import (
    VALIDATION_TUNER_SOURCE,
    ValidationTuner,
)
from mmgpu_hooks.hooks.verdict_source import VERDICT_SOURCE, VerdictSource
from mmgpu_hooks.measure.clock import monotonic_s, wall_unix_s
from mmgpu_hooks.measure.ledger import LAP, LedgerWindow, summarize_durations
from mmgpu_hooks.measure.loader.probe import LoaderProbe
from mmgpu_hooks.measure.loader.switch import LoaderSwitch
from mmgpu_hooks.measure.loop_listener import LoopListener
from mmgpu_hooks.measure.now import read_oom_kills
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.schema.recorded import (
    Ending,
    EndRecord,
    IntervalRecord,
    SaveRecord,
    SourceOffRecord,
    UnknownRecord,
    ValidationRecord,
    VerdictRecord,
)
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show.words import say


class Recorder(LoopListener):
    """Records one training in an evidence file, from its first line to its last.

    What the loop tells meanwhile arrives at its ``on_...`` methods: what is done at the
    end of an iteration is :meth:`on_iteration_end`.

    Args:
        runner: The runner, about to enter its train loop.
        hook: The hook that records, with the arguments that users gave it.
        guard: Switches off what fails.
        probe: Of the train loader, where one watches it already.
        start: Has followed the start so far.
    """

    def __init__(
        self,
        runner: Any,
        hook: Any,
        guard: Guard,
        probe: LoaderProbe | None,
        start: StartSource | None = None,
    ) -> None:
        run = guard.run
        self._starting = start
        self._runner, self._hook, self._guard = runner, hook, guard
        self._schedule = LogSchedule(runner, hook.interval)
        self._publisher = ScalarPublisher(runner.message_hub, hook.scalar_names)
        self._patches = Patches()
        self._due_at = 0
        """Batch index at which a log line or interval end may next be due."""
        self._start = runner.iter
        # hooks may freeze some later
        self._trained = run('exception', list_trained, runner.model) or ()
        self._saves = 0
        """Number of checkpoint saves up to the last log interval's record."""
        self._memory_cgroup: str | None = None
        self._stuck: StuckSource | None = None
        self._verdicts: VerdictSource | None = None
        self._ending: EndSource | None = None
        self._tuner: Tuner | None = None
        self._validation_tuner: ValidationTuner | None = None
        self.end: EndRecord | None = None
        """Record of training's end, kept even if it could not be written to file."""
        device = run('device', read_device, runner) or 'cpu'
        self._ledger = open_ledger(runner, hook, device)
        self._build_s = max(self._ledger.stamped_s - hook.built_s, 0.0)
        self._ledger.push(hook)
        gpu = GpuSources(guard, hook.gpu_sample_period_s, device)
        self._timer = LoopTimer(runner, self._ledger, self, gpu.around_steps)
        self._recording = Recording(runner, hook, guard, self._timer)
        self._sources = Sources(self._recording, gpu, device, probe, self)
        self._known = dict(self._sources.unknown)
        self._saving = SaveSource(self._recording, self._sources, self)
        self._validation = ValidationSource(
            self._recording, self._sources, self, self._take_back_validation
        )
        self._memory: MemorySource | None = None
        self._resuming = ResumeProgress(runner.logger, self._timer.waits.skipped)

    def begin(self) -> None:
        """Writes the evidence file's first record, and starts timing the train loop."""
        runner, sources, run = self._runner, self._sources, self._guard.run
        record = run(
            'run record',
            describe_training,
            self._recording,
            sources,
            build_s=self._build_s,
            interval=self._schedule.interval,
            unknown=self._known,
        )
        if sources.gpu.is_used:
            runner.logger.info(say(UNPROVEN))
        if record is not None:
            self._memory_cgroup = record.memory_cgroup
            run('evidence', self._recording.open, record)
        if record is not None and is_main_process():
            self._ending = run(END_SOURCE, EndSource, self._recording, record)
        run('ledger', self._timer.open)
        if 'ledger' in self._guard.off:
            self._timer.stop()
        run(SAVES_SOURCE, self._saving.open)
        self._patches.set(self._hook, 'after_train_iter', self._make_after_train_iter())
        if self._recording.writer is not None:
            self._memory = run(
                MEMORY_SOURCE, MemorySource, self._recording, sources, self._validation
            )
        if self._hook.stuck_after_s:
            self._stuck = run(
                WATCHDOG_SOURCE,
                StuckSource,
                self._recording,
                sources,
                self._validation,
            )
        if self._recording.writer is not None and is_main_process():
            self._verdicts = run(
                VERDICT_SOURCE, VerdictSource, self._recording, self.write_verdict
            )
        if self._hook.tune:
            run(TUNER_SOURCE, self._open_tuner)
            run(VALIDATION_TUNER_SOURCE, self._open_validation_tuner)
        self._ledger.pop(self._hook)

    def _open_tuner(self) -> None:
        recording, runner = self._recording, self._runner
        start = self._hook.tuned_start
        if start is not None:
            switch = start.switch
        else:
            switch = LoaderSwitch(
                runner.train_dataloader,
                ranks=runner.world_size,
                book_teardown=self.book_teardown,
            )
        self._tuner = Tuner(
            recording,
            self._sources.loader,
            switch,
            self._shorten_intervals,
            recording.write,
        )
        self._tuner.begin(start.config if start else None)

    def _open_validation_tuner(self) -> None:
        recording, validation = self._recording, self._validation
        # never asked for its length: some loaders draw samples to find it
        has_loader = validation.loader is not None
        if has_loader and recording.writer is not None and is_main_process():
            self._validation_tuner = ValidationTuner(
                recording, validation, recording.write, self.book_teardown
            )

    @contextlib.contextmanager
    def book_teardown(self) -> Iterator[None]:
        """Context whose time is recorded as spent on ending a loader's old workers."""
        self._guard.run('ledger', self._ledger.push, 'teardown')
        try:
            yield
        finally:
            self._guard.run('ledger', self._ledger.pop, 'teardown')

    def _shorten_intervals(self, most: int | None) -> None:
        self._schedule.cut_at(most)
        # what was found to be due later may be due now
        self._due_at = 0

    def _make_after_train_iter(self) -> Callable[..., None]:
        """Makes the function that replaces ``after_train_iter`` of the recording hook.

        It is an attribute of the hook itself, so a subclass of the user's that has an
        ``after_train_iter`` of its own is recorded whether it calls ``super()`` or not.
        That is called as the Runner would call it, and so is an ``_after_iter``, which
        MMEngine's ``after_train_iter`` calls.
        """
        ledger, hooks, run = self._ledger, self._timer.hooks, self._guard.run
        stamp, clock = ledger.stamps.extend, ledger.clock
        own = self._hook.after_train_iter
        is_mmengines = (
            getattr(own, '__func__', None) is Hook.after_train_iter
            and getattr(self._hook._after_iter, '__func__', None) is Hook._after_iter
        )
        subclass = None if is_mmengines else own

        def after_train_iter(
            runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
        ) -> None:
            if hooks.is_open:
                stamp((clock(), LAP))
                if batch_idx >= self._due_at:
                    run(
                        'interval',
                        self.on_iteration_end,
                        batch_idx,
                        data_batch,
                        outputs,
                    )
            if subclass is not None:
                subclass(
                    runner, batch_idx=batch_idx, data_batch=data_batch, outputs=outputs
                )

        return after_train_iter

    def on_iteration_end(self, batch_idx: int, batch: Any, outputs: Any) -> None:
        """Writes the records and publishes the scalars due after an iteration.

        LoggerHook comes right after: it prints the scalars that were published here.
        """
        run, ledger = self._guard.run, self._ledger
        ledger.sum_up()
        self._record_start()
        due = self._schedule.is_due(batch_idx, ledger.iterations)
        if due.is_logged:
            # before LoggerHook resets the allocator's peak
            self._sources.gpu.observe_memory()
        if due.is_end:
            record = self._record_interval(ledger.take(), batch, outputs)
            if record is not None:
                run('scalars', self._publisher.add, record)
                run(END_SOURCE, self._forecast_end, record)
        if due.is_logged:
            run('scalars', self._publisher.publish)
        self._due_at = self._schedule.find_next(batch_idx, ledger.iterations)

    def _record_start(self) -> None:
        """Writes the record of training's start, after the first iteration."""
        starting, self._starting = self._starting, None
        if starting is not None:
            self._guard.run(ACCOUNT_SOURCE, self._write_start, starting)

    def _write_start(self, starting: StartSource) -> None:
        parts_s, before_s = self._ledger.read_parts(), self._hook.before_hook_s
        self._recording.write(starting.summarize(before_s, parts_s))

    def _record_interval(
        self, window: LedgerWindow, batch: Any = None, outputs: Any = None
    ) -> IntervalRecord | None:
        """Writes a log interval's record; notifies watchdog, hourly verdict and tuner.

        Returns:
            ``None`` where no iteration has ended in it.
        """
        record = self._sum_up(window)
        if record is None:
            return None
        interval = IntervalEnd(record.iteration, record.iterations, batch, outputs)
        record = self._sources.complete(record, interval)
        self._recording.write(record)
        if self._stuck is not None:
            self._stuck.note(record)
        self._write_once_known()
        if self._verdicts is not None:
            self._guard.run(VERDICT_SOURCE, self._verdicts.follow)
        if self._tuner is not None:
            self._tuner.note_batch(record.batch_bytes)
            self._guard.run(TUNER_SOURCE, self._tuner.follow, record)
        if self._validation_tuner is not None:
            self._guard.run(VALIDATION_TUNER_SOURCE, self._validation_tuner.follow)
        return record

    def _sum_up(self, window: LedgerWindow) -> IntervalRecord | None:
        """Makes a log interval's record of times; other values are added later.

        Returns:
            ``None`` where no iteration has ended in it.
        """
        count, first_s = len(window.iters_s), window.waits_s[window.firsts].sum()
        recording = self._recording
        recording.add_recorded(count)
        waits_s = window.waits_s.tolist()
        self._guard.run(
            SAVES_SOURCE, self._saving.waits.add_waits, waits_s, window.firsts
        )
        saves, self._saves = self._saving.count - self._saves, self._saving.count
        if not count:
            return None
        return IntervalRecord(
            iteration=recording.recorded,
            epoch=recording.epoch,
            iterations=count,
            elapsed_s=self._ledger.elapsed_s,
            duration_s=math.fsum(window.parts_s.values()),
            data_wait=summarize_durations(window.waits_s),
            step=summarize_durations(window.steps_s),
            iter=summarize_durations(window.iters_s),
            ledger_s=window.parts_s,
            hooks_s=window.hooks_s,
            data_wait_cpu_s=window.wait_cpu_s,
            first_waits=len(window.firsts),
            first_wait_s=float(first_s),
            saves=saves,
        )

    def _forecast_end(self, record: IntervalRecord) -> None:
        if self._ending is None:
            return
        self._ending.add_interval(record)
        if 'hours_left' in self._hook.scalar_names:
            self._publisher.note('hours_left', self._ending.hours_left)

    def begin_epoch(self) -> None:
        """Begins an epoch: reads its length, and makes any deferred loader change."""
        self._due_at = 0
        self._recording.begin_epoch()
        self._schedule.begin_epoch()
        self._sources.gpu.interrupt()
        if self._tuner is not None:
            self._guard.run(TUNER_SOURCE, self._tuner.begin_epoch)

    def book_resume(self, advance: Callable[[], int]) -> None:
        """Calls a function that skips a resumed training's batches; records its time.

        Args:
            advance: Returns how many are still to be loaded, and thrown away.
        """
        self._guard.run('ledger', self._ledger.push, 'resume')
        began_s, count = monotonic_s(), self._timer.waits.skipped
        try:
            left = advance()
            self._timer.waits.expect_skipped(left)
        finally:
            self._guard.run('ledger', self._ledger.pop, 'resume')
        said = phrase(
            'GPUEfficiencyHook: {skipped} of {batches} were skipped in {passed_s:sum}, '
            'without loading them.',
            skipped=count - left,
            batches=count,
            passed_s=monotonic_s() - began_s,
        )
        self._runner.logger.info(say(said))

    def on_iterator_begin(self) -> None:
        self._sources.begin_iterator()

    def on_iterator_end(self, iterator: Any) -> None:
        self._sources.end_iterator(iterator)

    def on_iterator_failure(self, error: Exception) -> bool:
        if self._tuner is not None:
            return self._tuner.take_back(error)
        start = self._hook.tuned_start
        return start is not None and bool(start.switch.take_back(error))

    def _take_back_validation(self, error: Exception) -> bool:
        tuner = self._validation_tuner
        return tuner is not None and tuner.take_back(error)

    def on_last_wait(self, iterator: Any) -> None:
        self._sources.loader.before_wait(iterator)

    def on_skipped_wait(self, left: int) -> None:
        self._guard.run('resume', self._resuming.note, left)

    def on_validation_begin(self) -> None:
        iteration = self._recording.count_iterations()
        self._guard.run(SAVES_SOURCE, self._saving.waits.add, iteration, is_save=False)
        tuner = self._validation_tuner
        if tuner is not None:
            self._guard.run(VALIDATION_TUNER_SOURCE, tuner.begin_validation)
        self._validation.begin()

    def on_validation_end(self) -> None:
        self._validation.end()

    def on_validation_record(self, record: ValidationRecord) -> None:
        if self._ending is not None:
            self._guard.run(END_SOURCE, self._ending.add_validation, record)
        tuner = self._validation_tuner
        if tuner is not None:
            self._guard.run(VALIDATION_TUNER_SOURCE, tuner.note, record)

    def on_save_record(self, record: SaveRecord) -> None:
        if self._ending is not None:
            self._guard.run(END_SOURCE, self._ending.add_save, record)

    def _write_once_known(self) -> None:
        for source, reason in self._sources.unknown.items():
            if source not in self._known:
                self._known[source] = reason
                self._recording.write_reason(UnknownRecord, source, reason)

    def note_source_off(self, source: str, reason: str) -> None:
        """Stops using a source of measured values that failed, and records why."""
        if source in ('ledger', 'interval'):
            # stamps that are not taken must not grow
            self._timer.stop()
        if source == VALIDATION_SOURCE:
            self._guard.clean_up(source, self._validation.close)
        if source == TUNER_SOURCE and self._tuner is not None:
            self._schedule.cut_at(None)
            self._guard.clean_up(source, self._tuner.close)
        if source == VALIDATION_TUNER_SOURCE and self._validation_tuner is not None:
            self._guard.clean_up(source, self._validation_tuner.close)
        if source in ('ledger', 'interval', 'scalars'):
            # nothing else takes the last values off LoggerHook's lines
            self._publisher.clear()
        self._recording.write_reason(SourceOffRecord, source, reason)

    def finish(self, error: BaseException | None) -> Path | None:
        """Ends all measuring; the evidence file stays open for a verdict.

        Args:
            error: The exception that ended training, if one did.

        Returns:
            The evidence file, for the summary; ``None`` when there is none.
        """
        run, clean_up, window = self._guard.run, self._guard.clean_up, None
        verdicts, self._verdicts = self._verdicts, None
        if verdicts is not None:
            clean_up(VERDICT_SOURCE, verdicts.close)
        if self._tuner is not None:
            if error is None:
                run(TUNER_SOURCE, self._tuner.note_end)
            clean_up(TUNER_SOURCE, self._tuner.close)
        if self._validation_tuner is not None:
            if error is None:
                run(VALIDATION_TUNER_SOURCE, self._validation_tuner.note_end)
            clean_up(VALIDATION_TUNER_SOURCE, self._validation_tuner.close)
        if self._stuck is not None:
            clean_up(WATCHDOG_SOURCE, self._stuck.close, error is None)
        if self._memory is not None:
            clean_up(MEMORY_SOURCE, self._memory.close)
        # a validation that failed has replaced save_checkpoint once more
        clean_up(VALIDATION_SOURCE, self._validation.close)
        clean_up(SAVES_SOURCE, self._saving.leave)
        # read once: what we ourselves do from here on is no part of training
        if not {'ledger', 'interval'} & self._guard.off.keys():
            self._ledger.note(self._ledger.running[-1])
            window = run('ledger', self._ledger.take)
        clean_up('ledger', self._timer.close)
        clean_up('ledger', self._patches.close)
        if window is not None:
            run('last interval', self._record_interval, window)
        run(SAVES_SOURCE, self._saving.waits.finish)
        if error is not None:
            # a card that was lost meanwhile is the reason
            self._sources.gpu.read(IntervalEnd(self._recording.recorded))
        run('end', self._write_once_known)
        self.end = run('end', self._end, window is not None, error)
        if self.end is not None:
            self._recording.write(self.end)
        self._sources.close()
        writer = self._recording.writer
        return None if writer is None else writer.path

    def write_verdict(self, verdict: VerdictRecord) -> None:
        """Appends a verdict's record to the evidence file."""
        stamped = structs.replace(verdict, written_unix_s=wall_unix_s())
        self._recording.write(stamped)

    def show_verdict(self, verdict: VerdictRecord) -> None:
        """Writes a verdict into W&B and MLflow, if the run logs to either."""
        visualizer = self._runner.visualizer
        self._guard.run(TRACKERS_SOURCE, write_summary_fields, visualizer, verdict)

    def close(self) -> None:
        """Closes the evidence file; a second call does nothing."""
        self._recording.close()

    def _end(self, is_timed: bool, error: BaseException | None) -> EndRecord:
        # the totals of a ledger that was switched off would be wrong
        totals = self._ledger.totals if is_timed else LedgerWindow()
        if is_timed:
            totals.parts_s['startup'] += self._build_s
        raised = RaisedError()
        status: Ending = 'completed'
        if error is not None:
            is_stop = isinstance(error, (KeyboardInterrupt, SystemExit))
            status = 'interrupted' if is_stop else 'failed'
            # a user's exception may raise when it is read
            described = self._guard.run('exception', describe_raised, error)
            raised = described or RaisedError(type(error).__name__)
        return EndRecord(
            status=status,
            iterations=self._recording.recorded - self._start,
            ledger_s=totals.parts_s,
            hooks_s=totals.hooks_s,
            duration_s=self._ledger.elapsed_s + self._build_s if is_timed else None,
            saves=self._saving.count,
            oom_kills=read_oom_kills(self._memory_cgroup),
            error=raised.error,
            traceback=raised.traceback,
            sample=raised.sample,
            without_gradient=self._guard.run(
                'exception',
                find_without_gradient,
                self._runner.model,
                self._trained,
                error,
            )
            or (),
            spared=self._hook.spared or {},
        )
