"""Finds the one worker of a loader that the host treats worse than the others."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from mmgpu_hooks.evidence.interval_table import IntervalTable
from mmgpu_hooks.evidence.weights import min_known, total
from mmgpu_hooks.schema import OddWorker

_FAR = 3.0
"""How many times what is usual among the others is remarked on."""
_LEAST_S = 1.0
"""Below that over the whole run, nothing is said of a worker's seconds."""
_LEAST_PCT = 10.0
"""Share of its time that a worker waits for a core, beyond that of the others."""


def fold_odd_worker(windows: IntervalTable) -> OddWorker | None:
    """The worker that is confined to fewer CPUs, waits for a core or burns far more.

    Args:
        windows: Intervals that have workers.

    Returns:
        ``None`` when none stands out, or nothing is known of each.
    """
    return _confined(windows) or _starved(windows) or _burning(windows)


def _confined(windows: IntervalTable) -> OddWorker | None:
    field = ('workers', 'worker_affinity_cpus')
    cpus = [min_known(windows.ints(*field, name)) for name in windows.names(*field)]
    known = [float(one) for one in cpus if one is not None]
    if len(known) < len(cpus) or len(known) < 2 or min(known) == max(known):
        return None
    return _odd('affinity_cpus', known, min)


def _starved(windows: IntervalTable) -> OddWorker | None:
    field = ('workers', 'worker_run_delay_s')
    told = windows.having(*field, 0)
    delays_s = _sums(told, field)
    window_s = total(told.floats('workers', 'window_s'))
    if not delays_s or max(delays_s) < _LEAST_S or window_s <= 0:
        return None
    # of all threads of a worker, which may wait at the same time
    shares_pct = [min(100 * one / window_s, 100.0) for one in delays_s]
    odd = _odd('run_delay_pct', shares_pct, max)
    is_far = odd.own >= max(_FAR * odd.others, odd.others + _LEAST_PCT)
    return odd if is_far else None


def _burning(windows: IntervalTable) -> OddWorker | None:
    field, made = ('workers', 'worker_cpu_s'), ('workers', 'worker_batches')
    told = windows.having(*field, 0).having(*made, 0)
    cpu_s = _sums(told, field)
    batches = [total(told.ints(*made, name)) for name in told.names(*made)]
    if not cpu_s or len(cpu_s) != len(batches) or not all(batches):
        return None
    if max(cpu_s) < _LEAST_S:
        return None
    odd = _odd('batch_cpu_s', [s / n for s, n in zip(cpu_s, batches)], max)
    return odd if odd.own >= _FAR * odd.others else None


def _sums(told: IntervalTable, field: tuple[str, ...]) -> list[float]:
    """By worker; empty of fewer than two, and where their number changed."""
    columns = [told.floats(*field, name) for name in told.names(*field)]
    if len(columns) < 2 or not all(column.is_complete for column in columns):
        return []
    return [total(column) for column in columns]


def _odd(
    figure: str, figures: Sequence[float], pick: Callable[[Sequence[float]], float]
) -> OddWorker:
    worker = figures.index(pick(figures))
    others = [one for number, one in enumerate(figures) if number != worker]
    return OddWorker(worker, figure, figures[worker], statistics.median(others))
