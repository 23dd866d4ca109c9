"""How many workers this host can carry, and what says so. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.job import Setting
from mmgpu_hooks.model.prediction import MOST_WORKERS

DEFAULT_PREFETCH = 2
"""PyTorch's own prefetch_factor."""

SAFE_SHARE = 0.5
"""Share of a host's memory, shared memory or file limit that workers may take: the
rest is left to batches of unusual size, the page cache and other programs."""

_MIB, _GIB = 2**20, 2**30


class WorkerCap(NamedTuple):
    """The largest safe ``num_workers`` and the limit behind it."""

    workers: int
    """Never more than these."""
    reason: str


def cap_workers(
    run: Run,
    prefetch_factor: int = DEFAULT_PREFETCH,
    beside: tuple[Run, Setting] | None = None,
) -> WorkerCap:
    """The tightest of the host's limits; possibly no worker at all.

    The usable cores never exceed the CPUs that the process may run on, beyond which
    PyTorch itself warns. Workers that were measured to wait may outnumber them: those
    which need a core at a time are no more than there are.

    Args:
        run: The run, with the host's limits as the hook recorded them; its usable
            cores must be known, as without them no number is known to be safe.
        prefetch_factor: Batches in flight per worker.
        beside: A loader whose workers live on meanwhile, and its setting.
    """
    taken: dict[str, float] = {}
    if beside is not None:
        other, setting = beside
        needs = _list_needs(other, setting.prefetch_factor)
        taken = {name: setting.num_workers * each for name, _, each, _ in needs}
    caps = [_cap_by_cores(run)]
    for name, size, each, text in _list_needs(run, prefetch_factor):
        left = max(size - taken.get(name, 0.0), 0.0)
        caps.append(WorkerCap(int(SAFE_SHARE * left / each), text.format(left, each)))
    return min(caps, key=lambda cap: cap.workers)


def _cap_by_cores(run: Run) -> WorkerCap:
    allowed, waiting = run.run.host.usable_cores, run.waiting_share
    assert allowed is not None  # the caller has seen to it
    crowd = run.external_cpu_cores or 0.0
    taken = f', {crowd:.1f} of them used by others' if crowd >= 0.05 else ''
    if waiting > 0.0:
        taken += f', which a worker needs {100 * (1 - waiting):.0f} % of its time'
    # one worker beside the training process is slower at worst, never unsafe
    carried = max(math.floor(allowed / max(1 - waiting, 1 / MOST_WORKERS)), 1)
    return WorkerCap(carried, f'{allowed:g} usable cores{taken}')


def _list_needs(run: Run, prefetch: int) -> Iterator[tuple[str, float, float, str]]:
    """What this rank has, what each worker takes of it, and how both are said."""
    host = run.run.host
    ranks = host.ranks
    known = [host.ram_available_bytes, host.cgroup_memory_bytes]
    sizes = [size / ranks / _GIB for size in known if size is not None]
    pss = run.loader.pss_bytes if run.loader else None
    # a forked worker starts as large as the training process, at worst
    each, how = float(run.process_rss_bytes or 0), 'at most'
    if pss and run.worker_count:
        each, how = pss / run.worker_count, 'measured'
    if sizes and each:
        text = f'{{:.1f}} GiB of memory for this rank, {how} {{:.1f}} GiB each'
        yield 'memory', min(sizes), each / _GIB, text
    if host.shm_free_bytes is not None and run.batch_bytes:
        text = '{:.0f} MiB of /dev/shm for this rank, {:.0f} MiB per worker'
        free, ahead = host.shm_free_bytes / ranks, prefetch * run.batch_bytes
        yield 'shm', free / _MIB, ahead / _MIB, text
    if host.open_files_soft is not None and run.batch_tensors:
        text = '{:.0f} open files, one per tensor in flight ({:.0f} per worker)'
        yield 'files', host.open_files_soft, prefetch * run.batch_tensors, text
