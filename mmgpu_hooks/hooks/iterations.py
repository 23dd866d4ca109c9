"""Iterations as the ledger saw them, with the epochs that they belong to."""

from __future__ import annotations

from typing import Any, Callable

from mmgpu_hooks.evidence.interval import IntervalFolder
from mmgpu_hooks.evidence.ledger import TimeLedger
from mmgpu_hooks.evidence.ledger_parts import LedgerReading
from mmgpu_hooks.hooks.guard import Guard
from mmgpu_hooks.hooks.train_loop import endless_iterator


class Iterations:
    """Counts what the ledger gives, and folds it into records.

    Args:
        runner: The runner that trains.
        ledger: Tells where iterations ended.
        guard: Switches the ledger off when it fails.
    """

    def __init__(self, runner: Any, ledger: TimeLedger, guard: Guard) -> None:
        self._runner = runner
        self._ledger = ledger
        self._guard = guard
        self._start = runner.iter
        self.epoch = runner.epoch + 1
        """1-based."""
        self._endless = endless_iterator(runner)
        self._restarts = self._endless._epoch if self._endless is not None else 0
        self.done = 0
        """In this run."""
        self._fold_from_here()

    def _fold_from_here(self) -> None:
        workers = getattr(self._runner.train_dataloader, 'num_workers', 0)
        reading = self._ledger.read()
        self._folder = IntervalFolder(
            reading, (0.0, 0.0, 0.0), has_workers=bool(workers)
        )
        self._folder.note_first()

    def begin(self) -> None:
        """Training begins now."""
        self._ledger.start()
        self._fold_from_here()

    def book(
        self, between: list[int], is_due: Callable[[int, Any], None]
    ) -> Callable[..., None]:
        """An ``after_train_iter`` at which an iteration ends.

        Args:
            between: Two numbers of iterations; strictly between them nothing is due.
            is_due: Called with the iteration's number and batch at any other.
        """
        run, endless = self._guard.run, self._endless
        lap = self._ledger.book_laps(
            between, is_due, lambda error: self._guard.switch_off('ledger', error)
        )
        if endless is None:
            return lap

        def after_train_iter(*args: Any, **kwargs: Any) -> None:
            # this loop restarts persistent workers without a new iterator
            if endless._epoch != self._restarts:
                self._restarts = endless._epoch
                run('ledger', self.begin_epoch)
            lap(*args, **kwargs)

        return after_train_iter

    def take(self) -> None:
        """Count those that ended since the last call."""
        laps = self._ledger.drain_laps()
        self.done += len(laps)
        self._folder.add_laps(laps)

    def count(self) -> int:
        """How many are done."""
        self._guard.run('ledger', self.take)
        return self.done

    @property
    def number(self) -> int:
        """Of the last one, counted over the whole training."""
        return int(self._start + self.done)

    @property
    def folder(self) -> IntervalFolder:
        """Those counted since the last record."""
        return self._folder

    @property
    def in_interval(self) -> int:
        """Since the last record."""
        return self._folder.iterations

    def begin_epoch(self) -> None:
        """The wait that is on, or the next one, begins an epoch."""
        self.note_first()
        self.epoch = self._runner.epoch + 1

    def note_first(self) -> None:
        """The next wait to end is one in which workers may have started."""
        self.take()
        self._folder.note_first()

    def add_save(self) -> None:
        """Count a checkpoint save."""
        self._folder.add_save()

    def read(self) -> LedgerReading | None:
        """The ledger's totals up to now; ``None`` when it is off."""
        return self._guard.run('ledger', self._read)

    def _read(self) -> LedgerReading:
        self.take()
        self._ledger.book_startup(self._folder.fold_startup())
        return self._ledger.read()

    def fold(self, reading: LedgerReading) -> dict[str, Any] | None:
        """Fields of a record of those since the last; ``None`` when there were none."""
        return self._folder.fold(
            reading,
            iteration=self.number,
            epoch=self.epoch,
            elapsed_s=self._ledger.elapsed_s(),
        )
