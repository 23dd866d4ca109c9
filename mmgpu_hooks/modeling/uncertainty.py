"""How far off a prediction may be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from mmgpu_hooks.records import LoaderWorkload

SAME = 0.015
"""What a setting varies by from run to run on a quiet machine."""

OTHER = 0.035
"""Added for another number of workers: caches, memory bandwidth and the scheduler's
ways are not simulated."""

HANDOVER = 0.06
"""Added where the run had no workers and the predicted one has."""

CROWDED = 0.06
"""Added where all cores are in use, in the run or in the prediction; less where fewer
are: the real scheduler does not share cores equally."""

RESIZED = 0.03
"""Added for each doubling or halving of the batch size: loading is taken to grow with
the images, and the step along its line."""


def model_error(
    workload: LoaderWorkload, num_workers: int, run_cpu_share: float, cpu_share: float
) -> float:
    """Standard error, over the prediction, of what the simulation does not know.

    Args:
        workload: What the run tells.
        num_workers: Of the prediction.
        run_cpu_share: Share of the cores that was in use at the run's own setting.
        cpu_share: Share that is in use with the prediction's.
    """
    squares = SAME**2
    if num_workers and not workload.is_handover_known:
        squares += HANDOVER**2
    if num_workers != workload.num_workers:
        squares += OTHER**2
        squares += (CROWDED * min(max(run_cpu_share, cpu_share), 1.0) ** 2) ** 2
    if workload.measured_batch_size and workload.batch_size:
        doublings = math.log2(workload.batch_size / workload.measured_batch_size)
        squares += (RESIZED * doublings) ** 2
    return float(squares**0.5)


def perturb(workload: LoaderWorkload) -> Iterator[LoaderWorkload]:
    """The workload with one cost of one run at a time a standard error larger."""
    yield from _perturb_own(workload)
    for index, other in enumerate(workload.others):
        for changed in _perturb_own(other):
            others = list(workload.others)
            others[index] = changed
            yield replace(workload, others=tuple(others))


def _perturb_own(workload: LoaderWorkload) -> Iterator[LoaderWorkload]:
    loading, cpu, step = workload.occupancy, workload.batch_cpu, workload.step
    # CPU is a part of the loading: they grow together
    more = loading.relative_error
    yield replace(
        workload,
        occupancy=replace(loading, mean_s=loading.mean_s * (1.0 + more)),
        batch_cpu=replace(cpu, mean_s=cpu.mean_s * (1.0 + more)),
    )
    yield replace(
        workload,
        step=replace(step, mean_s=step.mean_s + step.error_s),
        step_cpu_s=workload.step_cpu_s * (1.0 + step.relative_error),
    )
    # a spread is known to 1 in the root of twice the count
    if loading.count:
        wider = 1.0 + min((2.0 * loading.count) ** -0.5 + 0.1, 1.0)
        yield replace(
            workload,
            occupancy=replace(loading, std_s=loading.std_s * wider),
            batch_cpu=replace(cpu, std_s=cpu.std_s * wider),
        )
