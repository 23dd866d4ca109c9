"""What a setting of the loader would give, by simulation and never beyond the bound."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mmgpu_hooks.modeling.scene import at_batch_size, make_loop, rate_of, step_threads
from mmgpu_hooks.modeling.simulation import simulate_loop
from mmgpu_hooks.modeling.uncertainty import model_error, perturb
from mmgpu_hooks.records import LoaderWorkload, NoPrediction, Prediction

LIMITS: dict[str, str] = {
    'step': 'the step',
    'workers': 'too few workers',
    'cores': 'the cores',
    'storage': 'the storage',
    'head_of_line': 'late batches',
}
"""What can keep an iteration from being faster, and how a sentence calls it."""

MOST_WORKERS, MOST_PREFETCH = 512, 1024
"""Beyond these a setting is a slip of the finger."""

_COVERAGE = 1.9
"""Standard errors on either side: 9 in 10 and a little more, as tails are heavy."""
_FEW_DRAWS, _MANY_DRAWS = 256, 1024
_NEAR = 0.03


@dataclass(frozen=True)
class _Pace:
    """A steady iteration."""

    iter_s: float
    wait_s: float
    fetch_s: float
    utilisation: float | None
    cpu_share: float
    """Of the cores, in use by anybody."""


def predict_grid(
    workload: LoaderWorkload, settings: Sequence[tuple[int, int]]
) -> list[Prediction]:
    """Predict many settings; all see the same random costs.

    Args:
        workload: What the run tells.
        settings: ``num_workers`` and ``prefetch_factor`` each.
    """
    found = [predict_setting(workload, *setting) for setting in settings]
    return [one for one in found if isinstance(one, Prediction)]


def predict_setting(
    workload: LoaderWorkload,
    num_workers: int,
    prefetch_factor: int | None = None,
    *,
    persistent_workers: bool | None = None,
    batch_size: int | None = None,
) -> Prediction | NoPrediction:
    """Predict a steady iteration with other settings of the loader.

    Args:
        workload: What the run tells.
        num_workers: 0 loads in the loop.
        prefetch_factor: Batches in flight per worker. Defaults to PyTorch's 2.
        persistent_workers: Of no effect on a steady iteration; see
            :func:`mmgpu_hooks.modeling.job.predict_job`.
        batch_size: Defaults to the run's.

    Returns:
        The prediction, or why there is none (another batch size, and the run does not
        tell what the step takes with it).

    Raises:
        ValueError: If a setting is out of range.
    """
    del persistent_workers
    prefetch = check_setting(num_workers, prefetch_factor, batch_size)
    sized = at_batch_size(workload, batch_size)
    if sized is None:
        return NoPrediction(
            f'What a step takes with a batch size of {batch_size} is unknown: runs '
            'with several batch sizes are needed.'
        )
    pace = _pace(sized, num_workers, prefetch, _MANY_DRAWS)
    error = _relative_error(sized, num_workers, prefetch, pace.cpu_share)
    low_s = pace.iter_s / (1.0 + _COVERAGE * error)
    high_s = pace.iter_s * (1.0 + _COVERAGE * error)
    return Prediction(
        num_workers=num_workers,
        prefetch_factor=prefetch if num_workers else None,
        batch_size=sized.batch_size,
        iter_time_s=pace.iter_s,
        iter_time_low_s=low_s,
        iter_time_high_s=high_s,
        data_wait_s=pace.wait_s + pace.fetch_s,
        images_per_s=sized.batch_size / pace.iter_s if sized.batch_size else None,
        worker_utilisation=pace.utilisation,
        limit=_name_limit(sized, num_workers, prefetch, pace),
    )


def check_setting(
    num_workers: int, prefetch_factor: int | None, batch_size: int | None = None
) -> int:
    """The prefetch factor to go by.

    Raises:
        ValueError: If a setting is out of range.
    """
    prefetch = 2 if prefetch_factor is None else prefetch_factor
    if not 0 <= num_workers <= MOST_WORKERS:
        raise ValueError(
            f'num_workers: expected 0 to {MOST_WORKERS}, found {num_workers}'
        )
    if not 1 <= prefetch <= MOST_PREFETCH:
        raise ValueError(
            f'prefetch_factor: expected 1 to {MOST_PREFETCH}, found {prefetch}'
        )
    if batch_size is not None and batch_size < 1:
        raise ValueError(f'batch_size: expected 1 or more, found {batch_size}')
    return prefetch


def estimate_iter_s(workload: LoaderWorkload, num_workers: int, prefetch: int) -> float:
    """``iter_time_s`` of :func:`predict_setting` without its interval, s."""
    return _pace(workload, num_workers, prefetch, _MANY_DRAWS).iter_s


def bound_iter_s(workload: LoaderWorkload, num_workers: int) -> float:
    """The closed bound: no loader with these costs is faster.

    ``max(G + f, S / W, (P + m + f) / C, bytes / bandwidth)``; G + S without workers.
    """
    storage_s = workload.storage_floor_s or 0.0
    if num_workers == 0:
        return max(workload.step.mean_s + local_loading_s(workload)[1], storage_s)
    compute_s = max(workload.step_cpu_s - workload.spin_s, 0.0)
    cpu_s = workload.batch_cpu.mean_s + compute_s + workload.fetch_s
    return max(
        workload.step.mean_s + workload.fetch_s,
        workload.occupancy.mean_s / num_workers,
        cpu_s / workload.usable_cores,
        storage_s,
    )


# a grid asks for the same settings again and again
@functools.lru_cache(maxsize=512)
def _pace(
    workload: LoaderWorkload, num_workers: int, prefetch: int, draws: int
) -> _Pace:
    if num_workers == 0:
        pace = _pace_alone(workload)
    else:
        pace = _pace_fed(workload, num_workers, prefetch, draws)
    late_s = bound_iter_s(workload, num_workers) - pace.iter_s
    if late_s <= 0.0:
        return pace
    return replace(pace, iter_s=pace.iter_s + late_s, wait_s=pace.wait_s + late_s)


def _pace_alone(workload: LoaderWorkload) -> _Pace:
    """Without workers nothing overlaps; only strangers take cores."""
    cpu_s, loading_s = local_loading_s(workload)
    wait_s = cpu_s / rate_of(workload, 1) + loading_s - cpu_s
    step_s = alone_step_s(workload)
    whole_s = wait_s + step_s
    used_s = cpu_s + workload.step_cpu_s
    return _Pace(whole_s, wait_s, 0.0, None, used_s / whole_s / workload.usable_cores)


def local_loading_s(workload: LoaderWorkload) -> tuple[float, float]:
    """CPU and whole of loading a batch in the loop, where nothing is handed over."""
    cpu_s = max(workload.batch_cpu.mean_s - workload.handover_cpu_s, 0.0)
    return cpu_s, max(workload.occupancy.mean_s - workload.handover_s, cpu_s)


def alone_step_s(workload: LoaderWorkload) -> float:
    """The step when no worker runs beside it."""
    threads = step_threads(workload)
    compute_s = max(workload.step_cpu_s - workload.spin_s, 0.0) / threads
    return workload.step.mean_s + compute_s * (1 / rate_of(workload, threads) - 1.0)


def _pace_fed(
    workload: LoaderWorkload, num_workers: int, prefetch: int, draws: int
) -> _Pace:
    loop = make_loop(workload, num_workers, prefetch, draws)
    # the first batches are made side by side, which a steady loop's are not
    skip = min(3 * num_workers * prefetch, draws) + 16
    trace = simulate_loop(loop, draws, skip)
    ours_s = draws * (
        workload.batch_cpu.mean_s + workload.step_cpu_s + workload.fetch_s
    )
    shares = [
        ours_s / (trace.seconds * workload.usable_cores),
        (ours_s + trace.stranger_cpu_s) / (trace.seconds * workload.host_cores),
    ]
    return _Pace(
        iter_s=trace.seconds / draws,
        wait_s=trace.wait_s / draws,
        fetch_s=trace.fetch_s / draws,
        utilisation=min(trace.busy_s / (trace.seconds * num_workers), 1.0),
        cpu_share=max(shares),
    )


def _relative_error(
    workload: LoaderWorkload, num_workers: int, prefetch: int, cpu_share: float
) -> float:
    """Standard error of a prediction over itself.

    What each cost's own error does to it, and what the simulation does not know.
    """
    own = _pace(workload, workload.num_workers, workload.prefetch_factor, _FEW_DRAWS)
    squares = model_error(workload, num_workers, own.cpu_share, cpu_share) ** 2
    middle_s = _pace(workload, num_workers, prefetch, _FEW_DRAWS).iter_s
    for changed in perturb(workload):
        changed_s = _pace(changed, num_workers, prefetch, _FEW_DRAWS).iter_s
        squares += (changed_s / middle_s - 1.0) ** 2
    return math.sqrt(squares)


def _name_limit(
    workload: LoaderWorkload, num_workers: int, prefetch: int, pace: _Pace
) -> str:
    iter_s = pace.iter_s
    storage_s = workload.storage_floor_s or 0.0
    loading = 'storage' if workload.is_storage_bound else 'workers'
    if storage_s >= (1.0 - _NEAR) * iter_s:
        return 'storage'
    ready_s = workload.step.mean_s + (workload.fetch_s if num_workers else 0.0)
    if iter_s <= (1.0 + _NEAR) * ready_s:
        return 'step'
    if num_workers == 0:
        return loading
    if pace.cpu_share >= 1.0 - _NEAR:
        return 'cores'
    if pace.utilisation is not None and pace.utilisation >= 1.0 - _NEAR:
        return loading
    # none is in full use: the one without which it would be fastest
    relaxed = {
        'cores': replace(
            workload, usable_cores=1e6, host_cores=1e6, stranger_tasks=0.0
        ),
        'head_of_line': replace(
            workload,
            occupancy=replace(workload.occupancy, std_s=0.0),
            batch_cpu=replace(workload.batch_cpu, std_s=0.0),
        ),
        loading: replace(
            workload,
            occupancy=replace(
                workload.occupancy,
                mean_s=workload.occupancy.mean_s * num_workers / (num_workers + 1),
            ),
            batch_cpu=replace(
                workload.batch_cpu,
                mean_s=min(
                    workload.batch_cpu.mean_s,
                    workload.occupancy.mean_s * num_workers / (num_workers + 1),
                ),
            ),
        ),
    }
    paces = {
        name: _pace(one, num_workers, prefetch, _FEW_DRAWS).iter_s
        for name, one in relaxed.items()
    }
    return min(paces, key=lambda name: paces[name])
