"""Records a validation's progress in the evidence file, in case it is killed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mmgpu_hooks.hooks.recording import Recording
from mmgpu_hooks.measure.periodic import PeriodicThread
from mmgpu_hooks.measure.validation_parts import PartCall, ValidationState
from mmgpu_hooks.schema.recorded import ValidationProgressRecord

PROGRESS_THREAD = 'mmgpu-validation'

_LOOK_S = 1.0
_CALL_S, _CALL_SHARE = 1.0, 0.01
"""Smallest call duration (s), and time since the last record (share), for a new one.

The share (0 to 1) is of the validation so far. The duration is doubled each time."""
_PAUSE_S, _PAUSE_SHARE = 30.0, 0.05
"""Longest pause between progress records: seconds, share (0 to 1) of the validation.

The larger of both. At the start the pause is as long as the validation was by then."""


class ProgressPace:
    """Decides when to write a validation's progress into the evidence file; no I/O."""

    def __init__(self) -> None:
        self._noted_s = 0.0
        """Seconds from the validation's start to its last progress record."""
        self._call: PartCall | None = None
        self._since_s, self._due_s = -1.0, _CALL_S

    def note(self, state: ValidationState) -> None:
        """Notes that the validation's progress has been written.

        Args:
            state: As it stands there.
        """
        self._noted_s = state.elapsed_s

    def is_due(self, state: ValidationState, now_s: float) -> bool:
        """True if a record of the validation's progress should be written now.

        Args:
            state: Where the validation stands.
            now_s: By the same clock.
        """
        if (state.call, state.since_s) != (self._call, self._since_s):
            self._call, self._since_s = state.call, state.since_s
            self._due_s = _CALL_S
        past_s, lasts_s = state.elapsed_s - self._noted_s, now_s - state.since_s
        if lasts_s >= self._due_s and past_s >= _CALL_SHARE * state.elapsed_s:
            while self._due_s <= lasts_s:
                self._due_s *= 2
            return True
        pause_s = min(max(self._noted_s, _LOOK_S), _PAUSE_S)
        return past_s >= max(pause_s, _PAUSE_SHARE * state.elapsed_s)


class ValidationProgress:
    """Records in the evidence file which part of a validation runs.

    At its start and when each metric first processes a batch, gathers or computes, at
    once; else from a thread, now and then.

    Args:
        recording: The run.
        source: What the guard knows validations by.
        iteration: Iterations of training done.
        read: Says where it stands; from any thread.
        count_batches: Counts the batches that it took; from any thread.
        batches: Of all of it; ``None`` is unknown.
        clock: That of ``read``.
    """

    def __init__(
        self,
        recording: Recording,
        source: str,
        iteration: int,
        read: Callable[[], ValidationState],
        count_batches: Callable[[], int],
        batches: int | None,
        clock: Callable[[], float],
    ) -> None:
        self._recording, self._iteration = recording, iteration
        self._read, self._clock, self._pace = read, clock, ProgressPace()
        self._count_batches, self._batches = count_batches, batches
        self._source = source
        self.note_first()
        look = partial(recording.guard.run, source, self._look)
        self._thread = PeriodicThread(PROGRESS_THREAD, look, _LOOK_S)

    def note_first(self, _: PartCall | None = None) -> None:
        """Records a validation's progress at once, in the thread that validates."""
        self._recording.guard.run(self._source, self._note)

    def _look(self) -> float:
        if self._pace.is_due(self._read(), self._clock()):
            self._note()
        return _LOOK_S

    def _note(self) -> None:
        state = self._read()
        self._pace.note(state)
        self._recording.write(
            ValidationProgressRecord(
                iteration=self._iteration,
                elapsed_s=state.elapsed_s,
                batches=self._count_batches(),
                batches_in_all=self._batches,
                part=state.call.part,
                metric=state.call.metric,
                call_s=max(self._clock() - state.since_s, 0.0),
                parts_s=state.parts_s,
                metrics_s=state.sum_metrics('metric') or None,
                process_s=state.sum_metrics('process') or None,
            )
        )

    def end(self) -> None:
        """Asks the thread that records progress to end, without waiting for it."""
        self._thread.ask_to_end()

    def close(self) -> None:
        """Ends the thread that records progress, and waits until it has ended."""
        self._thread.stop()
