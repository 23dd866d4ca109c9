"""Times the parts of a validation or test that runs without training."""

from __future__ import annotations

from typing import Any

from mmgpu_hooks.hooks.part_timers import PartTimers
from mmgpu_hooks.measure.clock import monotonic_s
from mmgpu_hooks.measure.validation_parts import DATA_WAIT, ValidationParts
from mmgpu_hooks.schema.recorded import ValidationRecord

LONE_LOOP_SOURCE = 'test'
"""Name, in log and evidence file, of the timing of a separate test or validation."""


class LoneLoop:
    """Times one test or validation without training, by part, from start to end.

    The wait for data is what lies between two iterations, as the hook sees them.

    Args:
        runner: That runs it.
        loop: The loop.
    """

    def __init__(self, runner: Any, loop: Any) -> None:
        self._began_s = monotonic_s()
        self._parts = ValidationParts({})
        evaluator = getattr(loop, 'evaluator', None)
        self._timers = PartTimers(runner, evaluator, runner.world_size)
        self._timers.open(self._parts)
        self._wait: int | None = None
        self._iterations = 0

    def begin_wait(self, *, is_first: bool = False) -> None:
        """Begins to time the loop's wait for the next batch of a test or validation.

        Args:
            is_first: Of the loop.
        """
        self._iterations += not is_first
        self._wait = self._parts.begin(DATA_WAIT)

    def end_wait(self) -> None:
        """Stops timing the wait for a batch, as the batch came or the loop ended."""
        wait, self._wait = self._wait, None
        self._parts.end(wait)

    def end(self) -> ValidationRecord:
        """Stops timing the test or validation; returns the record of its times."""
        self.close()
        wall_s = monotonic_s() - self._began_s
        return ValidationRecord(
            iteration=0,
            wall_s=wall_s,
            iterations=self._iterations,
            parts_s=self._parts.sum_up(wall_s),
            metrics_s=self._parts.sum_metrics('metric'),
            process_s=self._parts.sum_metrics('process'),
        )

    def close(self) -> None:
        """Restores replaced methods of a test or validation; may be called twice."""
        self._timers.close()
