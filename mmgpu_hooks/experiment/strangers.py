"""How much of the host others use while trainings of ours run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Callable

from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.measure.host import CpuMeter


class StrangerMeter:
    """Cores that others use, from now on.

    Args:
        own: Each tells the CPU seconds that one of ours used so far, or ``None``.
        meter: Tells the busy share of the host since now.
        clock: Monotonic.
        cpus: Logical CPUs of the host.
    """

    def __init__(
        self,
        own: Sequence[Callable[[], float | None]],
        meter: CpuMeter | None = None,
        clock: Clock = monotonic_s,
        cpus: int | None = None,
    ) -> None:
        self._own = own
        self._meter = meter or CpuMeter()
        self._clock = clock
        self._cpus = cpus or os.cpu_count()
        self._begin_s, self._begin_own_s = clock(), self._read_own()

    def read_cores(self) -> float | None:
        """Mean since construction; ``None`` where a part of it is unknown."""
        busy_pct = self._meter.read().system_cpu_pct
        passed_s, own_s = self._clock() - self._begin_s, self._read_own()
        if busy_pct is None or self._cpus is None or passed_s <= 0:
            return None
        if own_s is None or self._begin_own_s is None:
            return None
        own_cores = (own_s - self._begin_own_s) / passed_s
        return max(busy_pct / 100 * self._cpus - own_cores, 0.0)

    def _read_own(self) -> float | None:
        parts = [read() for read in self._own]
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None
