"""Logs the progress of a resumed training that loads old batches only to skip them."""

from __future__ import annotations

from typing import Any

from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show.words import say

FIRST_S, AGAIN_S = 10.0, 60.0
"""Seconds from resuming to the first progress line, and between later lines."""

CURE = phrase("optimize='resume' skips them without loading")


class ResumeProgress:
    """Logs how many old batches a resumed training has loaded, only to skip them.

    Args:
        logger: The Runner's.
        count: How many they are.
        clock: Monotonic seconds.
    """

    def __init__(self, logger: Any, count: int, clock: Clock = monotonic_s) -> None:
        self._logger, self._count, self._clock = logger, count, clock
        self._began_s: float | None = None
        self._due_s = 0.0

    def note(self, left: int) -> None:
        """Notes that a batch to be skipped is about to be loaded; logs progress if due.

        Args:
            left: How many are left, it included.
        """
        now_s, done = self._clock(), self._count - left
        if self._began_s is None:
            self._began_s, self._due_s = now_s, now_s + FIRST_S
        if now_s < self._due_s or done <= 0:
            return
        self._due_s = now_s + AGAIN_S
        passed_s = now_s - self._began_s
        said = phrase(
            'GPUEfficiencyHook: resuming has loaded {done} of {batches} only to skip '
            'them, in {passed_s:sum}; {left_s} still. {cure}.',
            done=done,
            batches=self._count,
            passed_s=passed_s,
            left_s=left * passed_s / done,
            cure=CURE,
        )
        self._logger.info(say(said))
