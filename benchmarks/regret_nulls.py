"""Evidence of loops with nothing to gain, as the hook would have recorded it."""

from __future__ import annotations

import math
import random

from mmgpu_hooks.measure.durations import fold_durations
from mmgpu_hooks.model.prediction import predict_setting
from mmgpu_hooks.model.scene import make_loop
from mmgpu_hooks.model.simulation import simulate_loop
from mmgpu_hooks.schema import (
    Cost,
    HostLimits,
    IntervalRecord,
    LoaderSettings,
    LoaderWorkload,
    Prediction,
    RunEvidence,
    RunRecord,
    WorkersWindow,
)

INTERVAL = 10
NOTHING = 0.015
"""Share of an iteration below which waits leave nothing to gain."""

GIB = 2**30


def draw_null(seed: int) -> RunEvidence:
    """A run whose loader keeps up: no setting would save even 1.5 % of it.

    The number of workers, the host, the spread of loading, strangers and the length
    are random; steps jitter, some hang, and figures are read with errors.
    """
    rng = random.Random(seed)
    while True:
        workload = _draw_workload(rng)
        now = predict_setting(workload, workload.num_workers, 2)
        assert isinstance(now, Prediction)
        ready_s = workload.step.mean_s + workload.fetch_s
        if now.iter_time_s <= (1.0 + NOTHING) * ready_s:
            return _record(rng, workload)


def _draw_workload(rng: random.Random) -> LoaderWorkload:
    step_s = math.exp(rng.uniform(math.log(0.01), math.log(0.5)))
    workers = rng.choice([1, 2, 2, 2, 4, 8])
    cores = float(rng.choice([2, 4, 8, 16]))
    occupancy_s = rng.uniform(0.02, 0.7) * step_s * min(workers, cores)
    cpu_s = occupancy_s * rng.choice([rng.random(), 1.0])
    spread = rng.uniform(0.0, 0.8)
    step_cpu_s = step_s * rng.choice([0.1, rng.random(), 1.0])
    return LoaderWorkload(
        num_workers=workers,
        prefetch_factor=2,
        persistent_workers=True,
        batch_size=4,
        iterations=0,
        iter_time=Cost(step_s),
        occupancy=Cost(occupancy_s, spread * occupancy_s),
        batch_cpu=Cost(cpu_s, spread * cpu_s),
        step=Cost(step_s, rng.uniform(0.0, 0.2) * step_s),
        step_cpu_s=step_cpu_s,
        fetch_s=0.0005,
        fetch_busy_s=0.001,
        usable_cores=cores,
        host_cores=cores,
        stranger_tasks=rng.choice([0.0, 0.0, rng.uniform(0, 1)]),
    )


def _record(rng: random.Random, workload: LoaderWorkload) -> RunEvidence:
    count = INTERVAL * rng.choice([3, 4, 6, 12, 30])
    loop = make_loop(workload, workload.num_workers, 2, count)
    trace = simulate_loop(loop, count)
    ends_s = [0.0, *trace.ends_s]
    took_s = [after - before for before, after in zip(ends_s, ends_s[1:])][:count]
    wait_s = (trace.wait_s + trace.fetch_s) / count
    # some steps hang: a page fault, a neighbour, a garbage collection
    hangs = [
        rng.uniform(1, 3) * workload.step.mean_s if rng.random() < 0.01 else 0.0
        for _ in took_s
    ]
    intervals = []
    for first in range(0, count, INTERVAL):
        span = slice(first, first + INTERVAL)
        intervals.append(
            _interval(rng, workload, took_s[span], hangs[span], wait_s, first)
        )
    return RunEvidence(
        path='', run=_run(rng, workload, count), intervals=tuple(intervals)
    )


def _interval(
    rng: random.Random,
    workload: LoaderWorkload,
    took_s: list[float],
    hangs_s: list[float],
    wait_s: float,
    first: int,
) -> IntervalRecord:
    usual_s = [min(one, wait_s * rng.uniform(0.5, 1.5)) for one in took_s]
    waits = [one + (0.3 * hang_s) for one, hang_s in zip(usual_s, hangs_s)]
    steps = [
        max(one - usual, 0.0) * rng.gauss(1.0, 0.01) + 0.7 * hang_s
        for one, usual, hang_s in zip(took_s, usual_s, hangs_s)
    ]
    whole = [wait + step for wait, step in zip(waits, steps)]
    seconds = math.fsum(whole)
    cores = workload.usable_cores
    own_s = len(whole) * (workload.step_cpu_s + workload.fetch_s)
    worker_cpu_s = len(whole) * workload.batch_cpu.mean_s
    strangers_s = min(workload.stranger_tasks, cores) * seconds
    busy = min((own_s + worker_cpu_s + strangers_s) / (cores * seconds), 1.0)
    busy *= rng.gauss(1.0, 0.05)
    parts = ('hooks', 'checkpoint_save', 'validation', 'startup', 'other')
    return IntervalRecord(
        iteration=first + len(whole),
        epoch=1,
        iterations=len(whole),
        elapsed_s=0.0,
        duration_s=seconds,
        data_wait=fold_durations(waits),
        step=fold_durations(steps),
        iter=fold_durations(whole),
        ledger_s={
            'data_wait': math.fsum(waits),
            'step': math.fsum(steps),
            **dict.fromkeys(parts, 0.0),
        },
        data_wait_cpu_s=len(whole) * workload.fetch_s,
        process_cpu_s=own_s * rng.gauss(1.0, 0.03),
        system_cpu_pct=100.0 * min(max(busy, 0.0), 1.0),
        process_rss_bytes=GIB,
        batch_bytes=2**22,
        batch_tensors=4,
        workers=_workers(rng, workload, len(whole), seconds),
    )


def _workers(
    rng: random.Random, workload: LoaderWorkload, count: int, seconds: float
) -> WorkersWindow:
    variation = workload.occupancy.variation
    sigma = math.sqrt(math.log1p(variation * variation))
    factors = [math.exp(rng.gauss(-sigma * sigma / 2, sigma)) for _ in range(count)]
    busy = [workload.occupancy.mean_s * factor for factor in factors]
    cpu = [workload.batch_cpu.mean_s * factor for factor in factors]
    mean_s = math.fsum(busy) / count
    square = math.fsum((one - mean_s) ** 2 for one in busy) / count
    return WorkersWindow(
        count=workload.num_workers,
        window_s=seconds,
        iterations=count,
        cpu_s=math.fsum(cpu) * rng.gauss(1.0, 0.03),
        run_delay_s=0.02 * math.fsum(cpu),
        source='inside',
        occupancy=fold_durations(busy),
        occupancy_std_s=math.sqrt(square),
        batch_cpu=fold_durations(cpu),
        worker_batches=(count // workload.num_workers,) * workload.num_workers,
        asks=count,
        ready_mean=float(workload.num_workers),
        ready_zero_pct=0.0,
        out_of_order=0,
    )


def _run(rng: random.Random, workload: LoaderWorkload, count: int) -> RunRecord:
    cores = workload.usable_cores
    return RunRecord(
        run_id='null',
        started_unix_s=0.0,
        loop='epoch',
        max_epochs=12,
        interval_iterations=INTERVAL,
        device=rng.choice(['cpu', 'cuda']),
        loader=LoaderSettings(
            num_workers=workload.num_workers,
            persistent_workers=True,
            prefetch_factor=2,
            pin_memory=False,
            batch_size=4,
            batches_per_epoch=max(count, 200),
            dataset_length=4 * count,
            start_method='fork',
        ),
        host=HostLimits(
            logical_cpus=int(cores),
            affinity_cpus=int(cores),
            usable_cores=cores,
            ram_available_bytes=64 * GIB,
            shm_free_bytes=16 * GIB,
            open_files_soft=2**16,
        ),
    )
