"""Our NVML figures beside nvidia-smi's: utilisation, memory, and what else is there."""

from __future__ import annotations

import datetime
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.harness import Figure, at_least, at_most, near
from mmgpu_hooks.measure.absent import Absent, SourceError
from mmgpu_hooks.measure.cuda import cuda_device
from mmgpu_hooks.measure.gpu import Gpu, GpuSample, GpuSampler, open_gpu
from mmgpu_hooks.schema import GpuWindow

UTIL_POINTS = 5.0
MEMORY_MIB = 4
THREAD_PCT = 0.5
SETTLE_S, MEASURE_S = 2.0, 6.0
"""The driver's figure looks back by up to a second, and our samples by another."""
MORE_S = 4.0
"""Until 15 s have passed, when PCIe is asked for where GPM does not give it."""

EXTRAS = ('sm_clock_mhz', 'throttled_pct', 'sm_active_pct', 'temperature_c')

_FORMAT = '--format=csv,noheader,nounits'


def ask_smi(*fields: str, gpu: str | None = None) -> list[list[str]]:
    """One answer of nvidia-smi: a line per card, a cell per field."""
    command = ['nvidia-smi', f'--query-gpu={",".join(fields)}', _FORMAT]
    done = subprocess.run(
        [*command, *(['-i', gpu] if gpu else [])],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    lines = done.stdout.splitlines()
    return [[c.strip() for c in line.split(',')] for line in lines if line.strip()]


def parse_smi_sample(line: str) -> tuple[float, float] | None:
    """Wall-clock seconds and per cent; ``None`` where it has none.

    Examples:
        >>> parse_smi_sample('2026/01/02 03:04:05.678, [N/A]') is None
        True
    """
    at, _, percent = line.partition(',')
    try:
        stamp = datetime.datetime.strptime(at.strip(), '%Y/%m/%d %H:%M:%S.%f')
        return stamp.timestamp(), float(percent)
    except ValueError:
        return None


class Smi:
    """nvidia-smi's utilisation, read alongside in a process of its own.

    It stamps its samples itself, since it may write them late.

    Args:
        gpu: UUID of the card.
    """

    def __init__(self, gpu: str) -> None:
        self._samples: list[tuple[float, float]] = []
        fields = ('--query-gpu=timestamp,utilization.gpu', _FORMAT)
        self._process = subprocess.Popen(
            ['nvidia-smi', *fields, '-i', gpu, '-lms', '200'],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self._samples += filter(None, map(parse_smi_sample, self._process.stdout))

    def close(self) -> list[tuple[float, float]]:
        """End it; all that it saw, by the wall clock."""
        self._process.terminate()
        self._process.wait(10)
        self._reader.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self._samples


def open_our_gpu() -> Gpu | Absent:
    """The card of this process, found as the hook finds it."""
    import torch

    torch.cuda.init()
    device = cuda_device()
    assert device is not None, 'CUDA was started just now'
    return open_gpu(
        uuid=device.uuid, pci_bus_id=device.pci_bus_id, index=device.cuda_index
    )


@dataclass(frozen=True)
class Phase:
    """A stretch of known utilisation."""

    name: str
    settling: GpuWindow
    """Its beginning, which is not compared."""
    window: GpuWindow
    since_s: float
    """Wall clock, as is ``until_s``."""
    until_s: float


class ThreadCost:
    """What the samples cost the thread that takes them.

    Args:
        gpu: The card that is sampled.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._cpu_s = 0.0
        self._walls_s: list[float] = []
        self._began_s = time.perf_counter()

    def read_sample(self) -> GpuSample:
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        sample = self._gpu.read_sample()
        self._cpu_s += time.thread_time() - cpu_s
        self._walls_s.append(time.perf_counter() - wall_s)
        return sample

    def judge(self, failure: str | None) -> Figure:
        """CPU of one core, since it was made."""
        name = 'NVML thread: CPU'
        if failure is not None or not self._walls_s:
            return at_most(name, None, THREAD_PCT, '%', failure or 'no sample')
        cpu_pct = 100.0 * self._cpu_s / (time.perf_counter() - self._began_s)
        median_us = 1e6 * statistics.median(self._walls_s)
        note = f'of a core; {len(self._walls_s)} samples of {median_us:.0f} us'
        return at_most(name, cpu_pct, THREAD_PCT, '%', note)


def check_nvml() -> list[Figure]:
    """Utilisation and memory beside nvidia-smi, extras present or why not, cost."""
    from benchmarks.gpu_check.load import Matmuls

    gpu = open_our_gpu()
    if isinstance(gpu, Absent):
        return [at_least('NVML opens', None, 1, note=gpu.reason)]
    uuid = gpu.device()['uuid']
    has_smi = shutil.which('nvidia-smi') is not None and uuid is not None
    smi = Smi(str(uuid)) if has_smi else None
    cost = ThreadCost(gpu)
    sampler = GpuSampler(cost.read_sample)
    try:
        load = Matmuls()
        sampler.start()
        busy = run_phase('busy', sampler, load.keep_busy)
        idle = run_phase('idle', sampler, time.sleep)
        load.keep_busy(MORE_S)
        windows = [busy.settling, busy.window, idle.window]
        windows.append(GpuWindow(**sampler.drain()))
        figures = [cost.judge(sampler.failure), _check_memory(gpu, uuid, has_smi)]
        why = sampler.failure or gpu.unsupported.get('util_pct') or 'no sample'
        figures += _check_extras(gpu, windows)
    finally:
        samples = smi.close() if smi is not None else []
        sampler.stop(5.0)
        gpu.close()
    return [
        *compare_phase(busy, 100.0, samples, why),
        *compare_phase(idle, 0.0, samples, why),
        *figures,
    ]


def run_phase(name: str, sampler: GpuSampler, work: Callable[[float], None]) -> Phase:
    """Do it, and keep what was sampled."""
    work(SETTLE_S)
    settling, since_s = GpuWindow(**sampler.drain()), time.time()
    work(MEASURE_S)
    return Phase(name, settling, GpuWindow(**sampler.drain()), since_s, time.time())


def compare_phase(
    phase: Phase, planted: float, samples: Sequence[tuple[float, float]], why: str
) -> list[Figure]:
    """Ours beside what was planted, and beside nvidia-smi's.

    Args:
        phase: What we sampled.
        planted: Per cent.
        samples: What nvidia-smi sampled, by the wall clock.
        why: Why utilisation is unknown, where that is so.
    """
    name, window = f'utilisation, {phase.name} phase', phase.window
    ours, note = window.util_pct, why
    if ours is not None:
        note = f'{window.zero_pct:.0f} % of it at 0, {window.samples} samples'
    theirs = [pct for at_s, pct in samples if phase.since_s <= at_s <= phase.until_s]
    found = [near(f'{name}: planted', ours, planted, UTIL_POINTS, '%', note)]
    if not theirs:
        why = 'nvidia-smi gives none'
        return [*found, Figure(f'{name}: nvidia-smi', None, note=why)]
    mean = statistics.fmean(theirs)
    return [*found, near(f'{name}: nvidia-smi', ours, mean, UTIL_POINTS, '%', note)]


def _check_memory(gpu: Gpu, uuid: str | None, has_smi: bool) -> Figure:
    import torch

    name = 'device memory in use: nvidia-smi'
    if not has_smi:
        return Figure(name, None, note='there is no nvidia-smi')
    held = torch.empty(512 * 2**20, dtype=torch.uint8, device='cuda')
    torch.cuda.synchronize()
    total, free = ask_smi('memory.total', 'memory.free', gpu=uuid)[0]
    if not (total.isdigit() and free.isdigit()):
        return Figure(name, None, note='nvidia-smi gives none')
    # "used" of newer nvidia-smi leaves the driver's own reserve out: total - free
    theirs_mib = int(total) - int(free)
    note, ours_mib = 'total - free, which holds the reserve of the driver too', None
    try:
        ours = gpu.read_sample().mem_used_bytes
        ours_mib = None if ours is None else ours / 2**20
    except SourceError as error:
        note = str(error)
    del held
    return near(name, ours_mib, theirs_mib, MEMORY_MIB, 'MiB', note)


def _check_extras(gpu: Gpu, windows: Sequence[GpuWindow]) -> list[Figure]:
    """Each figure has a value or a reason: which, depends on the machine."""
    reasons, found = gpu.reasons(), []
    for name in EXTRAS:
        seen = [getattr(window, name) for window in windows]
        value = next((value for value in seen if value is not None), None)
        reason = reasons.get(name)
        if value is None and reason is not None:
            found.append(Figure(name, None, note=reason))
        else:
            target = 'a value, or why not'
            found.append(Figure(name, value, target=target, is_met=True))
    return found
