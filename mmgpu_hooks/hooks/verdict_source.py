"""Judges a running training every hour, so that even a killed one has a verdict.

Judging takes a second of CPU and the libraries of analysis, so a child starts by
``exec``, at nice 19, reads the evidence so far and prints one record. The kernel ends
it after 120 s, by its own alarm: nothing waits for it and no thread watches it. The
hook looks whether it is over when an interval ends, and writes the record itself, so
that the file has one writer. At the end the child that writes the config gives the
record as well. Where no config is written, the training process makes it of what it has
judged for the summary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from mmgpu_hooks.adviser.process import HourlyAdviser
from mmgpu_hooks.hooks.recording import Recording
from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.schema.recorded import VerdictRecord

VERDICT_SOURCE = 'hourly verdict'
"""Name, in warnings and evidence file, of the code that judges a training hourly."""

VERDICT_PERIOD_S = 3600.0
"""Seconds until the first verdict on a training, and between two verdicts."""


class VerdictSource:
    """Judges a training hourly in a child process; adds verdicts to the evidence file.

    A child process judges. It is never waited for: its answer is picked up when an
    interval ends.

    Args:
        recording: The run; its evidence is open.
        write: Adds a verdict to it.
        clock: Monotonic, in seconds.
    """

    def __init__(
        self,
        recording: Recording,
        write: Callable[[VerdictRecord], None],
        clock: Clock = monotonic_s,
    ) -> None:
        self._recording, self._write, self._clock = recording, write, clock
        self._due_s = clock() + VERDICT_PERIOD_S
        self._adviser: HourlyAdviser | None = None

    def follow(self) -> None:
        """Starts a child process that judges the run, if due, or writes its verdict.

        Raises:
            SourceError: If a child gave no answer: the next one would not, either.
        """
        if self._adviser is not None:
            if self._adviser.is_over:
                adviser, self._adviser = self._adviser, None
                self._write(adviser.read())
            return
        writer = self._recording.writer
        if writer is None or (now_s := self._clock()) < self._due_s:
            return
        self._due_s = now_s + VERDICT_PERIOD_S
        # memory that is short now may not be in an hour
        with contextlib.suppress(SourceError):
            self._adviser = HourlyAdviser(
                writer.path, is_commented=self._recording.hook.slurm_comment
            )

    def close(self) -> None:
        """Ends the child process that judges the run, at training's end."""
        if self._adviser is not None:
            self._adviser.end()
