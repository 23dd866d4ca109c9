"""Judges memory of GPU and host: how much is free, and whether use grows steadily."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.columns import Intervals, known
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.stats import (
    LEAST_GROWTH_BYTES,
    LEAST_GROWTH_SHARE,
    find_growth,
)
from mmgpu_hooks.model.workload import DEFAULT_PREFETCH
from mmgpu_hooks.schema.judged import Estimate
from mmgpu_hooks.schema.text import Text, phrase

SAFE_CARD_SHARE = 0.9
"""Largest share (0 to 1) of free GPU memory that a recommended batch size may take.

The rest goes to fragments of the allocator and to batches with more boxes than any
that was seen.
"""

CONTEXT_BYTES = 600 * 2**20
"""Bytes assumed for a CUDA context if they were not measured."""

SENT_TENSORS = 256
"""Number of tensors that a worker sends before its heap stops growing.

PyTorch forgets those that were sent by 128
(``multiprocessing.reductions.SharedCache``), and what it keeps of each stands between
the holes that they left. The second 128 still add a little.
"""


def count_ahead(num_workers: int | None, prefetch_factor: int | None) -> int:
    """Counts the batches that workers load ahead; 2 per worker if no factor is set."""
    return (num_workers or 0) * (prefetch_factor or DEFAULT_PREFETCH)


def is_shm_small(total_bytes: int, least_free_bytes: int, ahead_bytes: float) -> bool:
    """True if batches in flight fill, or nearly fill, shared memory."""
    safe = thresholds.FULL_SHARE * total_bytes
    return total_bytes - least_free_bytes >= safe or ahead_bytes >= safe


def are_files_few(most: float, limit: int) -> bool:
    """True if the open files come near the limit on open files."""
    return most >= thresholds.FULL_SHARE * limit


class CardRoom(NamedTuple):
    """Bytes of GPU memory: total, and held by the CUDA context and other processes."""

    total_bytes: int
    beside_bytes: int
    """Bytes of GPU memory held by the CUDA context and by other processes."""

    @property
    def room_bytes(self) -> int:
        """Bytes of GPU memory above which a training runs out of memory."""
        return max(self.total_bytes - self.beside_bytes, 0)

    @property
    def safe_bytes(self) -> int:
        """Largest bytes of GPU memory that a recommended batch size may take."""
        return int(SAFE_CARD_SHARE * self.room_bytes)


def find_card_room(run: Run) -> CardRoom | None:
    """Finds the bytes of GPU memory a run may use; ``None`` if its size is unknown."""
    figures = run.figures
    total = run.meta.gpu.memory_total_bytes if run.meta.gpu else None
    if not total:
        return None
    used = figures.gpu.mem_used_bytes if figures.gpu else None
    reserved = figures.gpu_mem_reserved_bytes
    beside = CONTEXT_BYTES
    if used is not None and reserved is not None and 0 <= used - reserved <= total:
        beside = used - reserved
    return CardRoom(total, beside)


class HostRoom(NamedTuple):
    """Free host memory in bytes, or what the control group allows if that is less."""

    free_bytes: int
    bound: Text


def find_host_room(run: Run) -> HostRoom | None:
    """Finds the lower of the last recorded free memory of host and control group."""
    read = {
        phrase('on the host'): known(run.column('host.ram_available_bytes')),
        phrase('below the limit of its control group'): known(
            run.column('group_free_bytes')
        ),
    }
    rooms = (HostRoom(int(free[-1]), at) for at, free in read.items() if len(free))
    return min(rooms, default=None)


def find_growth_of(
    some: Intervals,
    field: str,
    *,
    least_bytes: float = LEAST_GROWTH_BYTES,
    least_share: float = LEAST_GROWTH_SHARE,
    warm_up: float = 0.0,
) -> Estimate | None:
    """Finds steady growth of a recorded memory field, in bytes per 1000 iterations."""
    read = some.having(field)
    return find_growth(
        read.column('iteration'),
        read.column(field),
        least_bytes=least_bytes,
        least_share=least_share,
        warm_up=warm_up,
    )


def are_workers_kept(run: Run) -> bool:
    """True if workers outlive an epoch, or training is iteration-based."""
    return bool(run.meta.loader.persistent_workers) or run.meta.loop == 'iter'


def find_worker_growth(run: Run) -> Estimate | None:
    """Finds steady growth of the workers' memory, in bytes per 1000 iterations.

    What they take until each has sent `SENT_TENSORS` is no growth.
    """
    some = run.latest.having('worker_own_bytes')
    if len(some) and not are_workers_kept(run):
        epochs = some.column('epoch')
        some = some.where(epochs == statistics.mode(epochs.tolist()))
    sent = (
        SENT_TENSORS
        * (run.meta.loader.num_workers or 0)
        / (run.figures.batch_tensors or 1)
    )
    return find_growth_of(some, 'worker_own_bytes', warm_up=sent)


class HostGrowth(NamedTuple):
    """Growth of host memory use (bytes per 1000 iterations), and the memory left."""

    process: Estimate | None
    workers: Estimate | None
    room: HostRoom | None
    is_lasting: bool
    """True if the memory growth goes on after an epoch's workers have ended."""
    bytes_each: float
    """Bytes of host memory growth per iteration, over all ranks of the host."""

    @property
    def full_in(self) -> int | None:
        """Number of iterations until no host memory is left; ``None`` if unknown."""
        return int(self.room.free_bytes / self.bytes_each) if self.room else None


def find_host_growth(run: Run) -> HostGrowth | None:
    """Finds the growth of a run's host memory; ``None`` if nothing is known to grow."""
    process = find_growth_of(run.every, 'process_own_bytes')
    workers = find_worker_growth(run)
    lasts = bool(process or (workers and are_workers_kept(run)))
    growing = [process] if lasts and not are_workers_kept(run) else [process, workers]
    rates = [growth.value for growth in growing if growth]
    each = sum(rates) * run.meta.host.ranks / 1000
    if not each:
        return None
    return HostGrowth(
        process=process,
        workers=workers,
        room=find_host_room(run),
        is_lasting=lasts,
        bytes_each=each,
    )


def count_left(run: Run) -> int | None:
    """Counts the planned iterations after the last recorded; ``None`` if unknown."""
    head, done = run.meta, run.intervals[-1].iteration if run.intervals else 0
    whole = head.max_iters
    if whole is None and head.max_epochs and head.loader.batches_per_epoch:
        whole = head.max_epochs * head.loader.batches_per_epoch
    return None if whole is None else max(whole - done, 0)
