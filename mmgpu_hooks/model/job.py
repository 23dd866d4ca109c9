"""What a whole job takes: its iterations, the starts of its epochs, its saves."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np

from mmgpu_hooks.model.prediction import check_setting, estimate_iter_s
from mmgpu_hooks.model.simulation import Loop, make_loop, simulate_loop
from mmgpu_hooks.model.workload import Workload

START_ERROR = 0.3
"""Relative standard error of what the start of an epoch adds."""

_FEWEST, _DRAWS, _TURNS = 64, 512, 8

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
    saves: int = 0
    """Checkpoint saves of the whole job."""
    save_cpu_s: float = 0.0
    """CPU of one save."""
    save_wait_s: float = 0.0
    """What one save waits for anything but a core."""


# a choice asks for the same settings again and again
@functools.lru_cache(maxsize=512)
def estimate_job_s(workload: Workload, setting: Setting, plan: JobPlan) -> float:
    """Seconds of a whole job: the iterations, the epochs' starts, the saves' net cost.

    Every epoch begins with no batch made; without persistent workers they are started
    first. Workers make batches while a save goes on, and take its cores.

    Args:
        workload: What the run says.
        setting: Of the loader.
        plan: Iterations, epochs and saves of the job.

    Raises:
        ValueError: If a setting or the plan is out of range.
    """
    if plan.iterations < 1 or plan.epochs < 1 or plan.saves < 0:
        raise ValueError(
            'plan: expected at least one epoch of one iteration, found '
            f'{plan.epochs} of {plan.iterations}, with {plan.saves} saves'
        )
    num_workers = setting.num_workers
    prefetch = check_setting(num_workers, setting.prefetch_factor)
    iter_s = estimate_iter_s(workload, num_workers, prefetch)
    steady_s = plan.epochs * plan.iterations * iter_s
    if num_workers == 0:
        save_s = plan.save_wait_s + plan.save_cpu_s / workload.core_share(1)
        return steady_s + plan.saves * save_s
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
    save_net_s = 0.0
    if plan.saves:
        save_net_s = _save_net_s(
            make_loop(workload, num_workers, prefetch, _DRAWS), plan
        )
    return steady_s + starts_s + plan.saves * save_net_s


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


def _save_net_s(loop: Loop, plan: JobPlan) -> float:
    """What one save adds to the job."""
    in_flight = loop.workers * loop.prefetch_factor
    skip = 2 * in_flight + 16
    count = min(max(_DRAWS, 8 * in_flight), 4 * _DRAWS)
    pause = {skip + 1: (plan.save_cpu_s, plan.save_wait_s)}
    without = simulate_loop(loop, count, skip)
    paused = simulate_loop(replace(loop, pauses=pause), count, skip)
    return max(paused.seconds - without.seconds, 0.0)


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
