"""One run's recording: the ledger, the sources and the evidence file together."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Callable

from mmengine.runner import Runner

from mmgpu_hooks.evidence.interval import IntervalFolder
from mmgpu_hooks.evidence.ledger import TimeLedger
from mmgpu_hooks.evidence.ledger_parts import LedgerReading
from mmgpu_hooks.evidence.writer import EvidenceWriter, evidence_name, unused_path
from mmgpu_hooks.hooks.anchors import LoopAnchors
from mmgpu_hooks.hooks.guard import Guard
from mmgpu_hooks.hooks.log_schedule import LogSchedule
from mmgpu_hooks.hooks.run_record import read_run_record, vis_data_folder
from mmgpu_hooks.hooks.save_source import SaveSource
from mmgpu_hooks.hooks.scalars import ScalarBoard
from mmgpu_hooks.hooks.sources import Sources
from mmgpu_hooks.hooks.train_loop import (
    endless_iterator,
    is_replaying,
    loading_cpu_clock,
)
from mmgpu_hooks.records import (
    EndRecord,
    IntervalRecord,
    RunRecord,
    SourceOffRecord,
    UnknownRecord,
)
from mmgpu_hooks.telemetry.clock import monotonic_s, wall_unix_s


class Recorder:
    """Records one call of a train loop, from its first line to its last.

    Args:
        runner: The runner, about to enter its train loop.
        interval: Iterations per record; ``None`` follows LoggerHook.
        sources: What is measured beside the ledger.
        guard: Switches off what fails.
    """

    def __init__(
        self, runner: Any, interval: int | None, sources: Sources, guard: Guard
    ) -> None:
        self._runner = runner
        self._sources = sources
        self._guard = guard
        self._schedule = LogSchedule(runner, interval)
        self._board = ScalarBoard(runner.message_hub)
        self._ledger = TimeLedger(monotonic_s, loading_cpu_clock(runner))
        self._begin_folder()
        self._anchors = LoopAnchors(
            self._ledger,
            guard,
            on_epoch=self._begin_epoch,
            on_save=self._note_save,
            is_replaying=is_replaying(runner),
        )
        self._first_wait = True
        self._endless = endless_iterator(runner)
        self._restarts = self._endless._epoch if self._endless is not None else 0
        self._read_ledger = guard.wrap('ledger', self._ledger.read)
        self._count_images: Callable[[Any], int | None] = no_images
        self._was_logged = False
        self._told: dict[str, str] = {}
        self._unpublished: IntervalRecord | None = None
        self._images: int | None = None
        self._iterations = 0
        self._saves = 0
        self._start_iteration = runner.iter
        self._epoch = runner.epoch + 1
        self._writer: EvidenceWriter | None = None
        self._saving = SaveSource(runner, guard, self._read_position, self._write)

    def begin(self) -> None:
        """Open the sources, write the run record and set the anchors."""
        runner = self._runner
        run = self._guard.run
        self._sources.open(
            runner,
            count_iterations=lambda: self._iterations,
            on_create_begin=lambda: run('ledger', self._begin_creation),
            on_create_end=lambda: run('ledger', self._ledger.pop, 'worker_startup'),
        )
        self._sources.watch(self._anchors)
        self._count_images = self._sources.watch_batches()
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
        # the ledger's anchors go around it, so that it costs nobody else
        self._saving.open(self._sources.loader, self._sources.host)
        self._anchors.install(runner)
        # opening all this was before training
        self._ledger.start()
        self._begin_folder()

    def _begin_folder(self) -> None:
        workers = getattr(self._runner.train_dataloader, 'num_workers', 0)
        self._folder = IntervalFolder(
            self._ledger.read(), self._ledger.lap(), has_workers=bool(workers)
        )

    def _open_writer(self, run: RunRecord) -> None:
        path = vis_data_folder(self._runner) / evidence_name(run.rank)
        self._writer = EvidenceWriter(unused_path(path))
        self._writer.write(run)

    def begin_iteration(self, batch: Any) -> None:
        """Look at a batch, before a preprocessor takes it apart."""
        try:
            self._images = self._count_images(batch)
        except Exception as error:  # noqa: BLE001  # training must not see it
            self._guard.switch_off('batch contents', error)

    def end_iteration(self, batch_idx: int, batch: Any) -> None:
        """Count one iteration; at the end of an interval, record and publish it."""
        guard = self._guard
        # guarded here: every function more costs a microsecond between two steps
        if 'ledger' not in guard.off:
            try:
                self._add_iteration()
            except Exception as error:  # noqa: BLE001  # training must not see it
                guard.switch_off('ledger', error)
        if self._was_logged:
            self._sources.gpu.observe_reset()
        is_logged, is_end = self._schedule.look(batch_idx, self._folder.iterations)
        self._was_logged = is_logged
        if is_logged:
            # before LoggerHook resets the allocator's peak
            self._sources.gpu.observe_memory()
        if is_end:
            self._unpublished = self._record_interval(batch, self._read_interval())
        if is_logged:
            guard.run('scalars', self._publish)

    def begin_validation(self) -> None:
        """From here on the allocator's peak is validation's."""
        self._sources.gpu.begin_validation()
        self._saving.add_cut()

    def end_validation(self) -> None:
        """From here on it is training's again."""
        self._sources.gpu.end_validation()

    def _begin_creation(self) -> None:
        self._first_wait = True
        self._ledger.push('worker_startup')

    def _begin_epoch(self) -> None:
        self._first_wait = True
        self._epoch = self._runner.epoch + 1
        self._schedule.begin_epoch()
        self._sources.gpu.interrupt()

    def _add_iteration(self) -> None:
        is_first = self._first_wait
        if self._endless is not None and self._endless._epoch != self._restarts:
            # an iteration-based loop restarts persistent workers without a new iterator
            is_first = True
            self._restarts = self._endless._epoch
            self._epoch = self._runner.epoch + 1
        self._first_wait = False
        lap = self._ledger.lap()
        self._folder.add_iteration(lap, is_first, self._images)
        self._iterations += 1

    def _read_position(self) -> tuple[int, int]:
        return self._start_iteration + self._iterations, self._epoch

    def _read_interval(self) -> LedgerReading | None:
        self._ledger.book_startup(self._folder.fold_startup())
        return self._read_ledger()

    def _record_interval(
        self, batch: Any, reading: LedgerReading | None
    ) -> IntervalRecord | None:
        if reading is None:
            return None
        self._saving.add_waits(self._folder)
        folded = self._folder.fold(
            reading,
            iteration=self._start_iteration + self._iterations,
            epoch=self._epoch,
            elapsed_s=self._ledger.elapsed_s(),
        )
        if folded is None:
            return None
        record = self._sources.complete(folded, batch)
        record = dataclasses.replace(record, wall_unix_s=wall_unix_s())
        self._write(record)
        self._write_once_known()
        return record

    def _write_once_known(self, is_final: bool = False) -> None:
        iteration = self._start_iteration + self._iterations
        model = self._sources.read_model_bytes(iteration, is_final)
        if model is not None:
            self._write(model)
        for source, reason in self._sources.unknown.items():
            if source not in self._told:
                self._told[source] = reason
                self._write(UnknownRecord(source, reason, iteration))

    def _publish(self) -> None:
        if self._unpublished is None:
            self._board.clear()
        else:
            self._board.publish(self._unpublished)
            self._unpublished = None

    def note_source_off(self, source: str, reason: str) -> None:
        """Leave in the evidence why a figure is missing from here on."""
        if source == 'ledger':
            self._anchors.stop()
        if source == 'batch contents':
            self._count_images, self._images = no_images, None
        if source in ('interval', 'scalars'):
            # nobody else takes the last values off LoggerHook's lines
            self._board.clear()
        if source != 'evidence':
            iteration = self._start_iteration + self._iterations
            self._write(SourceOffRecord(source, reason, iteration))

    def _write(self, record: Any) -> None:
        if self._writer is not None:
            self._guard.run('evidence', self._writer.write, record)

    def finish(self, status: str, error: str | None) -> Path | None:
        """Close everything; a second call does nothing.

        Args:
            status: ``completed``, ``interrupted`` or ``failed``.
            error: Type name of the exception that ended training.

        Returns:
            The evidence file, for the summary; ``None`` when there is none.
        """
        self._guard.clean_up('ledger', self._anchors.close)
        self._saving.leave()
        # read once: what we ourselves do from here on is no part of training
        reading = self._guard.run('ledger', self._read_interval)
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
        self, reading: LedgerReading | None, status: str, error: str | None
    ) -> EndRecord:
        # a ledger that was switched off stands still: its totals would be a lie
        return EndRecord(
            status=status,
            iterations=self._iterations,
            ledger_s=reading.wall_s if reading else {},
            hooks_s=reading.hooks_s if reading else {},
            duration_s=self._ledger.elapsed_s() if reading else None,
            saves=self._saves,
            error=error,
        )

    def _note_save(self) -> None:
        # of a Runner, the first rank alone saves; a FlexibleRunner's ranks all do
        if self._runner.rank and isinstance(self._runner, Runner):
            return
        self._saves += 1
        self._folder.add_save()
        self._sources.gpu.interrupt()


def no_images(batch: Any) -> None:
    """Before the sources are open, nobody counts."""
