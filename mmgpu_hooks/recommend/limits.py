"""Limits of the host (cores, memory, files) on the number of workers; no I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mmgpu_hooks.judge.holders import find_shares
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.bounds import MOST_WORKERS
from mmgpu_hooks.model.prediction import LoaderSetting
from mmgpu_hooks.model.workload import DEFAULT_PREFETCH
from mmgpu_hooks.schema.recorded import TunedLoader
from mmgpu_hooks.schema.text import Text, phrase

SAFE_HOST_SHARE = 0.5
"""Share (0 to 1) of a host's memory, shared memory or file limit that workers may take.

The rest is left to batches of unusual size, the page cache and other programs.
"""

_MIB, _GIB = 2**20, 2**30


class LiveLoader(NamedTuple):
    """DataLoader whose workers stay alive while another DataLoader is used."""

    run: Run
    setting: LoaderSetting


class WorkerCap(NamedTuple):
    """Largest safe number of loader workers, with the host limit that sets it."""

    workers: int
    """Largest number of workers that is safe on the host."""
    reason: Text


@dataclass(frozen=True)
class Limits:
    """Computes the largest number of workers that a run's host allows."""

    run: Run
    """Run whose host limits the workers; its usable cores must be known.

    Without them no number of workers is known to be safe."""
    beside: LiveLoader | None = None
    """DataLoader whose live workers take memory while the limited loader is used."""
    loader: TunedLoader = 'train'
    """DataLoader that is limited: ``train`` or ``validation``."""

    def cap(
        self, prefetch_factor: int = DEFAULT_PREFETCH, larger: float = 1.0
    ) -> WorkerCap:
        """Finds the largest number of workers within all limits, which may be 0.

        The usable cores never exceed the CPUs that the process may run on, beyond which
        PyTorch itself warns. Workers that were measured to wait may outnumber them:
        those which need a core at a time are no more than there are.

        Args:
            prefetch_factor: Batches in flight per worker.
            larger: Times the images that a batch of the run has.
        """
        taken: dict[str, float] = {}
        if self.beside is not None:
            live = self.beside.setting
            needs = _list_needs(self.beside.run, live.prefetch_factor)
            taken = {need.name: live.num_workers * need.each for need in needs}
        caps = [_cap_by_cores(self.run)]
        for need in _list_needs(self.run, prefetch_factor, larger):
            left = max(need.size - taken.get(need.name, 0.0), 0.0)
            most = int(SAFE_HOST_SHARE * left / need.each)
            caps.append(WorkerCap(most, need.phrase(left)))
        shares = find_shares(self.run)
        if shares is not None and shares.holding is not None:
            holding = shares.holding
            reason = phrase('memory with {workers} it would have held', holding)
            if holding.ends_workers:
                reason = phrase(
                    'memory with {workers} and persistent_workers=False it would have '
                    'held',
                    holding,
                )
            caps.append(WorkerCap(holding.workers, reason))
        caps += _list_failed(self.run, self.loader)
        return min(caps, key=lambda cap: cap.workers)


def _list_failed(run: Run, loader: TunedLoader) -> Iterator[WorkerCap]:
    """Yields the numbers of workers beyond which ``tune=True`` could start none."""
    for record in run.evidence.tuned_of(loader):
        stayed = record.new.num_workers
        if record.reason == 'failed' and record.old.num_workers > stayed:
            yield WorkerCap(
                stayed,
                phrase(
                    '{workers:d} failed to start, or to load, in this run',
                    workers=record.old.num_workers,
                ),
            )


def _cap_by_cores(run: Run) -> WorkerCap:
    allowed, waiting = run.meta.host.usable_cores, run.waiting_share
    assert allowed is not None  # the caller has seen to it
    crowd = run.external_share_cores
    facts = {'cores': allowed, 'other_cores': crowd, 'needed_share': 1 - waiting}
    if crowd >= 0.05 and waiting > 0.0:
        reason = phrase(
            '{cores:g} usable cores, {other_cores:.1f} of them used by others, which a '
            'worker needs {needed_share} of its time',
            **facts,
        )
    elif crowd >= 0.05:
        reason = phrase(
            '{cores:g} usable cores, {other_cores:.1f} of them used by others', **facts
        )
    elif waiting > 0.0:
        reason = phrase(
            '{cores:g} usable cores, which a worker needs {needed_share} of its time',
            **facts,
        )
    else:
        reason = phrase('{cores:g} usable cores', cores=allowed)
    # one worker beside the training process is slower at worst, never unsafe
    carried = max(math.floor(allowed / max(1 - waiting, 1 / MOST_WORKERS)), 1)
    return WorkerCap(carried, reason)


class _Need(NamedTuple):
    """Resource of the host, such as memory, that each worker takes an amount of."""

    name: str
    size: float
    """Amount of the resource that this rank may use, in the resource's unit."""
    each: float
    """Amount of the resource that each worker takes, in the resource's unit."""
    phrase: Callable[[float], Text]
    """Function that phrases the resource's size and each worker's amount."""


def _list_needs(run: Run, prefetch: int, larger: float = 1.0) -> Iterator[_Need]:
    host = run.meta.host
    ranks = host.ranks
    known = [host.ram_available_bytes, host.cgroup_memory_bytes]
    sizes = [size / ranks / _GIB for size in known if size is not None]
    pss = run.figures.loader.pss_bytes if run.figures.loader else None
    # a forked worker starts as large as the training process, at worst
    each = float(run.figures.process_rss_bytes or 0)
    is_measured = bool(pss and run.meta.loader.num_workers)
    if pss and run.meta.loader.num_workers:
        each = pss / run.meta.loader.num_workers
    if sizes and each:
        each_gib = each / _GIB
        yield _Need(
            'memory',
            min(sizes),
            each_gib,
            lambda left: (
                phrase(
                    '{rank_memory_gib:.1f} GiB of memory for this rank, measured '
                    '{worker_memory_gib:.1f} GiB each',
                    rank_memory_gib=left,
                    worker_memory_gib=each_gib,
                )
                if is_measured
                else phrase(
                    '{rank_memory_gib:.1f} GiB of memory for this rank, at most '
                    '{worker_memory_gib:.1f} GiB each',
                    rank_memory_gib=left,
                    worker_memory_gib=each_gib,
                )
            ),
        )
    if host.shm_free_bytes is not None and run.figures.batch_bytes:
        free, ahead = (
            host.shm_free_bytes / ranks,
            prefetch * run.figures.batch_bytes * larger,
        )
        yield _Need(
            'shm',
            free / _MIB,
            ahead / _MIB,
            lambda left: phrase(
                '{rank_shm_mib:.0f} MiB of /dev/shm for this rank, '
                '{worker_shm_mib:.0f} MiB per worker',
                rank_shm_mib=left,
                worker_shm_mib=ahead / _MIB,
            ),
        )
    if host.open_files_soft is not None and run.figures.batch_tensors:
        each_opens = prefetch * run.figures.batch_tensors * larger
        yield _Need(
            'files',
            host.open_files_soft,
            each_opens,
            lambda left: phrase(
                '{rank_files:.0f} open files, one per tensor in flight '
                '({worker_files:.0f} per worker)',
                rank_files=left,
                worker_files=each_opens,
            ),
        )
