"""Makes of a workload and a setting what the simulation needs."""

from __future__ import annotations

import math
from dataclasses import replace

from mmgpu_hooks.model.simulation import Loop, draw_factors, draw_normals
from mmgpu_hooks.schema import Cost, LoaderWorkload

WAKE_S = 0.0025
"""A turn of Linux's scheduler, and a little: see `Loop.wake_s`."""

_MOST_IN_FLIGHT = 2048
"""Batches made ahead: with more, a loop never comes to feel it."""

_LOADING, _STEPS = 0, 1  # streams of random numbers


def make_loop(
    workload: LoaderWorkload, num_workers: int, prefetch_factor: int, draws: int
) -> Loop:
    """The loop that a setting would give.

    Args:
        workload: Costs without waiting for cores.
        num_workers: At least one.
        prefetch_factor: At least one.
        draws: Different batches and steps.
    """
    loading = draw_normals(draws, _LOADING)
    wholes = draw_factors(loading, workload.occupancy.variation)
    # one image is costly in CPU and in waiting alike: both from the same deviates
    cpus = draw_factors(loading, workload.batch_cpu.variation)
    whole_s, cpu_s = workload.occupancy.mean_s, workload.batch_cpu.mean_s
    batch_cpu_s = [cpu_s * factor for factor in cpus]
    batch_wait_s = [
        max(whole_s * whole - cpu, 0.0) for whole, cpu in zip(wholes, batch_cpu_s)
    ]
    # a batch may have more CPU than its whole: what was cut off is taken elsewhere
    excess = math.fsum(batch_wait_s) - draws * max(whole_s - cpu_s, 0.0)
    if excess > 0.0:
        scale = 1.0 - excess / math.fsum(batch_wait_s)
        batch_wait_s = [scale * wait_s for wait_s in batch_wait_s]
    threads = step_threads(workload)
    compute_s = max(workload.step_cpu_s - workload.spin_s, 0.0)
    left_s = workload.step.mean_s - compute_s / threads - workload.spin_s
    return Loop(
        workers=num_workers,
        prefetch_factor=min(prefetch_factor, max(_MOST_IN_FLIGHT // num_workers, 1)),
        cores=workload.usable_cores,
        host_cores=workload.host_cores,
        stranger_tasks=workload.stranger_tasks,
        batch_cpu_s=batch_cpu_s,
        batch_wait_s=batch_wait_s,
        fetch_s=workload.fetch_s,
        fetch_busy_s=workload.fetch_busy_s,
        wake_s=WAKE_S,
        step_cpu_s=compute_s,
        step_threads=threads,
        step_spin_s=workload.spin_s,
        step_wait_s=max(left_s, 0.0),
        step_power=step_power(workload),
        step_factors=draw_factors(draw_normals(draws, _STEPS), workload.step.variation),
    )


def step_threads(workload: LoaderWorkload) -> int:
    """How many threads the step must have to use its CPU in its time."""
    if workload.step.mean_s <= 0.0:
        return 1
    # a tenth of a core was seen to be within what is measured, and twice that may be;
    # threads that spin on for a while after the step would else pass for more
    threads = math.ceil(workload.step_cpu_s / workload.step.mean_s - 0.2)
    return max(min(threads, math.ceil(workload.usable_cores)), 1)


def step_power(workload: LoaderWorkload) -> float:
    """`LoaderWorkload.step_power`, for the part of the step that has many threads.

    One thread alone knows nothing of it, and a second that has little to do little.
    """
    threads = step_threads(workload)
    if threads < 2:
        return 1.0
    beside = workload.step_cpu_s / workload.step.mean_s - 1.0
    return 1.0 + (workload.step_power - 1.0) * min(beside / (threads - 1), 1.0)


def step_rate_of(workload: LoaderWorkload) -> float:
    """How fast the step goes on beside the strangers, over how fast it could."""
    return float(rate_of(workload, step_threads(workload)) ** step_power(workload))


def rate_of(workload: LoaderWorkload, tasks: int) -> float:
    """Share of a core that each of so many tasks gets beside the strangers."""
    everybody = tasks + workload.stranger_tasks
    return min(
        1.0,
        workload.usable_cores / max(tasks, 1),
        workload.host_cores / max(everybody, 1.0),
    )


def at_batch_size(
    workload: LoaderWorkload, batch_size: int | None
) -> LoaderWorkload | None:
    """The workload with another batch size; ``None`` when that is not known."""
    old, line = workload.batch_size, workload.step_line
    if batch_size is None or batch_size == old:
        return workload
    if not old or line is None:
        return None
    size = batch_size / old
    old_s = line.constant_s + line.image_s * old
    new_s = line.constant_s + line.image_s * batch_size
    if old_s <= 0.0 or new_s <= 0.0:
        return None
    slower = new_s / old_s
    measured = workload.measured_batch_size or old
    step = _scaled(workload.step, slower)
    slip_s = abs(batch_size - old) * line.image_error_s
    return replace(
        workload,
        batch_size=batch_size,
        measured_batch_size=None if batch_size == measured else measured,
        occupancy=_of_images(workload.occupancy, size),
        batch_cpu=_of_images(workload.batch_cpu, size),
        step=replace(step, error_s=math.hypot(step.error_s, slip_s)),
        step_cpu_s=workload.step_cpu_s * slower,
        spin_s=workload.spin_s * slower,
        handover_s=workload.handover_s * size,
        handover_cpu_s=workload.handover_cpu_s * size,
        fetch_s=workload.fetch_s * size,
        fetch_busy_s=workload.fetch_busy_s * size,
    )


def _scaled(cost: Cost, factor: float) -> Cost:
    return replace(
        cost,
        mean_s=cost.mean_s * factor,
        std_s=cost.std_s * factor,
        error_s=cost.error_s * factor,
    )


def _of_images(cost: Cost, size: float) -> Cost:
    """A sum of ``size`` times as many images: its spread grows with the root."""
    grown = _scaled(cost, size)
    return replace(grown, std_s=cost.std_s * math.sqrt(size))
