"""Trials of a sweep on a card whose memory is a line over the batch size."""

from __future__ import annotations

from typing import Any

from fakes.sweeps import make_sweep_row
from mmgpu_hooks.schema import SweepRow

GIB = 2**30
STATIC, WORKSPACE, EACH = GIB, GIB // 2, 2 * GIB
"""Planted: memory of any batch, in two parts, and of each image."""
PIXELS = 800 * 1344


def make_trial(
    batch: int, iter_s: float | None = None, workers: int = 2, **fields: Any
) -> SweepRow:
    """One trial that needs exactly what is planted, on a card of 24 GiB."""
    known = {
        'memory_peak_bytes': STATIC + WORKSPACE + batch * EACH,
        'memory_source': 'cuda_allocator',
        'static_bytes': STATIC,
        'gradient_bytes': GIB // 4,
        'card_bytes': 24 * GIB,
        'card_beside_bytes': GIB // 2,
        'largest_batch_pixels': batch * PIXELS,
    }
    seconds = 0.06 + 0.01 * batch if iter_s is None else iter_s
    return make_sweep_row(workers, seconds, batch=batch, **{**known, **fields})


def make_full(batch: int, workers: int = 2, **fields: Any) -> SweepRow:
    """One that ran out of memory."""
    error = 'torch.OutOfMemoryError: CUDA out of memory'
    known = {'status': 'out_of_memory', 'error': error}
    return make_sweep_row(workers, None, batch=batch, **{**known, **fields})
