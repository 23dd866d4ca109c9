"""Folds what the host did to the run."""

from __future__ import annotations

import math

from mmgpu_hooks.evidence.interval_table import IntervalTable
from mmgpu_hooks.evidence.weights import (
    max_known,
    min_known,
    sum_known,
    weighted_mean,
)
from mmgpu_hooks.schema import HostSummary


def fold_host(table: IntervalTable, steady: IntervalTable) -> HostSummary | None:
    """Fold the host's windows.

    Args:
        table: All of the run; sums and extremes are taken over them.
        steady: Those without the warm-up; pressure is taken over them.
    """
    every = table.having('host')
    if not len(every):
        return None
    calm = steady.having('host')
    calm_s = calm.floats('duration_s').filled()
    throttled = every.floats('host', 'throttled_s')
    told_s = math.fsum(throttled.of_known(every.floats('duration_s').filled()))
    throttled_s = sum_known(throttled)
    return HostSummary(
        seconds=math.fsum(calm_s),
        cpu_pressure_pct=weighted_mean(calm.floats('host', 'cpu_pressure_pct'), calm_s),
        io_pressure_pct=weighted_mean(calm.floats('host', 'io_pressure_pct'), calm_s),
        memory_pressure_pct=weighted_mean(
            calm.floats('host', 'memory_pressure_pct'), calm_s
        ),
        throttled_s=throttled_s,
        throttled_pct=(
            100 * throttled_s / told_s if throttled_s is not None and told_s else None
        ),
        swap_in_bytes=sum_known(every.ints('host', 'swap_in_bytes')),
        swap_out_bytes=sum_known(every.ints('host', 'swap_out_bytes')),
        swap_used_bytes=max_known(every.ints('host', 'swap_used_bytes')),
        ram_available_bytes=min_known(every.ints('host', 'ram_available_bytes')),
        shm_free_bytes=min_known(every.ints('host', 'shm_free_bytes')),
        open_files=max_known(every.ints('host', 'open_files')),
    )
