"""One run's recording: the ledger, the sources and the evidence file together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmengine.runner import Runner

from mmgpu_hooks.evidence.hook_shares import OWN_LABEL
from mmgpu_hooks.evidence.ledger import TimeLedger
from mmgpu_hooks.evidence.ledger_parts import LedgerReading
from mmgpu_hooks.hooks.anchors import LoopAnchors
from mmgpu_hooks.hooks.guard import Guard
from mmgpu_hooks.hooks.instance_patches import InstancePatches, followed_by_own
from mmgpu_hooks.hooks.iterations import Iterations
from mmgpu_hooks.hooks.log_schedule import MOST_SKIPPED, LogSchedule
from mmgpu_hooks.hooks.run_record import read_run_record, vis_data_folder
from mmgpu_hooks.hooks.save_source import SaveSource
from mmgpu_hooks.hooks.scalar_board import ScalarBoard
from mmgpu_hooks.hooks.sources import Sources
from mmgpu_hooks.hooks.train_loop import is_replaying, loading_cpu_clock
from mmgpu_hooks.hooks.validation_source import ValidationSource
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
from mmgpu_hooks.telemetry.clock import monotonic_s, wall_unix_s


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
        self._schedule = LogSchedule(runner, interval)
        self._board = ScalarBoard(runner.message_hub)
        self._ledger = TimeLedger(
            monotonic_s, loading_cpu_clock(runner.train_dataloader)
        )
        self._iterations = Iterations(runner, self._ledger, guard)
        self._anchors = LoopAnchors(
            self._ledger,
            guard,
            hook,
            on_epoch=self._begin_epoch,
            on_save=self._note_save,
            is_replaying=is_replaying(runner),
        )
        self._hook = hook
        self._own = InstancePatches()
        self._pause = [0, 0]
        """Strictly between these two iterations nothing is due."""
        self._look_at = 0
        self._was_logged = False
        self._told: dict[str, str] = {}
        self._saves = 0
        self._writer: EvidenceWriter | None = None
        self._saving = SaveSource(runner, guard, self._read_position, self._write)
        self.validation = ValidationSource(
            runner,
            guard,
            self._ledger,
            sources,
            read_position=self._read_position,
            write=self._write,
            on_begin=self._saving.add_cut,
        )
        """What is known of validations."""

    def begin(self) -> None:
        """Open the sources, write the run record and set the anchors."""
        runner, hook, run = self._runner, self._hook, self._guard.run
        self._sources.open(
            runner,
            count_iterations=self._iterations.count,
            on_create_begin=lambda: run('ledger', self._begin_creation),
            on_create_end=lambda: run('ledger', self._ledger.pop, 'worker_startup'),
        )
        self._sources.watch(self._anchors)
        if self._sources.batches is not None:
            run('batch contents', self._sources.batches.begin, self._begin_iteration)
        self._told = dict(self._sources.unknown)
        record = run(
            'run record',
            read_run_record,
            runner,
            started_unix_s=wall_unix_s(),
            interval_iterations=self._schedule.interval,
            host=self._sources.host,
            gpu=self._sources.gpu.device,
            device=self._sources.device,
            worker_nice=self._sources.worker_nice,
            unknown={**self._told, **self._guard.off},
        )
        if record is not None:
            run('evidence', self._open_writer, record)
        self._anchors.install(runner)
        # around the ledger's anchors: what it costs is no part of a save
        self._saving.open(self._sources.loader, self._sources.host)
        end = self._iterations.book(self._pause, self._end_iteration)
        end = followed_by_own(hook, 'after_train_iter', end)
        self._own.set(hook, 'after_train_iter', end)
        # opening all this was before training
        self._iterations.begin()

    def _open_writer(self, run: RunRecord) -> None:
        path = vis_data_folder(self._runner) / evidence_name(run.rank)
        warn = self._runner.logger.warning
        self._writer = open_evidence(unused_path(path), run, warn)

    def _begin_iteration(
        self, runner: Any, batch_idx: int, data_batch: Any = None
    ) -> None:
        """Stands for the hook's own method while batches are looked at here."""
        batches = self._sources.batches
        if batches is not None:
            self._guard.run('batch contents', batches.look, data_batch)

    def _end_iteration(self, batch_idx: int, batch: Any) -> None:
        """An iteration is over with which something may be due."""
        if 'interval' in self._guard.off:
            # what the ledger keeps of iterations stays bounded
            self._guard.run('ledger', self._ledger.drain_laps)
            self._pause[:] = batch_idx, batch_idx + MOST_SKIPPED
            return
        self._guard.run('ledger', self._ledger.push, OWN_LABEL)
        self._guard.run('interval', self._do_what_is_due, batch_idx, batch)
        self._guard.run('ledger', self._ledger.pop, OWN_LABEL)

    def _do_what_is_due(self, batch_idx: int, batch: Any) -> None:
        """At the end of an interval, record and publish it."""
        guard, schedule, looks = self._guard, self._schedule, self._anchors.looks
        guard.run('ledger', self._iterations.take)
        if self._was_logged:
            self._sources.gpu.observe_reset()
        is_logged, is_end = schedule.look(batch_idx, self._iterations.in_interval)
        self._was_logged = is_logged
        if is_logged:
            # before LoggerHook resets the allocator's peak
            self._sources.gpu.observe_memory()
        if is_end:
            record = self._record_interval(batch, self._iterations.read())
            if record is not None and schedule.has_lines:
                folded_s = self._iterations.folder.folded_s
                guard.run('scalars', self._board.add, record, *folded_s)
        guard.run('ledger', looks.search, self._iterations.done)
        if is_logged:
            guard.run('scalars', self._board.publish)
        if schedule.is_before_line(batch_idx):
            # hooks that log or look work in that one only
            guard.run('ledger', looks.request, is_special=True)
        # once an interval at least; numbers begin anew where a loop tells no epochs
        if (
            not self._pause[0] < batch_idx < self._look_at
            or (is_end and self._look_at > batch_idx + schedule.interval - 2)
            or schedule.is_before_last(batch_idx)
        ):
            guard.run('ledger', looks.request)
            self._look_at = batch_idx + looks.draw_distance()
        if self._sources.batches is not None and not is_end:
            guard.run('batch contents', self._sources.batches.follow)
        following = schedule.find_next(batch_idx, self._iterations.in_interval)
        self._pause[0] = batch_idx
        self._pause[1] = batch_idx + 1 if is_logged else min(following, self._look_at)

    def _begin_creation(self) -> None:
        self._iterations.note_first()
        self._ledger.push('worker_startup')

    def _begin_epoch(self) -> None:
        self._iterations.begin_epoch()
        self._pause[1] = 0
        self._schedule.begin_epoch()
        self._sources.gpu.interrupt()

    def _read_position(self) -> tuple[int, int]:
        self._iterations.count()
        return self._iterations.number, self._iterations.epoch

    def _record_interval(
        self, batch: Any, reading: LedgerReading | None
    ) -> IntervalRecord | None:
        if reading is None:
            return None
        self._saving.add_waits(self._iterations.folder)
        folded = self._iterations.fold(reading)
        if folded is None:
            return None
        record = self._sources.complete(folded, batch)
        self._write(record)
        self._write_once_known()
        return record

    def _write_once_known(self, is_final: bool = False) -> None:
        iteration = self._iterations.number
        model = self._sources.read_model_bytes(iteration, is_final)
        if model is not None:
            self._write(model)
        for source, reason in self._sources.unknown.items():
            if source not in self._told:
                self._told[source] = reason
                self._write(
                    UnknownRecord(source=source, reason=reason, iteration=iteration)
                )

    def note_source_off(self, source: str, reason: str) -> None:
        """Leave in the evidence why a figure is missing from here on."""
        if source == 'ledger':
            self._anchors.stop()
            self._own.close()
        if source == 'validation':
            self._guard.clean_up(source, self.validation.close)
        batches = self._sources.batches
        # nobody would take what they see
        if source in ('batch contents', 'ledger', 'interval') and batches is not None:
            batches.close()
        if source in ('ledger', 'interval', 'scalars'):
            # nobody else takes the last values off LoggerHook's lines
            self._board.clear()
        self._write(
            SourceOffRecord(
                source=source, reason=reason, iteration=self._iterations.number
            )
        )

    def _write(self, record: Any) -> None:
        if self._writer is not None:
            self._guard.run('evidence', self._writer.write, record)

    def finish(self, status: Ending, error: str | None) -> Path | None:
        """Close everything; a second call does nothing.

        Args:
            status: ``completed``, ``interrupted`` or ``failed``.
            error: Type name of the exception that ended training.

        Returns:
            The evidence file, for the summary; ``None`` when there is none.
        """
        self._saving.leave()
        self._guard.clean_up('validation', self.validation.close)
        self._guard.clean_up('ledger', self._anchors.close)
        self._guard.clean_up('ledger', self._own.close)
        # read once: what we ourselves do from here on is no part of training
        reading = self._iterations.read()
        self._guard.run('last interval', self._record_interval, None, reading)
        self._saving.finish()
        self._guard.run('end', self._write_once_known, is_final=True)
        end = self._guard.run('end', self._end, reading, status, error)
        if end is not None:
            self._write(end)
        self._sources.close()
        writer, self._writer = self._writer, None
        if writer is None:
            return None
        self._guard.clean_up('evidence', writer.close)
        return writer.path

    def _end(
        self, reading: LedgerReading | None, status: Ending, error: str | None
    ) -> EndRecord:
        # a ledger that was switched off stands still: its totals would be a lie
        return EndRecord(
            status=status,
            iterations=self._iterations.done,
            ledger_s=reading.wall_s if reading else {},
            hooks_s=self._ledger.shares.settle(reading.hooks_s) if reading else {},
            duration_s=self._ledger.elapsed_s() if reading else None,
            saves=self._saves,
            error=error,
        )

    def _note_save(self) -> None:
        # of a Runner, the first rank alone saves; a FlexibleRunner's ranks all do
        if self._runner.rank and isinstance(self._runner, Runner):
            return
        self._saves += 1
        self._iterations.add_save()
        self._sources.gpu.interrupt()
