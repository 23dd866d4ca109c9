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
    """Never more than these."""
    reason: str
    beside_training: int
    """Workers that find a core while the training process keeps its own: beyond them
    it has to share, which must pay."""


def cap_workers(summary: RunSummary, model: LoaderModel) -> WorkerCap | None:
    """The tightest of the host's limits.

    Args:
        summary: The run, with the host's limits as the hook recorded them.
        model: CPU needs of the main process and the workers.

    Returns:
        Possibly no worker at all, when memory forbids it; ``None`` when the usable
        cores are unknown, because then no number is known to be safe.
    """
    allowed, free = summary.run.host.usable_cores, model.usable_cores
    if allowed is None or free is None:
        return None
    limits = [
        _by_cores(allowed, allowed - free),
        _by_memory(summary),
        _by_shared_memory(summary),
        _by_open_files(summary),
    ]
    tightest = min((limit for limit in limits if limit), key=lambda limit: limit[0])
    beside = min(_beside_training(free, model), tightest[0])
    return WorkerCap(*tightest, beside_training=beside)


Limit = tuple[int, str]


def _by_cores(allowed: float, crowd: float) -> Limit:
    taken = f', {crowd:.1f} of them used by others' if crowd >= 0.05 else ''
    # one worker beside the training process is slower at worst, never unsafe
    return max(math.floor(allowed), 1), f'{allowed:g} usable cores{taken}'


def _beside_training(free: float, model: LoaderModel) -> int:
    """Cores left by the training process, shared by workers that block at times."""
    main = 1.0
    if model.main_cpu_s is not None and model.ready_s > 0:
        main = min(model.main_cpu_s / model.ready_s, free)
    busy = 1.0
    if model.worker_cpu_s and model.occupancy_s > 0 and not model.occupancy_is_bound:
        busy = min(model.worker_cpu_s / model.occupancy_s, 1.0)
    # a quarter of a core is within what one run can measure
    left = math.floor((max(free - main, 0.0) + 0.25) / max(busy, 0.05))
    return max(left, 1)


def _by_memory(summary: RunSummary) -> Limit | None:
    host = summary.run.host
    sizes = [host.ram_available_bytes, host.cgroup_memory_bytes]
    known = [size / host.ranks_on_host for size in sizes if size is not None]
    each = summary.process_rss_bytes
    if not known or not each:
        return None
    # a forked worker starts as large as the training process, at worst
    return (
        int(SAFE_SHARE * min(known) / each),
        f'{min(known) / 2**30:.1f} GiB of memory for this rank, '
        f'at most {each / 2**30:.1f} GiB each',
    )


def _by_shared_memory(summary: RunSummary) -> Limit | None:
    free, batch = summary.run.host.shm_free_bytes, summary.batch_bytes
    if free is None or not batch:
        return None
    free_here = free / summary.run.host.ranks_on_host
    ahead = _prefetch(summary) * batch
    return (
        int(SAFE_SHARE * free_here / ahead),
        f'{free_here / 2**20:.0f} MiB of /dev/shm for this rank, '
        f'{ahead / 2**20:.0f} MiB per worker',
    )


def _by_open_files(summary: RunSummary) -> Limit | None:
    files, tensors = summary.run.host.open_files_soft, summary.batch_tensors
    if files is None or not tensors:
        return None
    ahead = _prefetch(summary) * tensors
    return (
        int(SAFE_SHARE * files / ahead),
        f'{files} open files, one per tensor in flight ({ahead} per worker)',
    )


def _prefetch(summary: RunSummary) -> int:
    # the policy raises a prefetch_factor of one
    return max(summary.run.loader.prefetch_factor or 0, DEFAULT_PREFETCH)
