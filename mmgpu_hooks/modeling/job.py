"""What a whole job takes: its iterations, the starts of its epochs, its saves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mmgpu_hooks.modeling.loop import Loop
from mmgpu_hooks.modeling.prediction import (
    check_setting,
    estimate_iter_s,
    predict_setting,
)
from mmgpu_hooks.modeling.scene import at_batch_size, make_loop, rate_of
from mmgpu_hooks.modeling.simulation import simulate_loop
from mmgpu_hooks.schema import JobPlan, JobPrediction, LoaderWorkload, NoPrediction

START_ERROR = 0.3
"""Relative standard error of what the start of an epoch adds."""

_COVERAGE = 1.9
_FEWEST, _DRAWS, _TURNS = 64, 512, 8

_LONG = 20
"""Times the batches that are simulated of its start: in an epoch so long, which of them
come first makes 0.4 % at most, with costs that vary by twice their mean."""


def predict_job(
    workload: LoaderWorkload,
    num_workers: int,
    prefetch_factor: int | None,
    plan: JobPlan,
    *,
    persistent_workers: bool | None = None,
    batch_size: int | None = None,
) -> JobPrediction | NoPrediction:
    """Predict a whole job with other settings of the loader.

    Every epoch begins with no batch made; without persistent workers they are started
    first. Workers make batches while a save goes on, and take its cores.

    Args:
        workload: What the run tells.
        num_workers: 0 loads in the loop.
        prefetch_factor: Batches in flight per worker. Defaults to PyTorch's 2.
        plan: Iterations, epochs and saves of the job.
        persistent_workers: Whether workers live through all epochs. Defaults to the
            run's.
        batch_size: Defaults to the run's; ``plan`` must fit to it.

    Returns:
        The prediction, or why there is none.

    Raises:
        ValueError: If a setting or the plan is out of range.
    """
    _check_plan(plan)
    prefetch = check_setting(num_workers, prefetch_factor, batch_size)
    steady = predict_setting(workload, num_workers, prefetch, batch_size=batch_size)
    sized = at_batch_size(workload, batch_size)
    if isinstance(steady, NoPrediction):
        return steady
    assert sized is not None  # else the steady iteration was not predicted
    if persistent_workers is None:
        persistent_workers = workload.persistent_workers
    iter_s = steady.iter_time_s
    iterations_s = plan.epochs * plan.iterations * iter_s
    starts_s, save_s, save_net_s = _extras_s(
        sized, num_workers, prefetch, plan, persistent_workers, iter_s
    )
    saves_net_s = plan.saves * save_net_s
    job_s = iterations_s + starts_s + saves_net_s
    low_s = iterations_s * steady.iter_time_low_s / iter_s
    high_s = iterations_s * steady.iter_time_high_s / iter_s
    extra_s = _COVERAGE * START_ERROR * (abs(starts_s) + abs(saves_net_s))
    return JobPrediction(
        job_s=job_s,
        job_low_s=max(job_s - math.hypot(iterations_s - low_s, extra_s), 0.0),
        job_high_s=job_s + math.hypot(high_s - iterations_s, extra_s),
        iterations_s=iterations_s,
        starts_s=starts_s,
        saves_s=plan.saves * save_s,
        saves_net_s=saves_net_s,
    )


def estimate_job_s(
    workload: LoaderWorkload,
    num_workers: int,
    prefetch_factor: int | None,
    plan: JobPlan,
    *,
    persistent_workers: bool,
) -> float:
    """``job_s`` of :func:`predict_job` without its interval, in a third of the time.

    For whoever compares many settings. It raises what that does.
    """
    _check_plan(plan)
    prefetch = check_setting(num_workers, prefetch_factor)
    iter_s = estimate_iter_s(workload, num_workers, prefetch)
    starts_s, _, save_net_s = _extras_s(
        workload, num_workers, prefetch, plan, persistent_workers, iter_s
    )
    return plan.epochs * plan.iterations * iter_s + starts_s + plan.saves * save_net_s


def _check_plan(plan: JobPlan) -> None:
    if plan.iterations < 1 or plan.epochs < 1 or plan.saves < 0:
        raise ValueError(
            'plan: expected at least one epoch of one iteration, found '
            f'{plan.epochs} of {plan.iterations}, with {plan.saves} saves'
        )


def _extras_s(
    sized: LoaderWorkload,
    num_workers: int,
    prefetch: int,
    plan: JobPlan,
    persistent_workers: bool,
    iter_s: float,
) -> tuple[float, float, float]:
    """What all starts add to the job, how long a save takes, and what it adds."""
    starts_s, save_s, save_net_s = 0.0, plan.save_wait_s, 0.0
    if num_workers == 0:
        save_s = save_net_s = plan.save_wait_s + plan.save_cpu_s / rate_of(sized, 1)
    else:
        count = min(plan.iterations, max(_FEWEST, 4 * num_workers * prefetch))
        # as many different costs as batches: they come up to their mean
        epoch = replace(
            make_loop(sized, num_workers, prefetch, count),
            batches=count,
        )
        turns = _TURNS if plan.iterations < _LONG * count else 1
        starts = 1 if persistent_workers else plan.epochs
        cold = replace(epoch, start_s=sized.worker_start_s)
        starts_s = starts * (_epoch_s(cold, count, turns) - count * iter_s)
        if plan.epochs > starts:
            warm_s = _epoch_s(epoch, count, turns) - count * iter_s
            starts_s += (plan.epochs - starts) * warm_s
        if plan.saves:
            save_s, save_net_s = _save_s(
                make_loop(sized, num_workers, prefetch, _DRAWS), plan
            )
    return starts_s, save_s, save_net_s


def _epoch_s(epoch: Loop, count: int, turns: int) -> float:
    """How long an epoch takes, whichever of the batches come first: their mean."""
    whole_s = 0.0
    for turn in range(turns):
        first = turn * count // turns
        turned = replace(
            epoch,
            batch_cpu_s=_turned(epoch.batch_cpu_s, first),
            batch_wait_s=_turned(epoch.batch_wait_s, first),
        )
        whole_s += simulate_loop(turned, count).seconds
    return whole_s / turns


def _turned(costs: Sequence[float], first: int) -> list[float]:
    return [*costs[first:], *costs[:first]]


def _save_s(loop: Loop, plan: JobPlan) -> tuple[float, float]:
    """How long one save takes, and what it adds to the job."""
    in_flight = loop.workers * loop.prefetch_factor
    skip = 2 * in_flight + 16
    count = min(max(_DRAWS, 8 * in_flight), 4 * _DRAWS)
    pause = {skip + 1: (plan.save_cpu_s, plan.save_wait_s)}
    without = simulate_loop(loop, count, skip)
    paused = simulate_loop(replace(loop, pauses=pause), count, skip)
    return paused.pause_s, max(paused.seconds - without.seconds, 0.0)


def first_batch_s(workload: LoaderWorkload) -> float:
    """What an epoch's first wait takes beyond a usual one, at the run's own setting.

    Without the start of workers.
    """
    workers, prefetch = workload.num_workers, workload.prefetch_factor
    even = replace(
        workload,
        occupancy=replace(workload.occupancy, std_s=0.0),
        batch_cpu=replace(workload.batch_cpu, std_s=0.0),
    )
    loop = make_loop(even, workers, prefetch, _FEWEST)
    steady = simulate_loop(loop, _FEWEST, 3 * workers * prefetch)
    usual_s = (steady.wait_s + steady.fetch_s) / _FEWEST
    first = simulate_loop(loop, 1)
    return max(first.wait_s + first.fetch_s - usual_s, 0.0)
