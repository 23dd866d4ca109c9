"""Synthetic runs of one training with several batch sizes and worker counts."""

from __future__ import annotations

from typing import Any

from fakes.replaced import replace
from fakes.runs import (
    GIB,
    make_evidence,
    make_gpu_fields,
    make_gpu_run,
    make_inside_workers,
    make_loader,
    make_run,
)
from mmgpu_hooks.schema.recorded import RunRecord
from mmgpu_hooks.schema.run import RunEvidence

PIXELS = 800 * 1344
FIXED, EACH = 1 * GIB, 2 * GIB
"""Bytes of memory of the synthetic training: for any batch, and per image."""


def make_pooled(
    batch_size: int = 4,
    num_workers: int = 4,
    *,
    day: int = 20,
    device: str = 'cuda',
    constant_s: float = 0.06,
    run: dict[str, Any] | None = None,
    **fields: Any,
) -> RunEvidence:
    """Returns a run without data wait, whose step time is linear in the batch size.

    Args:
        batch_size: Images per batch.
        num_workers: Of the train loader.
        day: It started on; a later one is newer.
        device: ``cuda`` or ``cpu``.
        constant_s: What the step takes besides 10 ms per image.
        run: Fields of the run's record.
        **fields: Of the intervals.
    """
    loader = make_loader(
        num_workers,
        persistent_workers=True,
        prefetch_factor=2,
        batch_size=batch_size,
        batches_per_epoch=400 // batch_size,
    )
    make = make_gpu_run if device == 'cuda' else make_run
    record: RunRecord = make(
        started_unix_s=1.7e9 + 86400.0 * day, loader=loader, parameters=40 * 2**20
    )
    record = replace(record, **(run or {}))
    gpu: dict[str, Any] = {}
    if device == 'cuda':
        gpu = {
            **make_gpu_fields(),
            'gpu_mem_peak_bytes': FIXED + EACH * batch_size,
            'gpu_mem_reserved_bytes': FIXED + EACH * batch_size + GIB,
            'largest_batch_pixels': batch_size * PIXELS,
        }
        used = gpu['gpu_mem_reserved_bytes'] + GIB
        gpu['gpu'] = replace(gpu['gpu'], mem_used_bytes=used)
    workers = make_inside_workers(0.02 * batch_size, std_s=0.0001, count=num_workers)
    step_s = constant_s + 0.01 * batch_size
    defaults = {
        'data_wait_s': 0.001,
        'step_s': step_s,
        'process_cpu_s': 20 * 0.3 * step_s,
        'images': 20 * batch_size,
        'batch_bytes': batch_size * 2**20,
        'workers': workers if num_workers else None,
    }
    evidence = make_evidence(run=record, **{**defaults, **gpu, **fields})
    return replace(evidence, path=f'/runs/{day}-{batch_size}-{num_workers}.jsonl')
