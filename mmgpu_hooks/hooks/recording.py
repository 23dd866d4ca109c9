"""State of a training that is recorded: iterations, evidence file, failed measurements.

The guard keeps every failure of ours away from training.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Callable, TypeVar

from mmgpu_hooks.hooks.loop_timer import LoopTimer
from mmgpu_hooks.measure.absent import AbsentError, SourceError
from mmgpu_hooks.schema.recorded import (
    EvidenceLine,
    RunRecord,
    SourceOffRecord,
    UnknownRecord,
)
from mmgpu_hooks.schema.run_folder import evidence_name, unused_path
from mmgpu_hooks.schema.text import Text, quoted
from mmgpu_hooks.schema.writer import EvidenceWriter, open_evidence

_T = TypeVar('_T')


def vis_data_folder(runner: Any) -> Path:
    """Returns the absolute ``vis_data`` folder of MMEngine's local backend."""
    return Path(os.path.abspath(runner.log_dir)) / 'vis_data'


class Guard:
    """Calls measuring code and catches its errors, so that training goes on.

    A source that fails is switched off for good, which is said once.

    Args:
        on_off: Called once per failing source with its name and the reason.
    """

    def __init__(self, on_off: Callable[[str, str], None]) -> None:
        self._on_off = on_off
        self.off: dict[str, str] = {}
        self.absent: dict[str, str] = {}
        """Reasons why sources of measured values do not exist here, by source."""

    def is_on(self, source: str) -> bool:
        """True if a source of measured values exists and has not failed."""
        return source not in self.off and source not in self.absent

    def note_absent(self, source: str, reason: str) -> None:
        """Notes that a source of measured values does not exist here, and why."""
        self.absent[str(source)] = str(reason)

    def run(
        self, source: str, function: Callable[..., _T], *args: Any, **kwargs: Any
    ) -> _T | None:
        """Calls a measuring function unless its source has failed; catches its errors.

        Returns:
            What it returned, or ``None`` when it failed now or before.
        """
        if source in self.off:
            return None
        return self.clean_up(source, function, *args, **kwargs)

    def clean_up(
        self, source: str, function: Callable[..., _T], *args: Any, **kwargs: Any
    ) -> _T | None:
        """Calls a function and catches its errors, also for a switched-off source."""
        try:
            return function(*args, **kwargs)
        except AbsentError as error:
            self.note_absent(source, error.said)
            return None
        except Exception as error:  # training must not see it
            if _is_of_dead_worker(error):
                raise
            self.switch_off(source, error)
            return None

    def switch_off(self, source: str, error: Exception) -> None:
        """Switches off a source of measured values that failed, and logs why, once."""
        if source in self.off:
            return
        # our own error is a sentence; of a foreign one the type says more than the text
        text = error.said if isinstance(error, SourceError) else _name_error(error)
        # a name out of an enum is text from here on; a text is said in each language
        name = source if isinstance(source, Text) else str(source)
        self.off[str(source)] = str(text)
        with contextlib.suppress(Exception):  # not even the warning may do harm
            self._on_off(name, text)


def _is_of_dead_worker(error: Exception) -> bool:
    """True for what PyTorch's signal handler raises where a loader worker has died.

    It comes in the middle of any code, and is meant for the training.
    """
    is_of_torch = type(error) is RuntimeError
    return is_of_torch and str(error).startswith('DataLoader worker (pid')


def _name_error(error: Exception) -> Text:
    words = ' '.join(str(error).split())
    return quoted(f'{type(error).__name__}: {words}')


class Recording:
    """State of a training that is recorded: iterations, evidence file, time by part.

    Args:
        runner: The runner, about to enter its train loop.
        hook: The hook that records, with the arguments that users gave it.
        guard: Switches off what fails.
        timer: Times the loop.
    """

    def __init__(self, runner: Any, hook: Any, guard: Guard, timer: LoopTimer) -> None:
        self.runner, self.hook = runner, hook
        self.guard, self.timer, self.ledger = guard, timer, timer.ledger
        self.writer: EvidenceWriter | None = None
        self.recorded: int = runner.iter
        """Number of training iterations up to the end of the last log interval."""
        self.epoch = runner.epoch + 1
        self.epoch_start = self.start = self.recorded
        """Number of training iterations done when the present epoch began."""

    @property
    def iteration(self) -> int:
        """Number of training iterations done so far; thread-safe."""
        return self.recorded + self.ledger.iterations_now

    def count_iterations(self) -> int:
        """Sums up recorded times; returns the number of training iterations so far."""
        self.guard.run('interval', self.ledger.sum_up)
        return self.iteration

    def open(self, run: RunRecord) -> None:
        """Opens the evidence file, and writes its first record.

        Args:
            run: The first line of it.
        """
        path = vis_data_folder(self.runner) / evidence_name(run.rank)
        self.writer = open_evidence(unused_path(path), run)

    def close(self) -> None:
        """Closes the evidence file; a second call does nothing."""
        writer, self.writer = self.writer, None
        if writer is not None:
            self.guard.clean_up('evidence', writer.close)

    def begin_epoch(self) -> None:
        """Notes the number of the epoch that begins, and the iterations done so far."""
        self.epoch = self.runner.epoch + 1
        self.epoch_start = self.count_iterations()

    def add_recorded(self, iterations: int) -> None:
        """Adds a log interval's iterations to the number that have been recorded."""
        self.recorded += iterations

    def write(self, record: EvidenceLine) -> None:
        """Adds a record to the evidence file, if it is open."""
        if self.writer is not None:
            self.guard.run('evidence', self.writer.write, record)

    def write_reason(
        self, kind: type[UnknownRecord | SourceOffRecord], source: str, reason: str
    ) -> None:
        """Records in the evidence file why a value is not measured any more."""
        self.write(
            kind(source=str(source), reason=str(reason), iteration=self.recorded)
        )
