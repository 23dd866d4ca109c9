"""How fast a steady iteration is at a setting, by one run's costs. Pure."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from mmgpu_hooks.model.scene import make_loop, rate_of, step_rate_of, step_threads
from mmgpu_hooks.model.simulation import simulate_loop
from mmgpu_hooks.schema import LoaderWorkload


@dataclass(frozen=True)
class Pace:
    """A steady iteration."""

    iter_s: float
    wait_s: float
    fetch_s: float
    utilisation: float | None
    cpu_share: float
    """Of the cores, in use by anybody."""


def bound_iter_s(workload: LoaderWorkload, num_workers: int) -> float:
    """The closed bound: no loader with these costs is faster.

    ``max(G + f, S / W, (P + m + f) / C)``; G + S without workers.
    """
    if num_workers == 0:
        return workload.step.mean_s + local_loading_s(workload)[1]
    compute_s = max(workload.step_cpu_s - workload.spin_s, 0.0)
    cpu_s = workload.batch_cpu.mean_s + compute_s + workload.fetch_s
    return max(
        workload.step.mean_s + workload.fetch_s,
        workload.occupancy.mean_s / num_workers,
        cpu_s / workload.usable_cores,
    )


# a grid asks for the same settings again and again
@functools.lru_cache(maxsize=512)
def pace_of(
    workload: LoaderWorkload, num_workers: int, prefetch: int, draws: int
) -> Pace:
    """A steady iteration of ``draws`` different batches and steps."""
    if num_workers == 0:
        pace = _pace_alone(workload)
    else:
        pace = _pace_fed(workload, num_workers, prefetch, draws)
    late_s = bound_iter_s(workload, num_workers) - pace.iter_s
    if late_s <= 0.0:
        return pace
    return replace(pace, iter_s=pace.iter_s + late_s, wait_s=pace.wait_s + late_s)


def _pace_alone(workload: LoaderWorkload) -> Pace:
    """Without workers nothing overlaps; only strangers take cores."""
    cpu_s, loading_s = local_loading_s(workload)
    wait_s = cpu_s / rate_of(workload, 1) + loading_s - cpu_s
    step_s = alone_step_s(workload)
    whole_s = wait_s + step_s
    used_s = cpu_s + workload.step_cpu_s
    return Pace(whole_s, wait_s, 0.0, None, used_s / whole_s / workload.usable_cores)


def local_loading_s(workload: LoaderWorkload) -> tuple[float, float]:
    """CPU and whole of loading a batch in the loop, where nothing is handed over."""
    cpu_s = max(workload.batch_cpu.mean_s - workload.handover_cpu_s, 0.0)
    return cpu_s, max(workload.occupancy.mean_s - workload.handover_s, cpu_s)


def alone_step_s(workload: LoaderWorkload) -> float:
    """The step when no worker runs beside it."""
    threads = step_threads(workload)
    compute_s = max(workload.step_cpu_s - workload.spin_s, 0.0) / threads
    return workload.step.mean_s + compute_s * (1 / step_rate_of(workload) - 1.0)


def _pace_fed(
    workload: LoaderWorkload, num_workers: int, prefetch: int, draws: int
) -> Pace:
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
    return Pace(
        iter_s=trace.seconds / draws,
        wait_s=trace.wait_s / draws,
        fetch_s=trace.fetch_s / draws,
        utilisation=min(trace.busy_s / (trace.seconds * num_workers), 1.0),
        cpu_share=max(shares),
    )
