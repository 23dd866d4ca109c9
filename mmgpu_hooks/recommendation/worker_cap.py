"""How many workers this host can carry, and what says so. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mmgpu_hooks.modeling.loader_bound import LoaderModel
from mmgpu_hooks.records import RunSummary

DEFAULT_PREFETCH = 2
"""PyTorch's own prefetch_factor."""

SAFE_SHARE = 0.5
"""Share of a host's memory, shared memory or file limit that workers may take: the
rest is left to batches of unusual size, the page cache and other programs."""


@dataclass(frozen=True)
class WorkerCap:
    """The largest safe ``num_workers`` and the limit behind it."""

    workers: int
    reason: str


def cap_workers(summary: RunSummary, model: LoaderModel) -> WorkerCap | None:
    """The tightest of the host's limits.

    Args:
        summary: The run, with the host's limits as the hook recorded them.
        model: CPU needs of the main process and the workers.

    Returns:
        At least one worker; ``None`` when the usable cores are unknown, because
        then no number is known to be safe.
    """
    allowed, free = summary.run.host.usable_cores, model.usable_cores
    if allowed is None or free is None:
        return None
    limits = [
        _by_cores(allowed, free, model),
        _by_memory(summary),
        _by_shared_memory(summary),
        _by_open_files(summary),
    ]
    tightest = min((limit for limit in limits if limit), key=lambda limit: limit[0])
    return WorkerCap(max(tightest[0], 1), tightest[1])


Limit = tuple[int, str]


def _by_cores(allowed: float, free: float, model: LoaderModel) -> Limit:
    """Cores left beside the training process, shared by workers that block at times."""
    main = 1.0
    if model.main_cpu_s is not None and model.ready_s > 0:
        main = min(model.main_cpu_s / model.ready_s, free)
    busy = 1.0
    if model.worker_cpu_s and model.occupancy_s > 0 and not model.occupancy_is_bound:
        busy = min(model.worker_cpu_s / model.occupancy_s, 1.0)
    # a quarter of a core is within what one run can measure
    left = math.floor((max(free - main, 0.0) + 0.25) / max(busy, 0.05))
    crowd = f', {allowed - free:.1f} by others' if allowed - free >= 0.05 else ''
    return (
        min(left, math.floor(allowed)),
        f'{allowed:g} usable cores, {main:.1f} of them taken by the training process'
        f'{crowd}',
    )


def _by_memory(summary: RunSummary) -> Limit | None:
    host = summary.run.host
    sizes = [host.ram_available_bytes, host.cgroup_memory_bytes]
    known: list[int] = [size for size in sizes if size is not None]
    each = summary.process_rss_bytes
    if not known or not each:
        return None
    # a forked worker starts as large as the training process, at worst
    return (
        int(SAFE_SHARE * min(known) / each),
        f'{min(known) / 2**30:.1f} GiB of memory, at most {each / 2**30:.1f} GiB each',
    )


def _by_shared_memory(summary: RunSummary) -> Limit | None:
    free, batch = summary.run.host.shm_free_bytes, summary.batch_bytes
    if not free or not batch:
        return None
    ahead = _prefetch(summary) * batch
    return (
        int(SAFE_SHARE * free / ahead),
        f'{free / 2**30:.1f} GiB of /dev/shm, {ahead / 2**20:.0f} MiB per worker',
    )


def _by_open_files(summary: RunSummary) -> Limit | None:
    files, tensors = summary.run.host.open_files_soft, summary.batch_tensors
    if not files or not tensors:
        return None
    ahead = _prefetch(summary) * tensors
    return (
        int(SAFE_SHARE * files / ahead),
        f'{files} open files, one per tensor in flight ({ahead} per worker)',
    )


def _prefetch(summary: RunSummary) -> int:
    return summary.run.loader.prefetch_factor or DEFAULT_PREFETCH
