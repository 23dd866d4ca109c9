"""Tells where another DataLoader setting could make a training faster at all.

Asked of each interval's record before a child process is started that searches for one.
"""

from __future__ import annotations

from mmgpu_hooks.schema.recorded import IntervalRecord
from mmgpu_hooks.schema.text import Text, phrase

LEAST_WAIT = 0.03
"""Smallest data wait, as a share of an iteration, that other settings may shorten."""

CROWDED = 0.8
"""Share of the cores in use above which fewer workers may be faster."""

LEAST_INTERVALS = 2
"""Smallest number of log intervals after which a gain may be possible."""


class PossibleGain:
    """Sums up log intervals, to tell if other loader settings could gain anything.

    That is where training waits for data, or where its workers may take cores from it;
    also where the CPU that it uses is unknown. The wait for the first batch of all,
    which no setting spares, is left out.

    Args:
        usable_cores: That this process may use; ``None`` when unknown.
    """

    def __init__(self, usable_cores: float | None) -> None:
        self._usable_cores = usable_cores
        self._intervals = 0
        self._wait_s = self._iter_s = self._duration_s = 0.0
        self._own_cpu_s: float | None = 0.0
        self._system_pct_s = self._system_known_s = 0.0

    def add(self, record: IntervalRecord) -> None:
        """Adds a log interval.

        Args:
            record: Of the interval.
        """
        first_s = 0.0 if self._intervals else record.first_wait_s
        self._intervals += 1
        self._wait_s += record.data_wait.total_s - first_s
        self._iter_s += record.iter.total_s - first_s
        self._duration_s += record.duration_s
        if record.process_cpu_s is None or record.workers is None:
            self._own_cpu_s = None
        elif self._own_cpu_s is not None:
            self._own_cpu_s += record.process_cpu_s + record.workers.cpu_s
        # unknown of short intervals
        if record.system_cpu_pct is not None:
            self._system_pct_s += record.system_cpu_pct * record.duration_s
            self._system_known_s += record.duration_s

    @property
    def why_not(self) -> Text | None:
        """Clause on why nothing can be gained so far; ``None`` if something may be."""
        if self._intervals < LEAST_INTERVALS:
            return phrase('too few intervals yet')
        is_waiting = self._wait_s >= LEAST_WAIT * self._iter_s
        if is_waiting or self._own_cpu_s is None or not self._usable_cores:
            return None
        own_cores = self._own_cpu_s / self._duration_s
        is_crowded = own_cores >= CROWDED * self._usable_cores
        if is_crowded or self._system_pct_s >= 100 * CROWDED * self._system_known_s > 0:
            return None
        return phrase('training does not wait for its loader')
