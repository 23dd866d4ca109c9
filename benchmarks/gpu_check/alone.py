"""GPU checks that need only torch and the driver: copies, allocators, driver locks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import torch

from benchmarks.gpu_check.child import read_answer, start_python
from benchmarks.gpu_check.nvml import open_our_gpu, sampling
from benchmarks.gpu_check.table import Row, judged, skipped

MIB = 2**20


def check_copies() -> list[Row]:
    """Checks the time of copying a 256 MiB batch to the GPU, pageable and pinned."""
    pageable = torch.ones(256 * MIB, dtype=torch.uint8)
    target = torch.empty_like(pageable, device='cuda')
    rates, waits_ms, notes = [], [], []
    for name, source in (('pageable', pageable), ('pinned', pageable.pin_memory())):
        for is_async in (False, True):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start_s = time.perf_counter()
            begin.record()
            target.copy_(source, non_blocking=is_async)
            end.record()
            waits_ms.append(1e3 * (time.perf_counter() - start_s))
            torch.cuda.synchronize()
            rates.append(256 * MIB / 1e6 / begin.elapsed_time(end))
            how = f'{name}{", non_blocking" * is_async}: {rates[-1]:.1f} GB/s'
            notes.append(f'{how}, the host waited {waits_ms[-1]:.2f} ms')
    shown = f'{rates[3]:.1f} GB/s pinned beside {rates[0]:.1f} pageable'
    target_text = 'pinned is faster, and non_blocking returns at once'
    passed = rates[3] >= rates[0] and waits_ms[3] < waits_ms[2] / 2
    return [judged('copies to the card', shown, target_text, passed, '; '.join(notes))]


# In a process of its own: the allocator is chosen when CUDA starts.
ALLOCATE = """
import json, torch
from mmgpu_hooks.measure.cuda import open_cuda_memory
torch.cuda.init()
memory = open_cuda_memory()
held = torch.empty(256 * 2**20, dtype=torch.uint8, device='cuda')
del held
try:
    torch.empty(2**46, dtype=torch.uint8, device='cuda')
except torch.OutOfMemoryError:
    pass
memory.observe()
peak = torch.cuda.max_memory_allocated()
print(json.dumps({**memory.drain(), 'theirs': peak, 'lacking': dict(memory.lacking)}))
"""


def check_allocators() -> list[Row]:
    """Checks the recorded memory peak and retry count for each CUDA allocator."""
    rows, target = [], 'the same peak; 1 retry, or not counted'
    for setting in ('', 'expandable_segments:True', 'backend:cudaMallocAsync'):
        environ = {'PYTORCH_CUDA_ALLOC_CONF': setting}
        found = read_answer(start_python(ALLOCATE, environ=environ))
        ours, theirs, retries = (
            found[name] for name in ('peak_bytes', 'theirs', 'retries')
        )
        shown = f'peak {ours} of {theirs} bytes, {retries} retries'
        passed = ours == theirs >= 256 * MIB
        passed = passed and (retries == 1 or 'retries' in found['lacking'])
        note = '; '.join(f'{name}: {why}' for name, why in found['lacking'].items())
        check = f'allocator {setting or "by default"}'
        rows.append(judged(check, shown, target, passed, note))
    return rows


def check_locks() -> list[Row]:
    """Measures how NVML sampling delays CUDA calls that take the driver's lock."""
    gpu = open_our_gpu()
    if isinstance(gpu, str):
        return [skipped('calls beside NVML', gpu)]
    small, held = torch.ones(8, device='cuda'), torch.ones(8 * MIB)
    event, runtime = torch.cuda.Event(enable_timing=True), torch.cuda.cudart()

    def allocate() -> None:
        torch.empty(64 * MIB, dtype=torch.uint8, device='cuda')
        torch.cuda.empty_cache()

    def pin() -> None:
        runtime.cudaHostRegister(held.data_ptr(), 8 * MIB, 0)
        runtime.cudaHostUnregister(held.data_ptr())

    calls: dict[str, Callable[[], object]] = {
        'kernel launch': lambda: small.add_(1),
        'event record': event.record,
        'cudaMalloc and cudaFree': allocate,
        'cudaHostRegister': pin,
    }
    found: dict[str, list[CallTimes]] = {name: [] for name in calls}
    for period_s in (None, 0.2, 0.001):
        with sampling(gpu, period_s) if period_s else nullcontext():
            for name, call in calls.items():
                found[name].append(_time(call))
    gpu.close()
    rows = []
    for name, (off, on, never) in found.items():
        shown = f'99th percentile {on.p99_us:.0f} us, {off.p99_us:.0f} us without'
        note = f'median {on.median_us:.1f} us, {off.median_us:.1f} us without; where '
        note += f'it never rests {never.median_us:.1f} us, 99th percentile '
        note += f'{never.p99_us:.0f} us'
        passed = on.p99_us <= 2 * off.p99_us + 100
        target = 'at most twice, and 100 us'
        rows.append(judged(f'{name} beside NVML', shown, target, passed, note))
    return rows


class CallTimes(NamedTuple):
    """Durations of a repeated call in microseconds: median and 99th percentile."""

    median_us: float
    p99_us: float
    """99th percentile of the call's duration, in microseconds."""


def _time(call: Callable[[], object]) -> CallTimes:
    """Returns the durations of a function that is called repeatedly for two seconds."""
    times_us: list[float] = []
    end_s = time.perf_counter() + 2.0
    while time.perf_counter() < end_s or len(times_us) < 200:
        start_s = time.perf_counter()
        call()
        times_us.append(1e6 * (time.perf_counter() - start_s))
        if len(times_us) % 100 == 0:
            torch.cuda.synchronize()
    slow_us = statistics.quantiles(times_us, n=100)[-1]
    return CallTimes(statistics.median(times_us), slow_us)
