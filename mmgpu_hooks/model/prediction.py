"""What a setting of the loader would give, by simulation and never beyond the bound."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mmgpu_hooks.model.simulation import make_loop, settle, simulate_loop
from mmgpu_hooks.model.workload import Workload
from mmgpu_hooks.schema.predicted import Prediction

LIMITS: dict[str, str] = {
    'step': 'the step',
    'workers': 'the workers',
    'cores': 'the cores',
}
"""What can keep an iteration from being faster, and how a sentence calls it."""

MOST_WORKERS, MOST_PREFETCH = 512, 1024
"""Beyond these a setting is a slip of the finger."""

COVERAGE = 1.9
"""Standard errors on either side: 9 in 10 and a little more, as tails are heavy."""

_MANY_DRAWS = 1024
_FEW_DRAWS = 256
"""Enough to show how an error in the costs changes a rate."""
_NEAR = 0.03
_FULL = 0.9
"""Share of the cores in use, from which more workers give next to nothing."""


@dataclass(frozen=True)
class Rate:
    """A steady iteration."""

    iter_s: float
    wait_s: float
    """For data, fetching it included."""
    cpu_share: float
    """Of the cores, in use by any process."""


# a grid asks for the same settings again and again
@functools.lru_cache(maxsize=512)
def rate_of(workload: Workload, num_workers: int, prefetch: int, draws: int) -> Rate:
    """A steady iteration of ``draws`` different batches and steps."""
    if num_workers == 0:
        rate = _rate_alone(workload)
    else:
        rate = _rate_fed(workload, num_workers, prefetch, draws)
    late_s = workload.bound_iter_s(num_workers) - rate.iter_s
    if late_s <= 0.0:
        return rate
    return replace(rate, iter_s=rate.iter_s + late_s, wait_s=rate.wait_s + late_s)


def _rate_alone(workload: Workload) -> Rate:
    """Without workers nothing overlaps; only other processes take cores."""
    cpu_s, loading_s = workload.local_loading_s
    wait_s = cpu_s / workload.core_share(1) + loading_s - cpu_s + workload.turns_s
    whole_s = wait_s + workload.local_step_s
    used_s = cpu_s + workload.step_cpu_s
    return Rate(whole_s, wait_s, used_s / whole_s / workload.usable_cores)


def _rate_fed(workload: Workload, num_workers: int, prefetch: int, draws: int) -> Rate:
    loop = make_loop(workload, num_workers, prefetch, draws)
    trace = simulate_loop(loop, draws, settle(num_workers, prefetch, draws))
    ours_s = draws * (
        workload.batch_cpu.mean_s + workload.step_cpu_s + workload.fetch_s
    )
    shares = [
        ours_s / (trace.seconds * workload.usable_cores),
        (ours_s + trace.others_cpu_s) / (trace.seconds * workload.host_cores),
    ]
    return Rate(
        iter_s=trace.seconds / draws,
        wait_s=(trace.wait_s + trace.fetch_s) / draws,
        cpu_share=max(shares),
    )


def predict_setting(
    workload: Workload, num_workers: int, prefetch: int = 2
) -> Prediction:
    """Predict a steady iteration with other settings of the loader.

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
    """``iter_time_s`` of :func:`predict_setting` without its interval, s."""
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
    """Standard error of a prediction over itself.

    What each cost's own error does to it, and what the simulation does not know.
    """
    own = rate_of(workload, workload.num_workers, workload.prefetch_factor, _FEW_DRAWS)
    squares = model_error(workload, num_workers, own.cpu_share, cpu_share) ** 2
    middle_s = rate_of(workload, num_workers, prefetch, _FEW_DRAWS).iter_s
    for changed in perturb(workload, alone=num_workers == 0):
        changed_s = rate_of(changed, num_workers, prefetch, _FEW_DRAWS).iter_s
        squares += (changed_s / middle_s - 1.0) ** 2
    return math.sqrt(squares)


_SAME = 0.015
"""What a setting varies by from run to run on a quiet machine."""

_OTHER = 0.035
"""Added for another number of workers: caches, memory bandwidth and the scheduler's
ways are not simulated."""

_TRANSFER = 0.06
"""Added where the run had no workers and the predicted one has."""

_CROWDED = 0.06
"""Added where all cores are in use, in the run or in the prediction; less where fewer
are: the real scheduler does not share cores equally."""

_RESIZED = 0.03
"""Added for each doubling or halving of the nearest batch size that was measured:
loading is taken to grow with the images, and the step along its line."""

_TRANSFERRED = 0.5
"""Of what a transfer makes a worker's batch longer, which no run measures."""

_TURNS = 0.5
"""Of `Workload.turns_s`: how many operations there are is not known."""

_POWER = 0.5
"""Of what is beyond 1 of a `Workload.step_power` that is not known."""


def model_error(
    workload: Workload, num_workers: int, run_cpu_share: float, cpu_share: float
) -> float:
    """Standard error, over the prediction, of what the simulation does not know.

    Args:
        workload: What the run says.
        num_workers: Of the prediction.
        run_cpu_share: Share of the cores that was in use at the run's own setting.
        cpu_share: Share that is in use with the prediction's.
    """
    squares = _SAME**2
    if num_workers and not workload.is_transfer_known:
        squares += _TRANSFER**2
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
    """The workload with one cost at a time a standard error off.

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
        batch_time=replace(loading, mean_s=loading.mean_s * more),
        batch_cpu=replace(cpu, mean_s=cpu.mean_s * more),
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
