"""GPU checks: NVML's values against the true ones, and the CPU time to sample them."""

from __future__ import annotations

import math
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

from benchmarks.gpu_check.smi import SmiSample, ask_smi, sampling_smi
from benchmarks.gpu_check.table import Row, judged, skipped, within
from mmgpu_hooks.measure.absent import AbsentError
from mmgpu_hooks.measure.cuda import cuda_device
from mmgpu_hooks.measure.gpu import Gpu, GpuSampler, Sample, SampleSummary, open_gpu

UTIL_POINTS, MEMORY_MIB, THREAD_PCT = 5.0, 4, 0.5


class Wave(NamedTuple):
    """Periodic GPU load: seconds of work followed by seconds of pause.

    A round that is not judged comes first: the driver's figure looks back by up to a
    second, and our samples by another.
    """

    work_s: float
    rest_s: float
    rounds: int


CONSTANT = (Wave(2.0, 0.0, 3), Wave(0.0, 2.0, 3))
WAVES = (Wave(1.0, 3.0, 3), Wave(3.0, 1.0, 3), Wave(0.5, 1.5, 6), Wave(0.2, 0.2, 30))
EXTRAS = ('sm_clock_mhz', 'throttled_pct', 'sm_active_pct', 'temperature_c')


class Reading(NamedTuple):
    """Wall clock and CPU seconds of taking one sample of the GPU by NVML."""

    wall_s: float
    cpu_s: float


class GpuBefore(NamedTuple):
    """Driver version and GPU utilisation before the checks; ``None`` if unknown."""

    driver: str | None = None
    """Version of the NVIDIA driver."""
    util_pct: float | None = None


class Sampling(NamedTuple):
    """Running GPU sampler of the hook, with the seconds spent on each sample."""

    sampler: GpuSampler
    readings: list[Reading]
    """Seconds spent on each sample taken so far."""


def open_our_gpu() -> Gpu | str:
    """Opens this process's GPU by NVML, like the hook; returns the error if any."""
    import torch

    try:
        torch.cuda.init()
    except Exception as error:  # noqa: BLE001, the checks are to say it
        return f'CUDA does not start: {error}'
    return open_named(**cuda_device())


def open_named(**names: Any) -> Gpu | str:
    """Opens the GPU with the given identifiers by NVML; returns the error if any."""
    try:
        return open_gpu(**names)
    except AbsentError as error:
        return str(error)


def describe_gpu() -> GpuBefore:
    """Returns driver version and GPU utilisation before the checks."""
    gpu = open_our_gpu()
    if isinstance(gpu, str):
        return GpuBefore()
    samples = []
    for _ in range(5):
        time.sleep(0.2)
        samples.append(gpu.read_sample().get('util_pct'))
    driver = gpu.device().get('driver_version')
    gpu.close()
    known = [util for util in samples if util is not None]
    return GpuBefore(driver, statistics.fmean(known) if known else None)


@contextmanager
def sampling(gpu: Gpu, period_s: float = 0.2) -> Iterator[Sampling]:
    """Context in which the hook's GPU sampler runs, by default at its usual rate."""
    readings: list[Reading] = []

    def read_sample() -> Sample:
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        sample = gpu.read_sample()
        took_s = time.perf_counter() - wall_s
        readings.append(Reading(took_s, time.thread_time() - cpu_s))
        return sample

    sampler = GpuSampler(read_sample, period_s)
    sampler.start()
    try:
        yield Sampling(sampler, readings)
    finally:
        sampler.stop(5.0)


def check_nvml() -> list[Row]:
    """Checks GPU utilisation and memory by NVML, and the CPU time of sampling them."""
    return _check_waves(CONSTANT, has_more=True)


def check_waves() -> list[Row]:
    """Checks GPU utilisation by NVML under loads that change quickly or slowly."""
    return _check_waves(WAVES, has_more=False)


def _check_waves(waves: Sequence[Wave], *, has_more: bool) -> list[Row]:
    from benchmarks.gpu_check.load import Matmuls

    gpu = open_our_gpu()
    if isinstance(gpu, str):
        return [judged('NVML opens', gpu, 'opens', False)]
    uuid, load = gpu.device().get('uuid'), Matmuls()
    has_smi = shutil.which('nvidia-smi') is not None and uuid is not None
    windows, first = list[dict[str, Any]](), list[SampleSummary]()
    alongside: AbstractContextManager[list[SmiSample]] = nullcontext([])
    if has_smi:
        alongside = sampling_smi(str(uuid))
    try:
        with alongside as smi, sampling(gpu) as ours:
            sampler = ours.sampler
            begin_s = time.perf_counter()
            for wave in waves:
                plant(load, wave._replace(rounds=1))
                first.append(sampler.drain())
                since_s = time.time()
                truth = plant(load, wave)
                times = {'since_s': since_s, 'until_s': time.time(), 'truth': truth}
                windows.append({**sampler.drain(), **times})
            why = sampler.failure or gpu.unsupported.get('util_pct') or ''
            lasted_s = time.perf_counter() - begin_s
        rows = []
        for wave, window in zip(waves, windows):
            turns = f'{wave.work_s:g} s of work and {wave.rest_s:g} s of rest'
            rows += compare(f'utilisation, {turns}', window, smi, why)
        if has_more:
            rows.append(_check_cost(ours.readings, lasted_s, sampler.failure))
            rows.append(_check_memory(gpu, uuid, has_smi))
            # what is read every few seconds may be in none of the short ones
            rows += _check_extras(gpu, [*first, *windows])
        return rows
    finally:
        gpu.close()


def plant(load: Any, wave: Wave) -> float:
    """Puts a periodic load on the GPU; returns the true busy time in per cent."""
    worked_s, begin_s = 0.0, time.perf_counter()
    for _ in range(wave.rounds):
        since_s = time.perf_counter()
        if wave.work_s:
            load.keep_busy(wave.work_s)
            worked_s += time.perf_counter() - since_s
        if wave.rest_s:
            time.sleep(wave.rest_s)
    return 100 * worked_s / (time.perf_counter() - begin_s)


def compare(
    name: str, window: Mapping[str, Any], smi: Sequence[SmiSample], why: str
) -> list[Row]:
    """Compares the sampled GPU utilisation with the true one and with nvidia-smi's.

    Args:
        name: Of the row.
        window: What we sampled, with what was planted and when.
        smi: When nvidia-smi sampled, and what.
        why: Why utilisation is unknown, where that is so.
    """
    ours, truth, points = window.get('util_pct'), window['truth'], UTIL_POINTS
    if ours is None:
        return [within(name, None, truth, points, note=why or 'no sample')]
    lasted_s = window['until_s'] - window['since_s']
    # of so few samples the mean of a square wave scatters
    std = math.sqrt(truth * (100 - truth))
    points = max(points, 2 * std / math.sqrt(window['samples']))
    note = f'{window["samples"]} samples in {lasted_s:.1f} '
    note += f's, {window["zero_pct"]:.0f} % at 0'
    rows = [within(f'{name}: planted', ours, truth, points, note=note)]
    since_s, until_s = window['since_s'], window['until_s']
    theirs = [sample.util_pct for sample in smi if since_s <= sample.at_s <= until_s]
    check = f'{name}: nvidia-smi'
    if not theirs:
        return [*rows, skipped(check, 'nvidia-smi tells none')]
    return [*rows, within(check, ours, statistics.fmean(theirs), points)]


def _check_cost(
    readings: Sequence[Reading], lasted_s: float, failure: str | None
) -> Row:
    check, target = 'NVML thread: CPU', f'<= {THREAD_PCT} % of a core'
    if not readings or failure is not None:
        return judged(check, 'unknown', target, False, failure or 'no sample')
    cpu_pct = 100 * sum(reading.cpu_s for reading in readings) / lasted_s
    walls_us = [1e6 * reading.wall_s for reading in readings]
    note = f'{len(readings)} readings of {statistics.median(walls_us):.0f} us median, '
    note += f'{max(walls_us):.0f} us worst'
    return judged(check, f'{cpu_pct:.3f} %', target, cpu_pct <= THREAD_PCT, note)


def _check_memory(gpu: Gpu, uuid: str | None, has_smi: bool) -> Row:
    import torch

    check, unit = 'device memory in use: nvidia-smi', 2**20
    if not has_smi:
        return skipped(check, 'there is no nvidia-smi')
    held = torch.empty(512 * unit, dtype=torch.uint8, device='cuda')
    torch.cuda.synchronize()
    total, free = ask_smi('memory.total', 'memory.free', gpu=uuid)[0]
    ours = gpu.read_sample().get('mem_used_bytes')
    del held
    if not (total.isdigit() and free.isdigit()):
        return skipped(check, 'nvidia-smi tells none')
    # "used" of newer nvidia-smi leaves the driver's own reserve out: total - free
    theirs_mib, note = int(total) - int(free), gpu.unsupported.get('mem_used_bytes', '')
    ours_mib = None if ours is None else ours / unit
    return within(check, ours_mib, theirs_mib, MEMORY_MIB, 'MiB', note)


def _check_extras(gpu: Gpu, windows: Sequence[Mapping[str, object]]) -> list[Row]:
    """Checks that each optional NVML figure has a value or a reason for its absence."""
    rows, reasons = [], gpu.reasons()
    for figure in EXTRAS:
        values = [f'{window[figure]:.6g}' for window in windows if figure in window]
        shown, why = (values or ['unknown'])[0], reasons.get(figure, '')
        passed, note = bool(values or why), '' if values else why
        rows.append(judged(figure, shown, 'a value, or why not', passed, note))
    return rows
