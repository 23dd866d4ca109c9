"""Measures the CPU seconds to copy MMEngine's scalar histories, which keep growing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mmgpu_hooks.measure.clock import Clock, thread_cpu_s

LEAST_VALUES = 10_000
"""Smallest number of values of a scalar history whose copy is timed.

Shorter ones cost below 0.5 ms an iteration.
"""


class CopiedHistories(NamedTuple):
    """Length and number of scalar histories, and CPU seconds to copy them all once."""

    values: int
    """Number of values in the longest scalar history."""
    scalars: int
    copy_s: float


class HistoryMeter:
    """Measures the CPU time of the copy that MMEngine makes of each scalar history.

    Args:
        histories: The message hub's, by name: anything with ``data``, two arrays.
        clock: CPU seconds of the calling thread.
    """

    def __init__(self, histories: Mapping[str, Any], clock: Clock = thread_cpu_s):
        self._histories, self._clock = histories, clock
        self._due = LEAST_VALUES

    def read(self, iterations: int) -> CopiedHistories | None:
        """Measures CPU seconds to copy histories whenever iterations have doubled.

        Args:
            iterations: Of the whole training: no history is longer.

        Returns:
            ``None`` where they have not doubled, or no history is long.
        """
        if iterations < self._due:
            return None
        lengths = [len(buffer.data[0]) for buffer in self._histories.values()]
        values = max(lengths, default=0)
        self._due = 2 * max(iterations, LEAST_VALUES)
        if values < LEAST_VALUES:
            return None
        longest = max(self._histories.values(), key=lambda each: len(each.data[0]))
        log, counts = longest.data
        began_s = self._clock()
        np.append(log, 0.0)
        np.append(counts, 1)
        copy_s = self._clock() - began_s
        scalars = sum(2 * length >= values for length in lengths)
        return CopiedHistories(values, scalars, scalars * max(copy_s, 0.0))
