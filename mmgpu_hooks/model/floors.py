"""What no number of workers makes faster."""

from __future__ import annotations

from mmgpu_hooks.schema import LoaderWorkload

_LEAST_CORES = 0.5
"""However many strangers there are, the scheduler gives as much."""


def free_cores(workload: LoaderWorkload) -> float:
    """Usable cores, less what strangers leave of the host."""
    left = workload.host_cores - workload.stranger_tasks
    return min(workload.usable_cores, max(left, _LEAST_CORES))


def cpu_floor_s(workload: LoaderWorkload) -> float:
    """``(P + m + f) / C``: the CPU of an iteration over the cores free for it, s."""
    return cpu_s(workload) / free_cores(workload)


def cpu_s(workload: LoaderWorkload) -> float:
    """CPU that an iteration cannot do without, spinning for a GPU left out, s."""
    compute_s = max(workload.step_cpu_s - workload.spin_s, 0.0)
    return workload.batch_cpu.mean_s + compute_s + workload.fetch_s


def ready_s(workload: LoaderWorkload) -> float:
    """The iteration if a batch always stood ready, on cores of its own, s."""
    return workload.step.mean_s + workload.fetch_s
