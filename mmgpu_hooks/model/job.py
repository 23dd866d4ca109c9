"""What a whole job takes: its iterations, the starts of its epochs, its saves."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np

from mmgpu_hooks.model.prediction import estimate_iter_s
from mmgpu_hooks.model.simulation import Loop, make_loop, simulate_loop
from mmgpu_hooks.model.workload import Workload

START_ERROR = 0.3
"""Relative standard error of what the start of an epoch adds."""

_FEWEST, _TURNS = 64, 8

_LONG = 20
"""Times the batches that are simulated of its start: in an epoch so long, which of them
come first makes 0.4 % at most, with costs that vary by twice their mean."""


@dataclass(frozen=True)
class Setting:
    """What of the loader is chosen together."""

    num_workers: int
    """0 loads in the loop."""
    prefetch_factor: int
    """Batches in flight per worker."""
    persistent_workers: bool
    """Whether workers live through all epochs."""


@dataclass(frozen=True)
class JobPlan:
    """A training from first to last iteration."""

    iterations: int
    """Of one epoch."""
    epochs: int = 1
    saves_s: float = 0.0
    """What all of its checkpoint saves take, with any setting of the loader."""


# a choice asks for the same settings again and again
@functools.lru_cache(maxsize=512)
def estimate_job_s(workload: Workload, setting: Setting, plan: JobPlan) -> float:
    """Seconds of a whole job: the iterations, the epochs' starts, the saves.

    Every epoch begins with no batch made; without persistent workers they are started
    first.

    Args:
        workload: What the run says.
        setting: Of the loader.
        plan: At least one epoch of one iteration.
    """
    num_workers, prefetch = setting.num_workers, setting.prefetch_factor
    iter_s = estimate_iter_s(workload, num_workers, prefetch)
    steady_s = plan.epochs * plan.iterations * iter_s + plan.saves_s
    if num_workers == 0:
        return steady_s
    count = min(plan.iterations, max(_FEWEST, 4 * num_workers * prefetch))
    # as many different costs as batches: they come up to their mean
    loop = make_loop(workload, num_workers, prefetch, count)
    epoch = replace(loop, batches=count)
    turns = _TURNS if plan.iterations < _LONG * count else 1
    starts = 1 if setting.persistent_workers else plan.epochs
    cold = replace(epoch, start_s=workload.worker_start_s)
    starts_s = starts * (_epoch_s(cold, count, turns) - count * iter_s)
    if plan.epochs > starts:
        warm_s = _epoch_s(epoch, count, turns) - count * iter_s
        starts_s += (plan.epochs - starts) * warm_s
    return steady_s + starts_s


def _epoch_s(epoch: Loop, count: int, turns: int) -> float:
    """How long an epoch takes, whichever of the batches come first: their mean."""
    whole_s = 0.0
    for first in (turn * count // turns for turn in range(turns)):
        shifted = replace(
            epoch,
            batch_cpu_s=np.roll(epoch.batch_cpu_s, -first).tolist(),
            batch_wait_s=np.roll(epoch.batch_wait_s, -first).tolist(),
        )
        whole_s += simulate_loop(shifted, count).seconds
    return whole_s / turns


def first_batch_s(workload: Workload) -> float:
    """What an epoch's first wait takes beyond a usual one, at the run's own setting.

    Without the start of workers.
    """
    workers, prefetch = workload.num_workers, workload.prefetch_factor
    even = replace(
        workload,
        batch_time=replace(workload.batch_time, std_s=0.0),
        batch_cpu=replace(workload.batch_cpu, std_s=0.0),
    )
    loop = make_loop(even, workers, prefetch, _FEWEST)
    steady = simulate_loop(loop, _FEWEST, 3 * workers * prefetch)
    usual_s = (steady.wait_s + steady.fetch_s) / _FEWEST
    first = simulate_loop(loop, 1)
    return max(first.wait_s + first.fetch_s - usual_s, 0.0)
