"""Records a running validation's progress in the evidence, in case it is killed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mmgpu_hooks.hooks.recording import Recording
from mmgpu_hooks.measure.periodic import PeriodicThread
from mmgpu_hooks.measure.validation_parts import PartCall, ValidationState
from mmgpu_hooks.schema.recorded import ValidationProgressRecord

PROGRESS_THREAD = 'mmgpu-validation'

_LOOK_S = 1.0
_CALL_S = 3.0
"""Seconds after which a validation's running call is recorded; later doubled."""
_PAUSE_S, _PAUSE_SHARE = 30.0, 0.05
"""Minimum time between progress records: seconds, and share of the validation."""


class ProgressPace:
    """Decides when to write a validation's progress into the evidence file; no I/O."""

    def __init__(self) -> None:
        self._noted_s = 0.0
        """Seconds from the validation's start to its last progress record."""
        self._call: PartCall | None = None
        self._since_s, self._due_s = -1.0, _CALL_S

    def is_due(self, state: ValidationState, now_s: float) -> bool:
        """True if a record of the validation's progress should be written now.

        Args:
            state: Where the validation stands.
            now_s: By the same clock.
        """
        if (state.call, state.since_s) != (self._call, self._since_s):
            self._call, self._since_s = state.call, state.since_s
            self._due_s = _CALL_S
        pause_s = max(_PAUSE_S, _PAUSE_SHARE * state.elapsed_s)
        lasts_s = now_s - state.since_s
        is_due = lasts_s >= self._due_s
        while self._due_s <= lasts_s:
            self._due_s *= 2
        if not is_due and state.elapsed_s - self._noted_s < pause_s:
            return False
        self._noted_s = state.elapsed_s
        return True


class ValidationProgress:
    """Thread that records in the evidence file which part of a validation runs.

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
        look = partial(recording.guard.run, source, self._look)
        self._thread = PeriodicThread(PROGRESS_THREAD, look, _LOOK_S)

    def _look(self) -> float:
        state, now_s = self._read(), self._clock()
        if self._pace.is_due(state, now_s):
            self._recording.write(
                ValidationProgressRecord(
                    iteration=self._iteration,
                    elapsed_s=state.elapsed_s,
                    batches=self._count_batches(),
                    batches_in_all=self._batches,
                    part=state.call.part,
                    metric=state.call.metric,
                    call_s=max(now_s - state.since_s, 0.0),
                    parts_s=state.parts_s,
                )
            )
        return _LOOK_S

    def end(self) -> None:
        """Asks the thread that records progress to end, without waiting for it."""
        self._thread.ask_to_end()

    def close(self) -> None:
        """Ends the thread that records progress, and waits until it has ended."""
        self._thread.stop()
