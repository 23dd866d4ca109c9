"""One run's recording: the ledger, the sources and the evidence file together."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from mmengine.runner import IterBasedTrainLoop

from mmgpu_hooks.evidence.interval import IntervalFolder, LedgerReading
from mmgpu_hooks.evidence.ledger import TimeLedger
from mmgpu_hooks.evidence.writer import EvidenceWriter, evidence_name
from mmgpu_hooks.hooks.anchors import LoopAnchors
from mmgpu_hooks.hooks.guard import Guard
from mmgpu_hooks.hooks.log_schedule import LogSchedule
from mmgpu_hooks.hooks.run_record import read_run_record, vis_data_folder
from mmgpu_hooks.hooks.scalars import ScalarBoard
from mmgpu_hooks.hooks.sources import Sources
from mmgpu_hooks.records import (
    EndRecord,
    IntervalRecord,
    RunRecord,
    SourceOffRecord,
)
from mmgpu_hooks.telemetry.clock import (
    Clock,
    monotonic_s,
    process_cpu_s,
    thread_cpu_s,
    wall_unix_s,
)
from mmgpu_hooks.telemetry.loader_probe import count_images


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
        self._ledger = TimeLedger(monotonic_s, _loading_cpu_clock(runner))
        self._folder = IntervalFolder(self._read_ledger())
        self._anchors = LoopAnchors(
            self._ledger,
            guard,
            on_epoch=self._note_first_wait,
            on_save=self._note_save,
            is_replaying=_is_replaying(runner),
        )
        self._first_wait = True
        self._restarts = _count_restarts(runner)
        self._unpublished: IntervalRecord | None = None
        self._iterations = 0
        self._saves = 0
        self._last_iteration = 0
        self._last_epoch = 0
        self._writer: EvidenceWriter | None = None

    def begin(self) -> None:
        """Open the sources, write the run record and set the anchors."""
        runner = self._runner
        self._sources.open(runner, self._note_first_wait)
        run = self._guard.run(
            'run record',
            read_run_record,
            runner,
            started_unix_s=wall_unix_s(),
            interval_iterations=self._schedule.interval,
            host=self._sources.host,
            gpu=self._sources.gpu_device,
            device=self._sources.device,
            unknown={**self._sources.unknown, **self._guard.off},
        )
        if run is not None:
            self._guard.run('evidence', self._open_writer, run)
        self._anchors.install(runner)

    def _open_writer(self, run: RunRecord) -> None:
        path = vis_data_folder(self._runner) / evidence_name(run.rank)
        self._writer = EvidenceWriter(_unused_path(path))
        self._writer.write(run)

    def _note_first_wait(self) -> None:
        self._first_wait = True

    def _read_ledger(self) -> LedgerReading:
        wall = self._ledger.totals()
        return LedgerReading(wall, self._ledger.data_wait_cpu_s)

    def end_iteration(self, batch_idx: int, batch: Any) -> None:
        """Count one iteration; at the end of an interval, record and publish it."""
        self._guard.run('ledger', self._add_iteration, batch)
        # before LoggerHook resets the allocator's peak
        is_logged = self._schedule.is_logged(batch_idx)
        if is_logged:
            self._sources.observe_cuda_memory()
        if self._schedule.ends_interval(is_logged, self._folder.iterations):
            self._unpublished = self._record_interval(batch)
        if is_logged:
            self._guard.run('scalars', self._publish)

    def observe_cuda_memory(self) -> None:
        """Look at the allocator's peaks before somebody resets them."""
        self._sources.observe_cuda_memory()

    def _add_iteration(self, batch: Any) -> None:
        restarts = _count_restarts(self._runner)
        self._folder.add_iteration(
            self._read_ledger(),
            first_of_epoch=self._first_wait or restarts != self._restarts,
            images=self._guard.run('image count', count_images, batch),
        )
        self._first_wait = False
        self._restarts = restarts
        self._iterations += 1
        self._sources.iterations = self._iterations
        self._last_iteration = self._runner.iter + 1
        self._last_epoch = self._runner.epoch + 1

    def _record_interval(self, batch: Any = None) -> IntervalRecord | None:
        if 'ledger' in self._guard.off:
            return None
        folded = self._folder.fold(
            iteration=self._last_iteration,
            epoch=self._last_epoch,
            elapsed_s=self._ledger.elapsed_s(),
        )
        if folded is None:
            return None
        record = self._sources.complete(folded, batch)
        record = dataclasses.replace(record, wall_unix_s=wall_unix_s())
        self._write(record)
        return record

    def _publish(self) -> None:
        if self._unpublished is None:
            self._board.clear()
        else:
            self._board.publish(self._unpublished)
            self._unpublished = None

    def note_source_off(self, source: str, reason: str) -> None:
        """Leave in the evidence why a figure is missing from here on."""
        if source in ('interval', 'scalars'):
            # nobody else takes the last values off LoggerHook's lines
            self._board.clear()
        if source != 'evidence':
            self._write(SourceOffRecord(source, reason, self._last_iteration))

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
        self._guard.run('last interval', self._record_interval)
        end = self._guard.run('end', self._end, status, error)
        if end is not None:
            self._write(end)
        self._sources.close()
        writer, self._writer = self._writer, None
        if writer is None:
            return None
        self._guard.clean_up('evidence', writer.close)
        return writer.path

    def _end(self, status: str, error: str | None) -> EndRecord:
        # a ledger that was switched off stands still: its totals would be a lie
        is_off = 'ledger' in self._guard.off
        return EndRecord(
            status=status,
            iterations=self._iterations,
            ledger_s={} if is_off else self._ledger.totals(),
            duration_s=None if is_off else self._ledger.elapsed_s(),
            saves=self._saves,
            error=error,
        )

    def _note_save(self) -> None:
        self._saves += 1
        self._folder.add_save()


def _loading_cpu_clock(runner: Any) -> Clock:
    # without workers the loading has threads of its own (OpenCV, torch)
    loads_itself = getattr(runner.train_dataloader, 'num_workers', None) == 0
    return process_cpu_s if loads_itself else thread_cpu_s


def _is_replaying(runner: Any) -> bool:
    """Whether a resumed loop first draws again every batch it had trained on."""
    loop = runner.train_loop
    return isinstance(loop, IterBasedTrainLoop) and loop.iter > 0


def _count_restarts(runner: Any) -> int:
    # an iteration-based loop restarts persistent workers without a new iterator
    endless = getattr(runner.train_loop, 'dataloader_iterator', None)
    restarts = getattr(endless, '_epoch', 0)
    return restarts if isinstance(restarts, int) else 0


def _unused_path(path: Path) -> Path:
    """``path``, or a numbered one where this Runner trained before."""
    number = 1
    unused = path
    while unused.exists():
        number += 1
        unused = path.with_name(f'{path.stem}.{number}{path.suffix}')
    return unused
