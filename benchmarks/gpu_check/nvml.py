"""Our NVML figures beside nvidia-smi's: utilisation, memory, and what else is there."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu_check.smi import Smi, ask_smi
from benchmarks.gpu_check.table import Row, judged, skipped
from mmgpu_hooks.measure.absent import Absent
from mmgpu_hooks.measure.cuda import cuda_device
from mmgpu_hooks.measure.gpu import Gpu, GpuSample, GpuSampler, open_gpu

Window = Mapping[str, Any]
"""What was sampled; what is unknown is left out."""

UTIL_POINTS = 5.0
MEMORY_MIB = 4
THREAD_PCT = 0.5
SETTLE_S, MEASURE_S = 2.0, 6.0
"""The driver's figure looks back by up to a second, and our looks by another."""
MORE_S = 4.0
"""Until 15 s have passed, when PCIe is asked for where GPM does not tell it."""

EXTRAS = (
    'sm_clock_mhz',
    'throttled_pct',
    'sm_active_pct',
    'temperature_c',
)


def open_our_gpu() -> Gpu | Absent:
    """The card of this process, found as the hook finds it."""
    import torch

    try:
        torch.cuda.init()
    except Exception as error:  # noqa: BLE001, the checks are to say it
        return Absent(f'CUDA does not start: {error}')
    device = cuda_device()
    assert device is not None, 'CUDA was started just now'
    return open_gpu(
        uuid=device.uuid, pci_bus_id=device.pci_bus_id, index=device.cuda_index
    )


def read_gpu_util() -> float | None:
    """Utilisation before we use the card; ``None`` when it cannot be told."""
    gpu = open_our_gpu()
    if isinstance(gpu, Absent):
        return None
    samples = []
    for _ in range(5):
        time.sleep(0.2)
        samples.append(gpu.read_sample().util_pct)
    gpu.close()
    known = [util for util in samples if util is not None]
    return statistics.fmean(known) if known else None


def read_driver_version() -> str | None:
    """As NVML tells it."""
    gpu = open_our_gpu()
    if isinstance(gpu, Absent):
        return None
    driver = gpu.device()['driver_version']
    gpu.close()
    return driver


@dataclass(frozen=True)
class Phase:
    """A stretch of known utilisation."""

    name: str
    settling: Window
    """Its beginning, which is not compared."""
    window: Window
    since_s: float
    """Wall clock, as is ``until_s``."""
    until_s: float


class ThreadCost:
    """What the looks cost the thread that makes them.

    Args:
        gpu: The card that is looked at.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.cpu_s = 0.0
        self.walls_s: list[float] = []
        self._began_s = time.perf_counter()

    def read_sample(self) -> GpuSample:
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        sample = self._gpu.read_sample()
        self.cpu_s += time.thread_time() - cpu_s
        self.walls_s.append(time.perf_counter() - wall_s)
        return sample

    @property
    def cpu_pct(self) -> float:
        """Of one core, since it was made."""
        return 100.0 * self.cpu_s / (time.perf_counter() - self._began_s)


@contextmanager
def sampling(gpu: Gpu) -> Iterator[tuple[GpuSampler, ThreadCost]]:
    """The hook's own sampler at its own pace."""
    cost = ThreadCost(gpu)
    sampler = GpuSampler(cost.read_sample)
    sampler.start()
    try:
        yield sampler, cost
    finally:
        sampler.stop(5.0)


def check_nvml() -> list[Row]:
    """Utilisation and memory beside nvidia-smi, extras present or why not, cost."""
    from benchmarks.gpu_check.load import Matmuls

    gpu = open_our_gpu()
    if isinstance(gpu, Absent):
        return [judged('NVML opens', gpu.reason, 'opens', False, sensitive=False)]
    try:
        uuid = gpu.device()['uuid']
        load = Matmuls()
        has_smi = shutil.which('nvidia-smi') is not None and uuid is not None
        smi = Smi(str(uuid)) if has_smi else None
        try:
            with sampling(gpu) as (sampler, cost):
                busy = run_phase('busy', sampler, load.keep_busy)
                idle = run_phase('idle', sampler, time.sleep)
                load.keep_busy(MORE_S)
                windows = [
                    busy.settling,
                    busy.window,
                    idle.window,
                    sampler.drain(),
                ]
                rows = _check_cost(sampler, cost)
                why = sampler.failure or gpu.unsupported.get('util_pct')
        finally:
            if smi is not None:
                smi.close()
        for phase in (idle, busy):
            rows = compare_phase(phase, smi, why) + rows
        rows.append(_check_memory(gpu, uuid, has_smi))
        return rows + _check_extras(gpu, windows)
    finally:
        gpu.close()


def run_phase(name: str, sampler: GpuSampler, work: Callable[[float], None]) -> Phase:
    """Do it, and keep what was sampled."""
    work(SETTLE_S)
    settling, since_s = sampler.drain(), time.time()
    work(MEASURE_S)
    return Phase(name, settling, sampler.drain(), since_s, time.time())


def compare_phase(phase: Phase, smi: Smi | None, why: str | None) -> list[Row]:
    """Ours beside what was planted, and beside nvidia-smi's.

    Args:
        phase: What was planted and what we sampled.
        smi: What nvidia-smi sampled.
        why: Why utilisation is unknown, where that is so.
    """
    check, window = f'utilisation, {phase.name} phase', phase.window
    ours = window.get('util_pct')
    if ours is None:
        target = f'within {UTIL_POINTS:.0f} points'
        return [judged(check, 'unknown', target, False, why or 'no sample')]
    theirs = None if smi is None else smi.mean(phase.since_s, phase.until_s)
    truth = 100.0 if phase.name == 'busy' else 0.0
    rows = [
        judged(
            f'{check}: planted',
            f'{ours:.1f} % for {truth:.0f} %, {window["zero_pct"]:.0f} % of it at 0',
            f'within {UTIL_POINTS:.0f} points',
            abs(ours - truth) <= UTIL_POINTS,
            f'{window["samples"]} samples; '
            f'standard deviation {window["util_std_pct"]:.1f} points',
        )
    ]
    if theirs is None:
        return [*rows, skipped(f'{check}: nvidia-smi', 'nvidia-smi tells none')]
    return [
        *rows,
        judged(
            f'{check}: nvidia-smi',
            f'{ours:.1f} % beside {theirs:.1f} %',
            f'within {UTIL_POINTS:.0f} points',
            abs(ours - theirs) <= UTIL_POINTS,
        ),
    ]


def _check_cost(sampler: GpuSampler, cost: ThreadCost) -> list[Row]:
    if not cost.walls_s or sampler.failure is not None:
        why = sampler.failure or 'no sample'
        return [judged('NVML thread: CPU', 'unknown', f'<= {THREAD_PCT} %', False, why)]
    median_us = 1e6 * statistics.median(cost.walls_s)
    worst_us = 1e6 * max(cost.walls_s)
    return [
        judged(
            'NVML thread: CPU',
            f'{cost.cpu_pct:.3f} % of a core',
            f'<= {THREAD_PCT} %',
            cost.cpu_pct <= THREAD_PCT,
            f'one look {median_us:.0f} us median, {worst_us:.0f} us worst, '
            f'{len(cost.walls_s)} looks',
        )
    ]


def _check_memory(gpu: Gpu, uuid: str | None, has_smi: bool) -> Row:
    import torch

    check = 'device memory in use: nvidia-smi'
    if not has_smi:
        return skipped(check, 'there is no nvidia-smi')
    held = torch.empty(512 * 2**20, dtype=torch.uint8, device='cuda')
    torch.cuda.synchronize()
    before = gpu.read_sample().mem_used_bytes
    total, free = ask_smi('memory.total', 'memory.free', gpu=uuid)[0]
    after = gpu.read_sample().mem_used_bytes
    del held
    if not (total.isdigit() and free.isdigit()):
        return skipped(check, 'nvidia-smi tells none')
    if before is None or after is None:
        why = gpu.unsupported.get('mem_used_bytes', 'no sample')
        return judged(check, 'unknown', f'within {MEMORY_MIB} MiB', False, why)
    # "used" of newer nvidia-smi leaves the driver's own reserve out: total - free
    theirs_mib = int(total) - int(free)
    ours_mib = (before / 2**20, after / 2**20)
    off_mib = max(min(ours_mib) - theirs_mib, theirs_mib - max(ours_mib), 0.0)
    return judged(
        check,
        f'{ours_mib[1]:.0f} MiB beside {theirs_mib} MiB',
        f'within {MEMORY_MIB} MiB',
        off_mib <= MEMORY_MIB,
        'total - free, which holds the reserve of the driver too',
    )


def _check_extras(gpu: Gpu, windows: Sequence[Window]) -> list[Row]:
    """Each figure has a value or a reason: which, is the machine's affair."""
    rows, reasons = [], gpu.reasons()
    for figure in EXTRAS:
        seen = [window.get(figure) for window in windows]
        values = [value for value in seen if value is not None]
        reason = reasons.get(figure)
        shown = f'{values[0]:.6g}' if values else 'unknown'
        rows.append(
            judged(
                f'{figure}',
                shown,
                'a value, or why not',
                bool(values) or reason is not None,
                '' if values else reason or '',
                sensitive=False,
            )
        )
    return rows
