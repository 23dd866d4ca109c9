"""Synthetic workloads with loading and step times set by the test."""

from __future__ import annotations

from typing import Any

from fakes.replaced import replace
from mmgpu_hooks.model.workload import Cost, Workload


def make_workload(**fields: Any) -> Workload:
    """Returns a workload: 40 ms loading (half CPU), 15 ms step, eight free cores."""
    workload = Workload(
        num_workers=2,
        prefetch_factor=2,
        persistent_workers=True,
        batch_size=4,
        iterations=100,
        iter_time=Cost(0.02, 0.001, 0.0001, 100),
        batch_time=Cost(0.04, 0.0, 0.0001, 100),
        batch_cpu=Cost(0.02, 0.0, 0.0001, 100),
        step=Cost(0.015, 0.0, 0.0001, 100),
        step_cpu_s=0.001,
        fetch_s=0.001,
        fetch_busy_s=0.003,
        usable_cores=8.0,
        host_cores=8.0,
    )
    return replace(workload, **fields)
