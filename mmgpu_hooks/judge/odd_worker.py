"""Finds the one worker of a loader that the host treats worse than the others."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mmgpu_hooks.judge.columns import Intervals, total

_FAR = 3.0
"""How many times what is usual among the others is remarked on."""
_LEAST_S = 1.0
"""Below that over the whole run, nothing is said of a worker's seconds."""
_LEAST_PCT = 10.0
"""Share of its time that a worker waits for a core, beyond that of the others."""


class OddWorker(NamedTuple):
    """One worker of the loader that stands out of the others."""

    worker: int
    """Its id, from 0."""
    figure: str
    """``affinity_cpus``: CPUs it may run on; ``run_delay_pct``: share of its time that
    it waited for a core; ``batch_cpu_s``: its CPU for a batch."""
    own: float
    others: float
    """Median of the others."""


def find_odd_worker(windows: Intervals) -> OddWorker | None:
    """The worker that is confined to fewer CPUs, waits for a core or burns far more.

    Args:
        windows: Intervals that have workers.

    Returns:
        ``None`` when none stands out, or nothing is known of each.
    """
    return _confined(windows) or _starved(windows) or _burning(windows)


def _confined(windows: Intervals) -> OddWorker | None:
    table = windows.lists('workers.worker_affinity_cpus')
    # workers that were never known are not in the table at all
    cpus = [float(np.nanmin(column)) for column in table.T]
    if len(cpus) < 2 or min(cpus) == max(cpus):
        return None
    return _odd('affinity_cpus', cpus, min)


def _starved(windows: Intervals) -> OddWorker | None:
    known = _listing(windows, 'workers.worker_run_delay_s')
    delays_s = _sums(known, 'workers.worker_run_delay_s')
    window_s = total(known.column('workers.window_s'))
    if not delays_s or max(delays_s) < _LEAST_S or window_s <= 0:
        return None
    # of all threads of a worker, which may wait at the same time
    shares_pct = [min(100 * one / window_s, 100.0) for one in delays_s]
    odd = _odd('run_delay_pct', shares_pct, max)
    is_far = odd.own >= max(_FAR * odd.others, odd.others + _LEAST_PCT)
    return odd if is_far else None


def _burning(windows: Intervals) -> OddWorker | None:
    known = _listing(windows, 'workers.worker_cpu_s')
    known = _listing(known, 'workers.worker_batches')
    cpu_s = _sums(known, 'workers.worker_cpu_s')
    batches = _sums(known, 'workers.worker_batches')
    if not cpu_s or len(cpu_s) != len(batches) or not all(batches):
        return None
    if max(cpu_s) < _LEAST_S:
        return None
    odd = _odd('batch_cpu_s', [s / n for s, n in zip(cpu_s, batches)], max)
    return odd if odd.own >= _FAR * odd.others else None


def _listing(windows: Intervals, field: str) -> Intervals:
    """Those that know the figure of each worker."""
    return windows.where([bool(one) for one in windows.values(field)])


def _sums(windows: Intervals, field: str) -> list[float]:
    """By worker; empty of fewer than two, and where their number changed."""
    table = windows.lists(field)
    if table.shape[1] < 2 or np.isnan(table).any():
        return []
    return [total(column) for column in table.T]


def _odd(
    figure: str, figures: Sequence[float], pick: Callable[[Sequence[float]], float]
) -> OddWorker:
    worker = figures.index(pick(figures))
    others = [one for number, one in enumerate(figures) if number != worker]
    return OddWorker(worker, figure, figures[worker], statistics.median(others))
