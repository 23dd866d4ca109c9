"""One run's recording: the ledger, the sources and the evidence file together."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Callable

from mmengine.hooks import Hook, LoggerHook
from mmengine.runner import Runner

from mmgpu_hooks.hooks.guard import Guard
from mmgpu_hooks.hooks.loop_timer import LoopTimer
from mmgpu_hooks.hooks.raised import describe_error
from mmgpu_hooks.hooks.run_record import read_run_record, vis_data_folder
from mmgpu_hooks.hooks.saves import SOURCE as SAVES
from mmgpu_hooks.hooks.saves import SaveSource
from mmgpu_hooks.hooks.scalars import ScalarBoard
from mmgpu_hooks.hooks.sources import Sources
from mmgpu_hooks.hooks.stuck_source import StuckSource
from mmgpu_hooks.hooks.validation import ValidationSource
from mmgpu_hooks.measure.clock import wall_unix_s
from mmgpu_hooks.measure.host import read_file_system, read_memory
from mmgpu_hooks.measure.ledger import LAP, LedgerWindow, summarize_durations
from mmgpu_hooks.measure.now import read_oom_kills
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.schema import (
    EndRecord,
    IntervalRecord,
    RunRecord,
    SourceOffRecord,
    UnknownRecord,
)
from mmgpu_hooks.schema.recorded import Ending
from mmgpu_hooks.schema.run_folder import evidence_name, unused_path
from mmgpu_hooks.schema.writer import EvidenceWriter, open_evidence

DEFAULT_INTERVAL = 10
"""LoggerHook's own default, for runs that have none."""


MOST_ITERATIONS = 10_000
"""An interval is cut here: each of its iterations is kept until it ends."""

MOST_SKIPPED = 64
"""Iterations; what is kept of them until the next look stays small."""


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
        self.begin_epoch()
        if interval is not None:
            self.interval = interval
        else:
            self.interval = self._logger.interval if self._logger else DEFAULT_INTERVAL

    @property
    def has_lines(self) -> bool:
        """Whether LoggerHook prints any."""
        return self._logger is not None

    def begin_epoch(self) -> None:
        """Look at the length of the epoch; asking for it each time costs more."""
        try:
            self._batches = len(self._runner.train_dataloader)
        except (TypeError, NotImplementedError):
            self._batches = None

    def look(self, batch_idx: int, iterations: int) -> tuple[bool, bool]:
        """What ends with an iteration.

        Args:
            batch_idx: Of the iteration, in its epoch.
            iterations: Iterations since the last interval ended.

        Returns:
            Whether LoggerHook prints a line for it, and whether an interval ends.
        """
        logger = self._logger
        is_logged = False
        if logger is not None:
            done, interval = batch_idx + 1, logger.interval
            is_logged = done % interval == 0 or (
                done == self._batches and (not logger.ignore_last or done <= interval)
            )
            if self._own_interval is None:
                return is_logged, is_logged or iterations >= MOST_ITERATIONS
        return is_logged, iterations >= min(self.interval, MOST_ITERATIONS)

    def find_next(self, batch_idx: int, iterations: int) -> int:
        """The next iteration at which something may end, by its number in the epoch.

        Args:
            batch_idx: Of the iteration that :meth:`look` was called for.
            iterations: Iterations since the last interval ended.
        """
        batches = self._batches
        if not batches:
            return batch_idx + 1
        nexts = [batch_idx + MOST_SKIPPED]
        if batch_idx < batches - 1:
            nexts.append(batches - 1)
        if self._own_interval is not None or self._logger is None:
            nexts.append(batch_idx + max(self.interval - iterations, 1))
        if self._logger is not None:
            interval = self._logger.interval
            nexts.append(((batch_idx + 1) // interval + 1) * interval - 1)
        return min(nexts)


def interval_fields(
    window: LedgerWindow, *, iteration: int, epoch: int, elapsed_s: float, saves: int
) -> dict[str, Any]:
    """The fields of an :class:`IntervalRecord` that the time ledger gives.

    Args:
        window: Of one interval; it holds an iteration at least.
        iteration: 1-based number of the last iteration.
        epoch: 1-based.
        elapsed_s: Seconds since the ledger began.
        saves: Checkpoint saves in it.
    """
    return dict(
        iteration=iteration,
        epoch=epoch,
        iterations=len(window.iters_s),
        elapsed_s=elapsed_s,
        duration_s=math.fsum(window.parts_s.values()),
        data_wait=summarize_durations(window.waits_s),
        step=summarize_durations(window.steps_s),
        iter=summarize_durations(window.iters_s),
        ledger_s=window.parts_s,
        hooks_s=window.hooks_s,
        data_wait_cpu_s=window.wait_cpu_s,
        first_waits=len(window.firsts),
        first_wait_s=float(window.waits_s[window.firsts].sum()),
        saves=saves,
    )


class Recorder:
    """Records one call of a train loop, from its first line to its last.

    Args:
        runner: The runner, about to enter its train loop.
        interval: Iterations per record; ``None`` follows LoggerHook.
        sources: What is measured beside the ledger.
        guard: Switches off what fails.
        hook: The hook that records.
    """

    def __init__(
        self,
        runner: Any,
        interval: int | None,
        sources: Sources,
        guard: Guard,
        hook: Any,
    ) -> None:
        self._runner = runner
        self._sources = sources
        self._guard = guard
        self._hook = hook
        self._schedule = LogSchedule(runner, interval)
        self._board = ScalarBoard(runner.message_hub, hook.scalar_names)
        self._timer: LoopTimer | None = None
        self._patches = Patches()
        self._quiet = [0, 0]
        """Strictly between these two iterations of an epoch nothing is due."""
        self._known: dict[str, str] = {}
        self._start = runner.iter
        self._build_s = 0.0
        self._epoch = runner.epoch + 1
        self._taken = 0
        """Iterations of this run that are in records."""
        self._saves = 0
        self._interval_saves = 0
        self._memory_cgroup: str | None = None
        self._writer: EvidenceWriter | None = None
        self._stuck: StuckSource | None = None
        self.end: EndRecord | None = None
        """Once it is over, also where there was no room to write it."""
        self._saving = SaveSource(runner, guard, self._read_position, self._write)
        self.validation = ValidationSource(
            runner,
            guard,
            sources,
            read_position=self._read_position,
            write=self._write,
            on_begin=lambda: guard.run(SAVES, self._saving.add_cut),
        )
        """What is known of validations."""

    def begin(self, built_s: float) -> None:
        """Open the sources, write the run record and time the loop.

        Args:
            built_s: When the Runner was built, by the ledger's clock.
        """
        runner, run = self._runner, self._guard.run
        device = self._sources.read_device(runner)
        self._timer = run('ledger', LoopTimer, runner, device, self._note_save)
        if self._timer is not None:
            self._build_s = max(self._timer.ledger.stamped_s - built_s, 0.0)
            self._timer.ledger.push(self._hook)
        self._sources.open(runner, self._timer)
        if self._timer is not None:
            self._sources.watch(self._timer)
            self.validation.watch(self._timer)
        self._known = dict(self._sources.unknown)
        record = run(
            'run record',
            read_run_record,
            runner,
            started_unix_s=wall_unix_s(),
            build_s=self._build_s,
            interval_iterations=self._schedule.interval,
            host=self._sources.host,
            gpu=self._sources.gpu.device,
            device=self._sources.device,
            worker_nice=self._sources.worker_nice,
            unknown={**self._known, **self._guard.off},
        )
        if record is not None:
            self._memory_cgroup = record.memory_cgroup
            run('evidence', self._open_writer, record)
        if self._timer is not None:
            run('ledger', self._timer.open)
        # around the ledger's: what it costs is no part of a save
        run(SAVES, self._saving.open, self._sources.loader, self._sources.host)
        if self._timer is not None:
            end = self._end_iterations(self._timer)
            self._patches.set(self._hook, 'after_train_iter', end)
            if self._hook.stuck_after_s:
                run('watchdog', self._watch, self._timer)
            self._timer.ledger.pop(self._hook)

    def _watch(self, timer: LoopTimer) -> None:
        self._stuck = StuckSource(
            self._hook.stuck_after_s,
            self._guard,
            timer,
            self._sources,
            lambda: (self._start + self._taken + timer.ledger.iterations, self._epoch),
            self._write,
            self._runner.logger.warning,
            str(self._runner.work_dir),
            None if self._writer is None else self._writer.path,
        )
        self._stuck.start()

    def _open_writer(self, run: RunRecord) -> None:
        path = vis_data_folder(self._runner) / evidence_name(run.rank)
        warn = self._runner.logger.warning
        self._writer = open_evidence(unused_path(path), run, warn)

    def _end_iterations(self, timer: LoopTimer) -> Callable[..., None]:
        ledger, quiet, hooks = timer.ledger, self._quiet, timer.hooks
        running, clock = ledger.running, ledger.clock
        stamp, note = ledger.times.append, ledger.ended.append
        subclass = None
        if type(self._hook).after_train_iter is not Hook.after_train_iter:
            subclass = self._hook.after_train_iter

        def after_train_iter(
            runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
        ) -> None:
            if hooks.is_open:
                now_s = clock()
                stamp(now_s)
                note(running[-1])
                stamp(now_s)
                note(LAP)
                if not quiet[0] < batch_idx < quiet[1]:
                    self._guard.run(
                        'interval', self._do_what_is_due, timer, batch_idx, data_batch
                    )
            if subclass is not None:
                subclass(runner, batch_idx, data_batch, outputs)

        return after_train_iter

    def _do_what_is_due(self, timer: LoopTimer, batch_idx: int, batch: Any) -> None:
        """At the end of an interval, record and publish it."""
        guard, schedule, ledger = self._guard, self._schedule, timer.ledger
        ledger.fold()
        is_logged, is_end = schedule.look(batch_idx, ledger.iterations)
        if is_logged:
            # before LoggerHook resets the allocator's peak
            self._sources.gpu.observe_memory()
        if is_end:
            window = ledger.take()
            record = self._record_interval(batch, window)
            if record is not None and schedule.has_lines:
                guard.run('scalars', self._board.add, record)
        if is_logged:
            guard.run('scalars', self._board.publish)
        if not is_end:
            self._sources.follow_batches()
        following = schedule.find_next(batch_idx, ledger.iterations)
        self._quiet[:] = batch_idx, following

    def begin_epoch(self) -> None:
        """An epoch begins: it may be of another length."""
        self._epoch = self._runner.epoch + 1
        self._quiet[1] = 0
        self._schedule.begin_epoch()
        self._sources.gpu.interrupt()

    def _count_iterations(self) -> int:
        """Iterations of this run that are done."""
        timer = self._timer
        if timer is None:
            return 0
        self._guard.run('interval', timer.ledger.fold)
        return self._taken + timer.ledger.iterations

    def _read_position(self) -> tuple[int, int]:
        return self._start + self._count_iterations(), self._epoch

    def _record_interval(
        self, batch: Any, window: LedgerWindow
    ) -> IntervalRecord | None:
        self._taken += len(window.iters_s)
        self._guard.run(SAVES, self._saving.add_waits, window)
        saves, self._interval_saves = self._interval_saves, 0
        if not len(window.iters_s) or self._timer is None:
            return None
        fields = interval_fields(
            window,
            iteration=self._start + self._taken,
            epoch=self._epoch,
            elapsed_s=self._timer.ledger.elapsed_s,
            saves=saves,
        )
        record = self._sources.complete(fields, batch)
        self._write(record)
        if self._stuck is not None:
            self._stuck.note(record)
        self._write_once_known()
        return record

    def _write_once_known(self, is_final: bool = False) -> None:
        iteration = self._start + self._taken
        model = self._sources.read_model_bytes(iteration, is_final)
        if model is not None:
            self._write(model)
        for source, reason in self._sources.unknown.items():
            if source not in self._known:
                self._known[source] = reason
                self._write(
                    UnknownRecord(source=source, reason=reason, iteration=iteration)
                )

    def note_source_off(self, source: str, reason: str) -> None:
        """Leave in the evidence why a figure is missing from here on."""
        if source in ('ledger', 'interval') and self._timer is not None:
            # a tape that is not taken must not grow
            self._timer.stop()
        if source == 'validation':
            self._guard.clean_up(source, self.validation.close)
        if source in ('ledger', 'interval', 'scalars'):
            # nothing else takes the last values off LoggerHook's lines
            self._board.clear()
        self._write(
            SourceOffRecord(
                source=source, reason=reason, iteration=self._start + self._taken
            )
        )

    def _write(self, record: Any) -> None:
        if self._writer is not None:
            self._guard.run('evidence', self._writer.write, record)

    def finish(self, status: Ending, error: BaseException | None) -> Path | None:
        """Close everything; a second call does nothing.

        Args:
            status: ``completed``, ``interrupted`` or ``failed``.
            error: The exception that ended training.

        Returns:
            The evidence file, for the summary; ``None`` when there is none.
        """
        if self._stuck is not None:
            went_on = status == 'completed'
            self._guard.clean_up('watchdog', self._stuck.close, went_on)
        self._guard.clean_up(SAVES, self._saving.leave)
        self._guard.clean_up('validation', self.validation.close)
        timer, window = self._timer, None
        if timer is not None:
            # read once: what we ourselves do from here on is no part of training
            if not {'ledger', 'interval'} & self._guard.off.keys():
                window = self._guard.run('ledger', timer.ledger.take)
            self._guard.clean_up('ledger', timer.close)
        self._guard.clean_up('ledger', self._patches.close)
        if window is not None:
            self._guard.run('last interval', self._record_interval, None, window)
        self._guard.run(SAVES, self._saving.finish)
        if error is not None:
            # a card that was lost meanwhile is the reason
            self._sources.gpu.read()
        self._guard.run('end', self._write_once_known, is_final=True)
        self.end = self._guard.run('end', self._end, window is not None, status, error)
        if self.end is not None:
            self._write(self.end)
        self._sources.close()
        writer, self._writer = self._writer, None
        if writer is None:
            return None
        self._guard.clean_up('evidence', writer.close)
        return writer.path

    def _end(
        self, is_timed: bool, status: Ending, error: BaseException | None
    ) -> EndRecord:
        # the totals of a ledger that was switched off would be wrong
        ledger = self._timer.ledger if is_timed and self._timer else None
        ledger_s = dict(ledger.totals.parts_s) if ledger else {}
        if ledger_s:
            ledger_s['startup'] += self._build_s
        return EndRecord(
            status=status,
            iterations=self._taken,
            ledger_s=ledger_s,
            hooks_s=ledger.totals.hooks_s if ledger else {},
            duration_s=ledger.elapsed_s + self._build_s if ledger else None,
            saves=self._saves,
            ram_available_bytes=read_memory()[1],
            shm_free_bytes=read_file_system('/dev/shm')[1],
            disk_free_bytes=read_file_system(vis_data_folder(self._runner))[1],
            oom_kills=read_oom_kills(self._memory_cgroup),
            **(self._describe(error) if error is not None else {}),
        )

    def _describe(self, error: BaseException) -> dict[str, Any]:
        """A user's exception may raise when it is read."""
        described = self._guard.run('exception', describe_error, error)
        return described or {'error': type(error).__name__}

    def _note_save(self) -> None:
        # of a Runner, the first rank alone saves; a FlexibleRunner's ranks all do
        if self._runner.rank and isinstance(self._runner, Runner):
            return
        self._saves += 1
        self._interval_saves += 1
        self._sources.gpu.interrupt()
