"""Takes the waiting for cores out of what one run measured.

A run on few cores measures its step and its batches longer than they are, because the
workers, the step and strangers share the cores. A prediction simulates that sharing,
so it must not be in the costs: they are set so that the simulated run, at its own
setting, measures what the real one did.
"""

from __future__ import annotations

from dataclasses import replace

from mmgpu_hooks.modeling.scene import make_loop, rate_of, step_threads
from mmgpu_hooks.modeling.simulation import simulate_loop
from mmgpu_hooks.records import LoaderWorkload

_ROUNDS, _DRAWS = 6, 256


def calibrate(workload: LoaderWorkload, stranger_cores: float) -> LoaderWorkload:
    """The workload whose simulation measures what the run did.

    Args:
        workload: With the step (and, without workers, the loading) as it was measured.
        stranger_cores: Cores that others used meanwhile.
    """
    workload = replace(workload, stranger_tasks=stranger_cores)
    if workload.num_workers == 0:
        return _calibrate_alone(workload)
    measured_s = workload.step.mean_s
    if not _is_crowded(workload):
        return workload
    for _ in range(_ROUNDS):
        loop = make_loop(
            workload, workload.num_workers, workload.prefetch_factor, _DRAWS
        )
        in_flight = workload.num_workers * workload.prefetch_factor
        trace = simulate_loop(loop, _DRAWS, min(3 * in_flight, _DRAWS) + 16)
        late_s = trace.step_s / _DRAWS - measured_s
        step_s = max(workload.step.mean_s - late_s, _least_step_s(workload))
        tasks = workload.stranger_tasks
        used = trace.stranger_cpu_s / trace.seconds
        if used > 0.0:
            tasks = min(tasks * stranger_cores / used, workload.host_cores * 8)
        workload = replace(
            workload,
            step=replace(workload.step, mean_s=step_s),
            stranger_tasks=tasks,
        )
    return workload


def _is_crowded(workload: LoaderWorkload) -> bool:
    wanted = workload.num_workers + step_threads(workload)
    return (
        wanted > workload.usable_cores
        or wanted + workload.stranger_tasks > workload.host_cores
    )


def _least_step_s(workload: LoaderWorkload) -> float:
    return max(workload.step_cpu_s, workload.spin_s) / step_threads(workload)


def _calibrate_alone(workload: LoaderWorkload) -> LoaderWorkload:
    threads = step_threads(workload)
    compute_s = max(workload.step_cpu_s - workload.spin_s, 0.0) / threads
    step_s = workload.step.mean_s - compute_s * (1 / rate_of(workload, threads) - 1.0)
    step_s = max(step_s, _least_step_s(workload))
    cpu_s = workload.batch_cpu.mean_s
    loading_s = workload.occupancy.mean_s - cpu_s * (1 / rate_of(workload, 1) - 1.0)
    return replace(
        workload,
        step=replace(workload.step, mean_s=step_s),
        occupancy=replace(workload.occupancy, mean_s=max(loading_s, cpu_s)),
    )
