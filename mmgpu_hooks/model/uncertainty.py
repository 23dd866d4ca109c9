"""How far off a prediction may be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from mmgpu_hooks.schema import LoaderWorkload

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
"""Added for each doubling or halving of the nearest batch size that was measured:
loading is taken to grow with the images, and the step along its line."""


HANDED = 0.5
"""Of what handing a batch over is taken to cost, which no run measures."""

POWER = 0.5
"""Of what is beyond 1 of a `LoaderWorkload.step_power` that is not known."""


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
        line = workload.step_line
        seen = {workload.measured_batch_size, *(line.batch_sizes if line else ())}
        doublings = min(abs(math.log2(workload.batch_size / size)) for size in seen)
        squares += (RESIZED * doublings) ** 2
    return float(squares**0.5)


def perturb(workload: LoaderWorkload, *, alone: bool) -> Iterator[LoaderWorkload]:
    """The workload with one cost at a time a standard error off.

    Args:
        workload: What the run tells.
        alone: Whether a prediction without workers is meant: only that depends on
            what handing batches over takes.
    """
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
    if alone and workload.num_workers and workload.handover_s > 0.0:
        # it cannot be more than all that a worker does for a batch
        yield replace(
            workload,
            handover_s=HANDED * min(workload.handover_s, loading.mean_s),
            handover_cpu_s=HANDED * min(workload.handover_cpu_s, cpu.mean_s),
        )
    if not workload.is_step_power_known:
        yield replace(
            workload, step_power=1.0 + POWER * max(workload.step_power - 1.0, 0.0)
        )
    # a spread is known to 1 in the root of twice the count
    if loading.count:
        wider = 1.0 + min((2.0 * loading.count) ** -0.5 + 0.1, 1.0)
        yield replace(
            workload,
            occupancy=replace(loading, std_s=loading.std_s * wider),
            batch_cpu=replace(cpu, std_s=cpu.std_s * wider),
        )
