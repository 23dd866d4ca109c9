"""How many workers this host can carry, and what says so. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.prediction import MOST_WORKERS

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


def cap_workers(run: Run, prefetch_factor: int = DEFAULT_PREFETCH) -> WorkerCap:
    """The tightest of the host's limits.

    The usable cores never exceed the CPUs that the process may run on, beyond which
    PyTorch itself warns. Workers that were measured to wait may outnumber them: those
    which need a core at a time are no more than there are.

    Args:
        run: The run, with the host's limits as the hook recorded them; its usable
            cores must be known, as without them no number is known to be safe.
        prefetch_factor: Batches in flight per worker.

    Returns:
        Possibly no worker at all, when memory forbids it.
    """
    limits = [
        _by_cores(run, run.waiting_share),
        _by_memory(run),
        _by_shared_memory(run, prefetch_factor),
        _by_open_files(run, prefetch_factor),
    ]
    return WorkerCap(*min((one for one in limits if one), key=lambda one: one[0]))


Limit = tuple[int, str]


def _by_cores(run: Run, waiting: float) -> Limit:
    allowed = run.run.host.usable_cores
    assert allowed is not None  # the caller has seen to it
    crowd = run.external_cpu_cores or 0.0
    taken = f', {crowd:.1f} of them used by others' if crowd >= 0.05 else ''
    if waiting > 0.0:
        taken += f', which a worker needs {100 * (1 - waiting):.0f} % of its time'
    # one worker beside the training process is slower at worst, never unsafe
    carried = max(math.floor(allowed / max(1 - waiting, 1 / MOST_WORKERS)), 1)
    return carried, f'{allowed:g} usable cores{taken}'


def _by_memory(run: Run) -> Limit | None:
    host = run.run.host
    sizes = [host.ram_available_bytes, host.cgroup_memory_bytes]
    known = [size / _ranks(run) for size in sizes if size is not None]
    each, how = bytes_each(run)
    if not known or not each:
        return None
    return (
        int(SAFE_SHARE * min(known) / each),
        f'{min(known) / 2**30:.1f} GiB of memory for this rank, '
        f'{how} {each / 2**30:.1f} GiB each',
    )


def _ranks(run: Run) -> int:
    # an edited file may say anything
    return max(run.run.host.ranks_on_host, 1)


def bytes_each(run: Run) -> tuple[float | None, str]:
    """Memory of one worker: as measured, else what it is at worst; and which."""
    pss = run.loader.pss_bytes if run.loader else None
    if pss and run.worker_count:
        return pss / run.worker_count, 'measured'
    # a forked worker starts as large as the training process, at worst
    return run.process_rss_bytes, 'at most'


def _by_shared_memory(run: Run, prefetch_factor: int) -> Limit | None:
    free, batch = run.run.host.shm_free_bytes, run.batch_bytes
    if free is None or not batch:
        return None
    free_here = free / _ranks(run)
    ahead = prefetch_factor * batch
    return (
        int(SAFE_SHARE * free_here / ahead),
        f'{free_here / 2**20:.0f} MiB of /dev/shm for this rank, '
        f'{ahead / 2**20:.0f} MiB per worker',
    )


def _by_open_files(run: Run, prefetch_factor: int) -> Limit | None:
    files, tensors = run.run.host.open_files_soft, run.batch_tensors
    if files is None or not tensors:
        return None
    ahead = prefetch_factor * tensors
    return (
        int(SAFE_SHARE * files / ahead),
        f'{files} open files, one per tensor in flight ({ahead} per worker)',
    )
