"""One run's recording: the ledger, the sources and the evidence file together."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable, NamedTuple

from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook, Hook, LoggerHook
from mmengine.model import is_model_wrapper
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop
from msgspec import structs

from mmgpu_hooks.config.hook_arguments import is_our_hook
from mmgpu_hooks.hooks.end_source import END_SOURCE, EndSource
from mmgpu_hooks.hooks.figure_source import IntervalEnd
from mmgpu_hooks.hooks.loop_timer import LoopTimer, open_ledger
from mmgpu_hooks.hooks.memory_source import MEMORY_SOURCE, MemorySource
from mmgpu_hooks.hooks.recording import Guard, Recording
from mmgpu_hooks.hooks.resume_source import ResumeProgress
from mmgpu_hooks.hooks.saves import SAVES_SOURCE, SaveSource
from mmgpu_hooks.hooks.scalars import ScalarPublisher
from mmgpu_hooks.hooks.sources import UNPROVEN, GpuSources, Sources, read_device
from mmgpu_hooks.hooks.start_source import ACCOUNT_SOURCE, StartSource
from mmgpu_hooks.hooks.stuck_source import WATCHDOG_SOURCE, StuckSource
from mmgpu_hooks.hooks.tuner import TUNER_SOURCE, Tuner
from mmgpu_hooks.hooks.validation import VALIDATION_SOURCE, ValidationSource
from mmgpu_hooks.hooks.verdict_source import VERDICT_SOURCE, VerdictSource
from mmgpu_hooks.measure.clock import monotonic_s, wall_unix_s
from mmgpu_hooks.measure.flight_recorder import list_dump_prefixes
from mmgpu_hooks.measure.histories import HistoryMeter
from mmgpu_hooks.measure.job_end import read_end_unix_s
from mmgpu_hooks.measure.ledger import LAP, LedgerWindow, summarize_durations
from mmgpu_hooks.measure.loader.probe import LoaderProbe
from mmgpu_hooks.measure.loader.settings import read_length, read_loader_settings
from mmgpu_hooks.measure.loader.switch import LoaderSwitch
from mmgpu_hooks.measure.loop_listener import LoopListener
from mmgpu_hooks.measure.memory import weigh_objects
from mmgpu_hooks.measure.now import read_oom_kills, read_process_identity
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.measure.slurm import parse_job_id
from mmgpu_hooks.optimize.counts import count_overhead
from mmgpu_hooks.schema.recorded import (
    Ending,
    EndRecord,
    HistoryCost,
    IntervalRecord,
    LoaderSettings,
    RunRecord,
    SaveRecord,
    SourceOffRecord,
    TrainingPlan,
    UnknownRecord,
    ValidationRecord,
    ValInterval,
    VerdictRecord,
)
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show.words import say
from mmgpu_hooks.version import __version__

DEFAULT_INTERVAL = 10
"""LoggerHook's own default, for runs that have none."""


OVERHEAD_SOURCE = 'host overhead'

MOST_ITERATIONS = 10_000
"""An interval is cut here: each of its iterations is kept until it ends."""

MOST_SKIPPED = 64
"""Iterations; what is kept of them until the next sum stays small."""

_LETTERS, _MOST_LINES = 300, 60
"""Of a traceback."""
_FETCH = re.compile(r'torch[/\\]utils[/\\]data[/\\]_utils[/\\]fetch\.py$')


class Due(NamedTuple):
    """What ends with an iteration."""

    is_logged: bool
    """True if LoggerHook prints a line for it."""
    is_end: bool
    """True if an interval ends."""


class LogSchedule:
    """Says when LoggerHook prints a line and when an interval ends, for one runner.

    Args:
        runner: The runner that trains.
        interval: Iterations per interval; ``None`` follows LoggerHook.
    """

    def __init__(self, runner: Any, interval: int | None) -> None:
        loggers = [hook for hook in runner.hooks if isinstance(hook, LoggerHook)]
        self._logger: Any | None = loggers[0] if loggers else None
        self._own_interval = interval
        self._runner = runner
        self._batches: int | None = None
        self._most = MOST_ITERATIONS
        self.begin_epoch()
        logged = self._logger.interval if self._logger else DEFAULT_INTERVAL
        self.interval = logged if interval is None else interval

    def begin_epoch(self) -> None:
        """Read the length of the epoch; asking for it each time costs more."""
        self._batches = read_length(self._runner.train_dataloader)

    def cut_at(self, most: int | None) -> None:
        """Cut intervals from now on, whatever their length is.

        Args:
            most: Iterations at which one is cut; ``None`` is `MOST_ITERATIONS`.
        """
        self._most = MOST_ITERATIONS if most is None else most

    def is_due(self, batch_idx: int, iterations: int) -> Due:
        """Say what ends with an iteration.

        Args:
            batch_idx: Of the iteration, in its epoch.
            iterations: Iterations since the last interval ended.
        """
        logger = self._logger
        is_logged = False
        if logger is not None:
            done, interval = batch_idx + 1, logger.interval
            is_logged = done % interval == 0 or (
                done == self._batches and (not logger.ignore_last or done <= interval)
            )
            if self._own_interval is None:
                return Due(is_logged, is_logged or iterations >= self._most)
        return Due(is_logged, iterations >= min(self.interval, self._most))

    def find_next(self, batch_idx: int, iterations: int) -> int:
        """The next iteration at which something may end, by its number in the epoch.

        Args:
            batch_idx: Of the iteration that :meth:`is_due` was called for.
            iterations: Iterations since the last interval ended.
        """
        ahead = [MOST_SKIPPED, (self._batches or 0) - 1 - batch_idx]
        if self._logger is not None:
            line = self._logger.interval
            ahead.append(line - (batch_idx + 1) % line)
        if self._logger is None or self._own_interval is not None:
            ahead.append(self.interval - iterations)
        ahead.append(self._most - iterations)
        return batch_idx + min(count for count in ahead if count > 0)


class Recorder(LoopListener):
    """Records one call of a train loop, from its first line to its last.

    What the loop tells meanwhile arrives at its ``on_...`` methods.

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
        """Iteration of the epoch before which nothing is due."""
        self._start = runner.iter
        self._saves = 0
        """Saves that are in records."""
        self._memory_cgroup: str | None = None
        self._stuck: StuckSource | None = None
        self._verdicts: VerdictSource | None = None
        self._histories = HistoryMeter(runner.message_hub.log_scalars)
        self._is_read_counted = False
        self._ending: EndSource | None = None
        self._tuner: Tuner | None = None
        self.end: EndRecord | None = None
        """Once it is over, also where there was no room to write it."""
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
        self._validation = ValidationSource(self._recording, self._sources, self)
        self._memory: MemorySource | None = None
        self._resuming = ResumeProgress(runner.logger, self._timer.waits.skipped)

    def begin(self) -> None:
        """Write the run record and time the loop."""
        runner, sources, run = self._runner, self._sources, self._guard.run
        record = run('run record', self._describe_run)
        if sources.gpu.is_used:
            runner.logger.info(f'GPUEfficiencyHook: {UNPROVEN}')
        if record is not None:
            self._memory_cgroup = record.memory_cgroup
            run('evidence', self._recording.open, record)
        if record is not None and is_main_process():
            self._ending = run(END_SOURCE, EndSource, self._recording, record)
        run('ledger', self._timer.open)
        if 'ledger' in self._guard.off:
            self._timer.stop()
        run(SAVES_SOURCE, self._saving.open)
        self._patches.set(self._hook, 'after_train_iter', self._make_end())
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

    @contextlib.contextmanager
    def book_teardown(self) -> Iterator[None]:
        """Book the time in which workers end that the tuner has replaced."""
        self._guard.run('ledger', self._ledger.push, 'teardown')
        try:
            yield
        finally:
            self._guard.run('ledger', self._ledger.pop, 'teardown')

    def _shorten_intervals(self, most: int | None) -> None:
        self._schedule.cut_at(most)
        # what was found to be due later may be due now
        self._due_at = 0

    def _describe_run(self) -> RunRecord:
        """What analysis will need to know later, elsewhere."""
        runner, sources = self._runner, self._sources
        loop, path = runner.train_loop, runner.cfg.filename
        wrapper, world = runner.optim_wrapper, runner.world_size
        identity = read_process_identity()
        uses_nccl = world > 1 and sources.device == 'cuda'
        # a source that fails here is in `unknown` below
        plan = self._guard.run('schedule', describe_plan, runner)
        return RunRecord(
            started_unix_s=wall_unix_s(),
            build_s=self._build_s,
            hook_added_by=self._hook.added_by,
            before_hook_s=self._hook.before_hook_s,
            dataset_bytes=self._hook.dataset_bytes,
            rank=runner.rank,
            world_size=world,
            work_dir=os.path.abspath(runner.work_dir),
            config_path=path and os.path.abspath(path),
            loop=_loop_kind(loop),
            max_epochs=_whole(getattr(loop, 'max_epochs', None)),
            max_iters=_whole(getattr(loop, 'max_iters', None)),
            start_iteration=_whole(getattr(loop, 'iter', None)) or 0,
            interval_iterations=self._schedule.interval,
            accumulative_counts=_whole(getattr(wrapper, '_accumulative_counts', None)),
            optim_wrapper=type(wrapper).__name__,
            parameters=_count_parameters(runner.model),
            is_model_wrapped=is_model_wrapper(runner.model) if world > 1 else None,
            device=sources.device,
            cudnn_benchmark=sources.gpu.cudnn_benchmark,
            worker_nice=self._hook.worker_nice,
            optimized=self._hook.optimized,
            overhead=self._guard.run(OVERHEAD_SOURCE, count_overhead, runner),
            hook_place=_find_place(runner.cfg),
            loader=_describe_loader(runner.train_dataloader),
            host=sources.host,
            gpu=sources.gpu.device,
            versions=_versions(),
            unknown={**self._known, **self._guard.off},
            hostname=identity.hostname,
            pid=identity.pid,
            process_start=identity.start_ticks,
            memory_cgroup=identity.memory_cgroup,
            oom_kills=identity.oom_kills,
            plan=plan,
            slurm_job_id=parse_job_id(os.environ),
            flight_recorder=list_dump_prefixes(os.environ) if uses_nccl else (),
            slurm_end_unix_s=read_end_unix_s(os.environ),
        )

    def _make_end(self) -> Callable[..., None]:
        """Make the function that stands as ``hook.after_train_iter`` while it records.

        It is an attribute of the hook itself, so a subclass of the user's that has an
        ``after_train_iter`` of its own is recorded whether it calls ``super()`` or not.
        """
        ledger, hooks, run = self._ledger, self._timer.hooks, self._guard.run
        stamp, clock = ledger.stamps.extend, ledger.clock
        subclass = None
        if type(self._hook).after_train_iter is not Hook.after_train_iter:
            subclass = self._hook.after_train_iter

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
                subclass(runner, batch_idx, data_batch, outputs)

        return after_train_iter

    def on_iteration_end(self, batch_idx: int, batch: Any, outputs: Any) -> None:
        run, schedule, ledger = self._guard.run, self._schedule, self._ledger
        ledger.sum_up()
        if self._starting is not None:
            starting, self._starting = self._starting, None
            run(ACCOUNT_SOURCE, self._record_start, starting)
        due = schedule.is_due(batch_idx, ledger.iterations)
        if due.is_logged:
            # before LoggerHook resets the allocator's peak
            self._sources.gpu.observe_memory()
        if due.is_end:
            record = self._record_interval(batch, ledger.take(), outputs)
            if record is not None:
                run('scalars', self._publisher.add, record)
                run(END_SOURCE, self._forecast_end, record)
        if due.is_logged:
            run('scalars', self._publisher.publish)
        self._due_at = schedule.find_next(batch_idx, ledger.iterations)

    def _record_start(self, starting: StartSource) -> None:
        parts_s, before_s = self._ledger.read_parts(), self._hook.before_hook_s
        self._recording.write(starting.summarize(before_s, parts_s))

    def begin_epoch(self) -> None:
        """An epoch begins: it may be of another length."""
        self._due_at = 0
        self._recording.begin_epoch()
        self._schedule.begin_epoch()
        self._sources.gpu.interrupt()
        if self._tuner is not None:
            self._guard.run(TUNER_SOURCE, self._tuner.begin_epoch)

    def book_resume(self, advance: Callable[[], int]) -> None:
        """Book what skips batches without loading them.

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

    def on_last_wait(self, iterator: Any) -> None:
        self._sources.loader.before_wait(iterator)

    def on_skipped_wait(self, left: int) -> None:
        self._guard.run('resume', self._resuming.note, left)

    def on_validation_begin(self) -> None:
        iteration = self._recording.count_iterations()
        self._guard.run(SAVES_SOURCE, self._saving.waits.add, iteration, is_save=False)
        self._validation.begin()

    def on_validation_end(self) -> None:
        self._validation.end()

    def on_validation_record(self, record: ValidationRecord) -> None:
        if self._ending is not None:
            self._guard.run(END_SOURCE, self._ending.add_validation, record)

    def on_save_record(self, record: SaveRecord) -> None:
        if self._ending is not None:
            self._guard.run(END_SOURCE, self._ending.add_save, record)

    def _forecast_end(self, record: IntervalRecord) -> None:
        if self._ending is None:
            return
        self._ending.add_interval(record)
        if 'hours_left' in self._hook.scalar_names:
            self._publisher.note('hours_left', self._ending.hours_left)

    def _record_interval(
        self, batch: Any, window: LedgerWindow, outputs: Any = None
    ) -> IntervalRecord | None:
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
        record = IntervalRecord(
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
        record = self._sources.complete(record, batch)
        overhead = self._guard.run(OVERHEAD_SOURCE, self._count_due, outputs)
        if overhead:
            record = structs.replace(record, **overhead)
        recording.write(record)
        if self._stuck is not None:
            self._stuck.note(record)
        self._write_once_known()
        if self._verdicts is not None:
            self._guard.run(VERDICT_SOURCE, self._verdicts.follow)
        if self._tuner is not None:
            self._guard.run(TUNER_SOURCE, self._tuner.follow, record.iter.mean_s)
        return record

    def _count_due(self, outputs: Any) -> dict[str, Any]:
        """What scalars cost the host, where it is time to count that."""
        figures: dict[str, Any] = {}
        if not self._is_read_counted and isinstance(outputs, dict):
            self._is_read_counted = True
            figures['read_scalars'] = sum(
                getattr(value, 'device', None) is not None
                and value.device.type != 'cpu'
                for value in outputs.values()
            )
        copied = self._histories.read(self._recording.recorded)
        if copied is not None:
            figures['histories'] = HistoryCost(**copied._asdict())
        return figures

    def _write_once_known(self) -> None:
        for source, reason in self._sources.unknown.items():
            if source not in self._known:
                self._known[source] = reason
                self._recording.write_reason(UnknownRecord, source, reason)

    def note_source_off(self, source: str, reason: str) -> None:
        """Leave in the evidence why a figure is missing from here on."""
        if source in ('ledger', 'interval'):
            # stamps that are not taken must not grow
            self._timer.stop()
        if source == VALIDATION_SOURCE:
            self._guard.clean_up(source, self._validation.close)
        if source == TUNER_SOURCE and self._tuner is not None:
            self._schedule.cut_at(None)
            self._guard.clean_up(source, self._tuner.close)
        if source in ('ledger', 'interval', 'scalars'):
            # nothing else takes the last values off LoggerHook's lines
            self._publisher.clear()
        self._recording.write_reason(SourceOffRecord, source, reason)

    def finish(self, error: BaseException | None) -> Path | None:
        """Close everything but the evidence, which may get a verdict.

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
            clean_up(TUNER_SOURCE, self._tuner.close)
        if self._stuck is not None:
            clean_up(WATCHDOG_SOURCE, self._stuck.close, error is None)
        if self._memory is not None:
            clean_up(MEMORY_SOURCE, self._memory.close)
        clean_up(SAVES_SOURCE, self._saving.leave)
        clean_up(VALIDATION_SOURCE, self._validation.close)
        # read once: what we ourselves do from here on is no part of training
        if not {'ledger', 'interval'} & self._guard.off.keys():
            self._ledger.note(self._ledger.running[-1])
            window = run('ledger', self._ledger.take)
        clean_up('ledger', self._timer.close)
        clean_up('ledger', self._patches.close)
        if window is not None:
            run('last interval', self._record_interval, None, window)
        run(SAVES_SOURCE, self._saving.waits.finish)
        if error is not None:
            # a card that was lost meanwhile is the reason
            self._sources.gpu.read(IntervalEnd(0, None))
        run('end', self._write_once_known)
        self.end = run('end', self._end, window is not None, error)
        if self.end is not None:
            self._recording.write(self.end)
        self._sources.close()
        writer = self._recording.writer
        return None if writer is None else writer.path

    def write_verdict(self, verdict: VerdictRecord) -> None:
        """Add what is judged of the run so far."""
        stamped = structs.replace(verdict, written_unix_s=wall_unix_s())
        self._recording.write(stamped)

    def close(self) -> None:
        """Close the evidence; a second call does nothing."""
        self._recording.close()

    def _end(self, is_timed: bool, error: BaseException | None) -> EndRecord:
        # the totals of a ledger that was switched off would be wrong
        totals = self._ledger.totals if is_timed else LedgerWindow()
        if is_timed:
            totals.parts_s['startup'] += self._build_s
        raised = _Raised()
        status: Ending = 'completed'
        if error is not None:
            is_stop = isinstance(error, (KeyboardInterrupt, SystemExit))
            status = 'interrupted' if is_stop else 'failed'
            # a user's exception may raise when it is read
            described = self._guard.run('exception', _describe_error, error)
            raised = described or _Raised(type(error).__name__)
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
                'exception', find_without_gradient, self._runner.model, error
            )
            or (),
            spared=self._hook.spared or {},
        )


_NO_GRADIENT = re.compile(
    r'did not receive grad for rank \d+: ?(?P<found>[^\n]*)', re.ASCII
)
_MOST_PARAMETERS = 32


def find_without_gradient(model: Any, error: BaseException | None) -> tuple[str, ...]:
    """Name the parameters that DistributedDataParallel got no gradient of.

    Its exception counts the parameters that require one, in the order of the model's
    modules, or names them where ``TORCH_DISTRIBUTED_DEBUG`` is set.
    """
    found = _NO_GRADIENT.findall(str(error or ''))
    if not found:
        return ()
    module = getattr(model, 'module', model)
    names = [name for name, own in module.named_parameters() if own.requires_grad]
    listed = [word.strip(' .') for text in found for word in re.split('[, ]+', text)]
    named = [
        names[int(word)] if word.isdecimal() and int(word) < len(names) else word
        for word in listed
        if word and (word in names or word.isdecimal())
    ]
    return tuple(dict.fromkeys(named))[:_MOST_PARAMETERS]


def _count_parameters(model: Any) -> int | None:
    # a lazy module has none before its first batch
    with contextlib.suppress(Exception):
        return sum(int(parameter.numel()) for parameter in model.parameters())
    return None


class _Raised(NamedTuple):
    """The exception that ended training, as the end record has it."""

    error: str | None = None
    """Its type; ``None`` where there was none."""
    traceback: tuple[str, ...] = ()
    """Without lines of code. PyTorch puts a worker's into the message."""
    sample: str | None = None
    """The sample that raised in this process."""


def _describe_error(error: BaseException) -> _Raised:
    """Describe what passed through the train loop, and was caught nowhere."""
    printed = traceback.format_exception(type(error), error, error.__traceback__)
    lines = [
        line[:_LETTERS]
        for line in ''.join(printed).splitlines()
        if not line.startswith('    ')
    ]
    return _Raised(
        error=type(error).__name__,
        traceback=tuple(lines[-_MOST_LINES:]),
        sample=_find_sample(error),
    )


def _find_sample(error: BaseException) -> str | None:
    """The index that the data set was asked for."""
    is_loading = False
    for frame, _ in traceback.walk_tb(error.__traceback__):
        is_loading |= bool(_FETCH.search(frame.f_code.co_filename))
        asked = frame.f_locals.get('idx', frame.f_locals.get('index'))
        if is_loading and isinstance(asked, int):
            return f'index {asked}'
    return None


def _describe_loader(loader: Any) -> LoaderSettings:
    """Its settings, and what its dataset weighs: once, for it takes some 20 ms."""
    settings, objects = read_loader_settings(loader), None
    with contextlib.suppress(Exception):  # a thread of the user's may change it now
        objects = weigh_objects(getattr(loader, 'dataset', None))
    if objects is None:
        return settings
    return structs.replace(
        settings,
        object_bytes=objects.bytes,
        object_count=objects.entries,
        object_name=objects.name,
    )


def _find_place(config: Mapping[str, Any]) -> str | None:
    """Dotted key of our hook in a config; ``None`` where it stands in none."""
    named = dict(config.get('default_hooks') or {})
    listed = list(config.get('custom_hooks') or ())
    places = {f'default_hooks.{name}': hook for name, hook in named.items()}
    places |= {f'custom_hooks.{index}': hook for index, hook in enumerate(listed)}
    for place, hook in places.items():
        kind = hook.get('type') if isinstance(hook, Mapping) else type(hook)
        if is_our_hook(kind):
            return place
    return None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def describe_plan(runner: Any) -> TrainingPlan | None:
    """When a Runner that is about to train validates and saves.

    Returns:
        ``None`` of a loop of another class than MMEngine's.
    """
    loop = runner.train_loop
    kind = _loop_kind(loop)
    if kind not in ('epoch', 'iter'):
        return None
    intervals: list[ValInterval] = []
    if getattr(runner, '_val_loop', None) is not None:
        milestones = getattr(loop, 'dynamic_milestones', [0])
        lengths = getattr(loop, 'dynamic_intervals', [loop.val_interval])
        intervals += [
            ValInterval(begin=int(begin), interval=max(int(length), 1))
            for begin, length in zip(milestones, lengths)
        ]
    begin = max(int(loop.val_begin), 0)
    plan = TrainingPlan(val_intervals=tuple(intervals), val_begin=begin)
    saving = [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]
    for hook in saving[:1]:
        # an iteration-based training is one epoch to it
        is_lone_epoch = hook.by_epoch and kind == 'iter'
        has_interval = hook.interval > 0 and not is_lone_epoch
        plan = structs.replace(
            plan,
            save_interval=int(hook.interval) if has_interval else None,
            saves_by_epoch=bool(hook.by_epoch),
            save_begin=int(getattr(hook, 'save_begin', 0)),
            saves_last=bool(hook.save_last),
        )
    return plan


def _loop_kind(loop: Any) -> str:
    if isinstance(loop, EpochBasedTrainLoop):
        return 'epoch'
    if isinstance(loop, IterBasedTrainLoop):
        return 'iter'
    return type(loop).__name__


def _versions() -> dict[str, str]:
    versions = {'mmgpu_hooks': __version__, 'python': platform.python_version()}
    # only what this training imported anyway; a fork goes by the same module names
    for name in ('torch', 'mmengine', 'mmcv', 'mmdet', 'mmpretrain', 'mmyolo'):
        version = getattr(sys.modules.get(name), '__version__', None)
        if version is not None:
            versions[name] = str(version)
    versions['platform'] = platform.platform()
    return versions
