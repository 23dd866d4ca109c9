"""Predicts the seconds of an iteration, and of a training, by loader setting.

By simulation, and never beyond the bound.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from mmgpu_hooks.model.simulation import Loop, make_loop, settle, simulate_loop
from mmgpu_hooks.model.workload import DEFAULT_PREFETCH, Workload
from mmgpu_hooks.schema.judged import Prediction

LIMITS = ('step', 'workers', 'cores')
"""Names of the resources that can limit an iteration's speed."""

COVERAGE = 1.9
"""Half width of a prediction's interval, in standard errors.

9 in 10 and a little more, as tails are heavy.
"""

_MANY_DRAWS = 1024
_FEW_DRAWS = 256
"""Number of batches simulated to find how a measuring error changes a prediction."""
_NEAR = 0.03
_FULL = 0.9
"""Smallest share (0 to 1) of cores in use at which the cores limit an iteration."""


@dataclass(frozen=True)
class Rate:
    """Predicted seconds of a steady iteration and its data wait, and cores used."""

    iter_s: float
    wait_s: float
    """Seconds of data wait in a steady iteration, fetching the batch included."""
    cpu_share: float
    """Share (0 to 1) of the cores that is in use by any process."""


# a grid asks for the same settings again and again
@functools.lru_cache(maxsize=512)
def rate_of(workload: Workload, num_workers: int, prefetch: int, draws: int) -> Rate:
    """Simulates ``draws`` batches; returns a steady iteration's time and core use."""
    if num_workers == 0:
        rate = _rate_alone(workload)
    else:
        rate = _rate_fed(workload, num_workers, prefetch, draws)
    late_s = workload.bound_iter_s(num_workers) - rate.iter_s
    if late_s <= 0.0:
        return rate
    return replace(rate, iter_s=rate.iter_s + late_s, wait_s=rate.wait_s + late_s)


def _rate_alone(workload: Workload) -> Rate:
    """Computes the iteration seconds of a training that loads without workers."""
    cpu_s, loading_s = workload.local_loading
    wait_s = cpu_s / workload.core_share(1) + loading_s - cpu_s + workload.turns_s
    whole_s = wait_s + workload.local_step_s
    used_s = cpu_s + workload.step_cpu_s
    return Rate(whole_s, wait_s, used_s / whole_s / workload.usable_cores)


def _rate_fed(workload: Workload, num_workers: int, prefetch: int, draws: int) -> Rate:
    loop = make_loop(workload, num_workers, prefetch, draws)
    trace = simulate_loop(loop, draws, settle(num_workers, prefetch, draws))
    cpu_s = workload.batch_cpu.mean_s + workload.step_cpu_s + workload.fetch_s
    ours_s, seconds = draws * cpu_s, trace.seconds
    cpu_share = max(
        ours_s / (seconds * workload.usable_cores),
        (ours_s + trace.others_cpu_s) / (seconds * workload.host_cores),
    )
    return Rate(seconds / draws, (trace.wait_s + trace.fetch_s) / draws, cpu_share)


def predict_setting(
    workload: Workload, num_workers: int, prefetch: int = DEFAULT_PREFETCH
) -> Prediction:
    """Predicts a steady iteration's seconds with given settings of the DataLoader.

    Args:
        workload: What the run says; for another batch size, see
            :func:`mmgpu_hooks.model.workload.at_batch_size`.
        num_workers: 0 loads in the loop.
        prefetch: Batches in flight per worker, at least one.
    """
    rate = rate_of(workload, num_workers, prefetch, _MANY_DRAWS)
    error = _relative_error(workload, num_workers, prefetch, rate.cpu_share)
    return Prediction(
        num_workers=num_workers,
        prefetch_factor=prefetch if num_workers else None,
        batch_size=workload.batch_size,
        iter_time_s=rate.iter_s,
        iter_time_low_s=rate.iter_s / (1.0 + COVERAGE * error),
        iter_time_high_s=rate.iter_s * (1.0 + COVERAGE * error),
        data_wait_s=rate.wait_s,
        images_per_s=workload.batch_size / rate.iter_s if workload.batch_size else None,
        limit=_name_limit(workload, rate, num_workers),
    )


def estimate_iter_s(workload: Workload, num_workers: int, prefetch: int) -> float:
    """Estimates the seconds of a steady iteration, without a confidence interval.

    It is ``iter_time_s`` of :func:`predict_setting`.
    """
    return rate_of(workload, num_workers, prefetch, _MANY_DRAWS).iter_s


def _name_limit(workload: Workload, rate: Rate, num_workers: int) -> str:
    step_s = workload.ready_s if num_workers else workload.step.mean_s
    if rate.iter_s <= (1.0 + _NEAR) * step_s:
        return 'step'
    is_full = num_workers > 0 and rate.cpu_share >= _FULL
    return 'cores' if is_full else 'workers'


def _relative_error(
    workload: Workload, num_workers: int, prefetch: int, cpu_share: float
) -> float:
    """Estimates the relative standard error of a predicted iteration time.

    What each cost's own error does to it, and what the simulation does not know.
    """
    own = rate_of(workload, workload.num_workers, workload.prefetch_factor, _FEW_DRAWS)
    squares = model_error(workload, num_workers, own.cpu_share, cpu_share) ** 2
    middle_s = rate_of(workload, num_workers, prefetch, _FEW_DRAWS).iter_s
    for changed in perturb(workload, alone=num_workers == 0):
        changed_s = rate_of(changed, num_workers, prefetch, _FEW_DRAWS).iter_s
        squares += (changed_s / middle_s - 1.0) ** 2
    return math.sqrt(squares)


_SAME = 0.025
"""Relative error of an iteration time from run to run on an otherwise idle machine.

0.015 on a virtual machine of one maker's processors, 0.03 (70 settings, each trained
twice) on one of another's.
"""

_OTHER = 0.035
"""Relative error added to a predicted iteration time if the worker count changes.

Caches, memory bandwidth and the scheduler's ways are not simulated.
"""

_ALONE = 0.06
"""Relative error added to a predicted iteration time on a switch to or from 0 workers.

Two busy CPUs that are threads of one core are slower than one alone, and so is what
shares a cache. The same loading took 1 to 1.14 times the CPU beside a worker.
"""

_TRANSFER = 0.06
"""Relative error added if a run without workers predicts iterations with workers."""

_CROWDED = 0.06
"""Relative error added to a predicted iteration time if all cores are in use.

In the run or in the prediction; less where fewer are: the real scheduler does not share
cores equally.
"""

_RESIZED = 0.03
"""Relative error added to a predicted iteration time per factor 2 in batch size.

Counted from the nearest batch size that was measured: loading is taken to grow with the
images, and the step along its line.
"""

_TRANSFERRED = 0.5
"""Relative error of the assumed time that a worker takes to send a batch."""

_TURNS = 0.5
"""Relative error of the extra time of loading without workers on a busy host.

That is `Workload.turns_s`: the number of operations is not known.
"""

_POWER = 0.5
"""Relative error assumed for ``step_power - 1``, the step's slow-down exponent.

That is `Workload.step_power`, where no run showed it.
"""


def model_error(
    workload: Workload, num_workers: int, run_cpu_share: float, cpu_share: float
) -> float:
    """Estimates a predicted iteration time's relative error from effects not simulated.

    Args:
        workload: What the run says.
        num_workers: Of the prediction.
        run_cpu_share: Share of the cores that was in use at the run's own setting.
        cpu_share: Share that is in use with the prediction's.
    """
    squares = _SAME**2
    if num_workers and not workload.is_transfer_known:
        squares += _TRANSFER**2
    if (num_workers == 0) != (workload.num_workers == 0):
        squares += _ALONE**2
    if num_workers != workload.num_workers:
        squares += _OTHER**2
        squares += (_CROWDED * min(max(run_cpu_share, cpu_share), 1.0) ** 2) ** 2
    if workload.measured_batch_size and workload.batch_size:
        line = workload.step_line
        seen = {workload.measured_batch_size, *(line.batch_sizes if line else ())}
        doublings = min(abs(math.log2(workload.batch_size / size)) for size in seen)
        squares += (_RESIZED * doublings) ** 2
    return float(squares**0.5)


def perturb(workload: Workload, *, alone: bool) -> Iterator[Workload]:
    """Yields copies of a workload, each with one time changed by its standard error.

    Args:
        workload: What the run says.
        alone: Whether a prediction without workers is meant: only that depends on
            what a transfer costs.
    """
    loading, cpu, step = workload.batch_time, workload.batch_cpu, workload.step
    # CPU is a part of the loading: they grow together
    more = 1.0 + loading.relative_error
    yield replace(
        workload,
        batch_time=loading.with_mean(loading.mean_s * more),
        batch_cpu=cpu.with_mean(cpu.mean_s * more),
    )
    yield replace(
        workload,
        step=replace(step, mean_s=step.mean_s + step.error_s),
        step_cpu_s=workload.step_cpu_s * (1.0 + step.relative_error),
    )
    if alone and workload.num_workers and workload.transfer_s > 0.0:
        # it cannot be more than all that a worker does for a batch
        yield replace(
            workload,
            transfer_s=_TRANSFERRED * min(workload.transfer_s, loading.mean_s),
            transfer_cpu_s=(1.0 - workload.transfer_cpu_error)
            * min(workload.transfer_cpu_s, cpu.mean_s),
        )
    if alone and workload.num_workers and workload.turns_s > 0.0:
        yield replace(workload, turns_s=(1.0 - _TURNS) * workload.turns_s)
    if not alone and workload.fetch_error > 0.0:
        yield replace(
            workload,
            fetch_s=(1.0 + workload.fetch_error) * workload.fetch_s,
            fetch_busy_s=(1.0 + workload.fetch_error) * workload.fetch_busy_s,
        )
    if not workload.is_step_power_known:
        yield replace(
            workload, step_power=1.0 + _POWER * max(workload.step_power - 1.0, 0.0)
        )
    # a spread is known to 1 in the root of twice the count
    if loading.count:
        wider = 1.0 + min((2.0 * loading.count) ** -0.5 + 0.1, 1.0)
        yield replace(
            workload,
            batch_time=replace(loading, std_s=loading.std_s * wider),
            batch_cpu=replace(cpu, std_s=cpu.std_s * wider),
        )


START_ERROR = 0.3
"""Relative standard error of the seconds that starting an epoch adds to a training."""

_FEWEST, _SHIFTS = 64, 8

_LONG = 20
"""Ratio of epoch length to simulated iterations from which one simulation suffices.

In an epoch so long, which batches come first makes 0.4 % at most, with costs that vary
by twice their mean.
"""


@dataclass(frozen=True)
class LoaderSetting:
    """DataLoader settings that are chosen together: workers, prefetch, persistence."""

    num_workers: int
    """Number of workers; with 0 the training process loads the batches."""
    prefetch_factor: int
    """Number of batches in flight per worker."""
    persistent_workers: bool
    """True if workers live through all epochs."""


@dataclass(frozen=True)
class JobPlan:
    """Training length: epochs, iterations per epoch, seconds of checkpoint saves."""

    iterations: int
    """Number of iterations in one epoch."""
    epochs: int = 1
    saves_s: float = 0.0
    """Seconds in all checkpoint saves of the training.

    They are the same with any setting of the loader."""


# a choice asks for the same settings again and again
@functools.lru_cache(maxsize=512)
def estimate_job_s(workload: Workload, setting: LoaderSetting, plan: JobPlan) -> float:
    """Estimates the seconds of a whole training: iterations, epochs' starts, saves.

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
    turns = _SHIFTS if plan.iterations < _LONG * count else 1
    starts = 1 if setting.persistent_workers else plan.epochs
    cold = replace(epoch, start_s=workload.worker_start_s)
    starts_s = starts * (_epoch_s(cold, count, turns) - count * iter_s)
    if plan.epochs > starts:
        warm_s = _epoch_s(epoch, count, turns) - count * iter_s
        starts_s += (plan.epochs - starts) * warm_s
    return steady_s + starts_s


def _epoch_s(epoch: Loop, count: int, turns: int) -> float:
    """Computes an epoch's simulated seconds, averaged over different first batches."""
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
    """Computes by how many seconds an epoch's first data wait exceeds its later ones.

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
