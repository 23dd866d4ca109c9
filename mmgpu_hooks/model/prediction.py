"""What a setting of the loader would give, by simulation and never beyond the bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mmgpu_hooks.model.pace import Pace, pace_of
from mmgpu_hooks.model.scene import at_batch_size
from mmgpu_hooks.model.uncertainty import model_error, perturb
from mmgpu_hooks.schema import LoaderWorkload, NoPrediction, Prediction

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
_MANY_DRAWS = 1024
_FEW_DRAWS = 256
"""Enough to show how an error in the costs changes a rate."""
_NEAR = 0.03


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
            :func:`mmgpu_hooks.model.job.estimate_job_s`.
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
            'with several batch sizes that go together are needed.'
        )
    pace = pace_of(sized, num_workers, prefetch, _MANY_DRAWS)
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
        limit=_name_limit(sized, pace, num_workers, prefetch),
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
    return pace_of(workload, num_workers, prefetch, _MANY_DRAWS).iter_s


def _relative_error(
    workload: LoaderWorkload, num_workers: int, prefetch: int, cpu_share: float
) -> float:
    """Standard error of a prediction over itself.

    What each cost's own error does to it, and what the simulation does not know.
    """
    own = pace_of(workload, workload.num_workers, workload.prefetch_factor, _FEW_DRAWS)
    squares = model_error(workload, num_workers, own.cpu_share, cpu_share) ** 2
    middle_s = pace_of(workload, num_workers, prefetch, _FEW_DRAWS).iter_s
    for changed in perturb(workload, alone=num_workers == 0):
        changed_s = pace_of(changed, num_workers, prefetch, _FEW_DRAWS).iter_s
        squares += (changed_s / middle_s - 1.0) ** 2
    return math.sqrt(squares)


def _name_limit(
    workload: LoaderWorkload, pace: Pace, num_workers: int, prefetch: int
) -> str:
    iter_s = pace.iter_s
    loading = 'storage' if workload.is_storage_bound else 'workers'
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
        name: pace_of(one, num_workers, prefetch, _FEW_DRAWS).iter_s
        for name, one in relaxed.items()
    }
    return min(paces, key=lambda name: paces[name])
