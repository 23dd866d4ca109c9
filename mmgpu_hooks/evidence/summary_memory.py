"""Folds what the CUDA allocator went through over a run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from mmgpu_hooks.evidence.interval_table import IntervalTable
from mmgpu_hooks.evidence.tabulation import tabulate
from mmgpu_hooks.evidence.weights import max_known, sum_known
from mmgpu_hooks.schema import CudaMemorySummary, RunEvidence

_BLOCKS = 8
_LEAST_CREEP_BYTES = 2**20
"""The allocator's large blocks come in steps of this: less is none."""


def fold_cuda_memory(table: IntervalTable) -> CudaMemorySummary | None:
    """Fold the allocator's windows; sums and extremes are of the whole run."""
    windows = table.having('cuda_memory')
    if not len(windows):
        return None
    told = windows.having('cuda_memory', 'allocated_bytes')
    iterations = told.ints('iteration').filled()
    allocated = told.ints('cuda_memory', 'allocated_bytes').filled()
    return CudaMemorySummary(
        retries=sum_known(windows.ints('cuda_memory', 'retries')),
        ooms=sum_known(windows.ints('cuda_memory', 'ooms')),
        inactive_bytes=max_known(windows.ints('cuda_memory', 'inactive_bytes')),
        creep_bytes_per_1000=fold_creep(list(zip(iterations, allocated))),
    )


def fold_peak(evidence: RunEvidence) -> tuple[int, int | None] | None:
    """Peak of the allocator and padded pixels of the largest batch, over a run."""
    table = tabulate(evidence.intervals)
    peak = max_known(table.ints('gpu_mem_peak_bytes'))
    if peak is None:
        return None
    return peak, max_known(table.ints('largest_batch_pixels'))


def fold_creep(points: Sequence[tuple[int, int]]) -> float | None:
    """Growth of live tensors over the second half of a run.

    Half a run is eight blocks; only when the median of each is above the one before
    does something grow. Batches of different size make it rise so often by chance once
    in 8! = 40320 runs, and a single jump (a new stage of training) is no growth.

    Args:
        points: Iteration and bytes at the end of each interval.

    Returns:
        Bytes per 1000 iterations; ``None`` when it does not stand out of the noise, is
        below 1 MiB in all, or there are fewer than eight intervals to see it in.
    """
    half = points[len(points) // 2 :]
    if len(half) < _BLOCKS:
        return None
    bounds = [len(half) * number // _BLOCKS for number in range(_BLOCKS + 1)]
    blocks = [half[begin:end] for begin, end in zip(bounds, bounds[1:])]
    sizes = [statistics.median(size for _, size in block) for block in blocks]
    if any(later <= earlier for earlier, later in zip(sizes, sizes[1:])):
        return None
    growth = sizes[-1] - sizes[0]
    middles = [statistics.median(iteration for iteration, _ in b) for b in blocks]
    iterations = middles[-1] - middles[0]
    if growth < _LEAST_CREEP_BYTES or iterations <= 0:
        return None
    return 1000 * growth / iterations
