"""Writes the evidence of a training that never was, as long as one likes.

Every figure that a full interval can have is there and varies from one to the next.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from msgspec import structs

from mmgpu_hooks.schema import (
    CudaMemoryWindow,
    DurationStats,
    GpuDevice,
    GpuWindow,
    HostLimits,
    HostWindow,
    IntervalRecord,
    LoaderSettings,
    RunRecord,
    SlowSample,
    TransformCost,
    WorkersWindow,
)
from mmgpu_hooks.schema.lines import encode_line
from mmgpu_hooks.schema.run_folder import evidence_name

ITERATIONS = 50
EPOCH = 40
GIB = 2**30
TRANSFORMS = [
    'LoadImageFromFile',
    'LoadAnnotations',
    'CachedMosaic',
    'RandomResize',
    'RandomCrop',
    'YOLOXHSVRandomAug',
    'RandomFlip',
    'Pad',
    'CachedMixUp',
    'PackDetInputs',
]
HOOKS = [
    'RuntimeInfoHook',
    'IterTimerHook',
    'DistSamplerSeedHook',
    'LoggerHook',
    'ParamSchedulerHook',
    'CheckpointHook',
    'DetVisualizationHook',
    'EMAHook',
    'PipelineSwitchHook',
    'NumClassCheckHook',
]


def write_run(folder: Path, config: Path, intervals: int, ranks: int = 1) -> int:
    """Writes the evidence of a run; returns the bytes of one rank's file.

    Args:
        folder: Where it goes.
        config: The config that it trained with.
        intervals: Of each rank. The ranks have the same ones.
        ranks: Files to write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    body = folder / 'body'
    dice = random.Random(intervals)
    with body.open('wb') as file:
        file.writelines(map(encode_line, make_intervals(dice, intervals)))
    for rank in range(ranks):
        path = folder / evidence_name(rank)
        with path.open('wb') as file, body.open('rb') as source:
            file.write(encode_line(make_run(config, rank, ranks)))
            shutil.copyfileobj(source, file, 2**20)
    body.unlink()
    return (folder / evidence_name(0)).stat().st_size


def make_run(config: Path, rank: int = 0, ranks: int = 1) -> RunRecord:
    """A training on a card, starved by its two workers."""
    return RunRecord(
        run_id=f'long{rank}',
        started_unix_s=1_700_000_000.0,
        rank=rank,
        world_size=ranks,
        config_path=str(config),
        loop='epoch',
        max_epochs=300,
        interval_iterations=ITERATIONS,
        device='cuda',
        loader=LoaderSettings(
            num_workers=2,
            persistent_workers=False,
            prefetch_factor=2,
            pin_memory=True,
            batch_size=16,
            batches_per_epoch=2000,
            dataset_length=32000,
            start_method='fork',
        ),
        host=HostLimits(
            logical_cpus=64,
            affinity_cpus=64,
            ranks_on_host=ranks,
            usable_cores=64 / ranks,
            ram_total_bytes=512 * GIB,
            ram_available_bytes=400 * GIB,
            shm_total_bytes=256 * GIB,
            shm_free_bytes=250 * GIB,
            open_files_soft=65536,
        ),
        gpu=GpuDevice(
            name='NVIDIA H100 80GB HBM3',
            uuid=f'GPU-{rank}',
            memory_total_bytes=80 * GIB,
            driver_version='550.54',
        ),
    )


def make_intervals(dice: random.Random, count: int) -> Iterator[IntervalRecord]:
    """Full intervals; once in an epoch one validates, saves and starts workers."""
    elapsed_s = 0.0
    for index in range(count):
        record = _interval(dice, index, elapsed_s)
        elapsed_s = record.elapsed_s
        yield record


def _interval(dice: random.Random, index: int, elapsed_s: float) -> IntervalRecord:
    is_last = index % EPOCH == EPOCH - 1
    is_first = index % EPOCH == 0
    wait, step = _durations(dice, 0.12), _durations(dice, 0.2)
    hooks = {name: dice.uniform(0, 0.02) for name in HOOKS}
    ledger = {
        'data_wait': wait.total_s,
        'step': step.total_s,
        'hooks': 1.05 * sum(hooks.values()),
        'checkpoint_save': dice.uniform(1, 3) if is_last else 0.0,
        'validation': dice.uniform(20, 40) if is_last else 0.0,
        'startup': dice.uniform(1, 2) if is_first else 0.0,
        'other': dice.uniform(0, 0.01),
    }
    duration_s = sum(ledger.values())
    return IntervalRecord(
        iteration=(index + 1) * ITERATIONS,
        epoch=index // EPOCH + 1,
        iterations=ITERATIONS,
        elapsed_s=elapsed_s + duration_s,
        duration_s=duration_s,
        data_wait=wait,
        step=step,
        iter=_durations(dice, 0.33),
        ledger_s=ledger,
        hooks_s=hooks,
        data_wait_cpu_s=dice.uniform(0, 0.1),
        first_waits=int(is_first),
        first_wait_s=ledger['startup'],
        images=16 * ITERATIONS,
        batch_bytes=dice.randrange(10**7, 10**8),
        batch_tensors=dice.randrange(50, 90),
        saves=int(is_last),
        process_rss_bytes=dice.randrange(4 * GIB, 5 * GIB),
        process_cpu_s=dice.uniform(9, 12),
        system_cpu_pct=dice.uniform(5, 15),
        largest_batch_pixels=dice.randrange(10**6, 10**7),
        most_boxes=dice.randrange(20, 300),
        host=HostWindow(
            cpu_pressure_pct=dice.uniform(0, 9),
            io_pressure_pct=dice.uniform(0, 9),
            memory_pressure_pct=dice.uniform(0, 9),
            throttled_s=0.0,
            swap_in_bytes=0,
            swap_out_bytes=0,
            ram_available_bytes=dice.randrange(300 * GIB, 400 * GIB),
            shm_free_bytes=dice.randrange(200 * GIB, 250 * GIB),
            open_files=dice.randrange(200, 300),
        ),
        workers=_workers(dice, duration_s, is_first),
        gpu=_gpu(dice, duration_s),
        gpu_idle_pct=dice.uniform(20, 50),
        gpu_idle_iterations=8,
        gpu_mem_peak_bytes=dice.randrange(40 * GIB, 50 * GIB),
        gpu_mem_reserved_bytes=dice.randrange(50 * GIB, 60 * GIB),
        cuda_memory=CudaMemoryWindow(
            allocated_bytes=dice.randrange(GIB, 2 * GIB),
            retries=0,
            ooms=0,
            inactive_bytes=dice.randrange(2**28, GIB),
        ),
    )


def _durations(dice: random.Random, mean_s: float) -> DurationStats:
    mean_s *= dice.uniform(0.9, 1.1)
    p50_s = mean_s * dice.uniform(0.9, 1.0)
    p95_s = mean_s * dice.uniform(1.2, 1.6)
    return DurationStats(
        count=ITERATIONS,
        total_s=mean_s * ITERATIONS,
        mean_s=mean_s,
        p50_s=p50_s,
        p95_s=p95_s,
    )


def _workers(dice: random.Random, window_s: float, fresh: bool) -> WorkersWindow:
    busy, cpu = _durations(dice, 0.62), _durations(dice, 0.55)
    half = dice.randrange(23, 28)
    return WorkersWindow(
        count=2,
        window_s=window_s,
        iterations=ITERATIONS,
        cpu_s=cpu.total_s,
        run_delay_s=dice.uniform(0, 0.2),
        fresh=fresh,
        source='inside',
        blocked_s=dice.uniform(1, 5),
        occupancy=busy,
        occupancy_std_s=dice.uniform(0.02, 0.1),
        batch_cpu=cpu,
        worker_batches=(half, ITERATIONS - half),
        worker_cpu_s=(cpu.total_s / 2, cpu.total_s / 2),
        ready_mean=dice.uniform(0, 0.3),
        ready_zero_pct=dice.uniform(80, 100),
        asks=ITERATIONS,
        out_of_order=dice.randrange(9),
        affinity_cpus=64,
        pss_bytes=dice.randrange(GIB, 2 * GIB) if dice.random() < 0.3 else None,
        transforms={
            name: TransformCost(
                calls=dice.randrange(10, 33), total_s=dice.uniform(0, 0.3)
            )
            for name in TRANSFORMS
        },
        timed_samples=32,
        slowest=tuple(
            SlowSample(
                seconds=dice.uniform(0.1, 0.9),
                index=number,
                image=f'{number} train2017/{number:012d}.jpg',
            )
            for number in dice.sample(range(118_287), 3)
        ),
    )


def _gpu(dice: random.Random, sampled_s: float) -> GpuWindow:
    window = GpuWindow(
        samples=dice.randrange(40, 70), source='buffer', sampled_s=sampled_s
    )
    known = {
        name: dice.uniform(5, 95)
        for name in GpuWindow.__struct_fields__
        if name.endswith('_pct') and name != 'throttle_reasons_pct'
    }
    return structs.replace(
        window,
        **known,
        mem_used_bytes=dice.randrange(50 * GIB, 60 * GIB),
        sm_clock_mhz=dice.uniform(1500, 1980),
        mem_clock_mhz=2619.0,
        temperature_c=dice.uniform(50, 70),
        power_w=dice.uniform(300, 700),
        throttle_reasons_pct={'power_cap': dice.uniform(1, 9)},
        others_mem_bytes=0,
    )
