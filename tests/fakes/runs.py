"""Synthetic runs as the hook would record them, with values set by the test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fakes.replaced import replace
from mmgpu_hooks.schema.lines import encode_line
from mmgpu_hooks.schema.recorded import (
    CudaMemoryWindow,
    DurationStats,
    EndRecord,
    GpuDevice,
    GpuWindow,
    HostLimits,
    HostWindow,
    IntervalRecord,
    LoaderSettings,
    RunRecord,
    WorkersWindow,
)
from mmgpu_hooks.schema.run import RunEvidence
from mmgpu_hooks.schema.run_folder import EVIDENCE_NAME

GIB = 2**30


def steady(seconds: float, count: int) -> DurationStats:
    """Returns duration statistics of ``count`` equal durations."""
    each, total = round(seconds, 9), round(seconds * count, 9)
    return DurationStats(
        count=count, total_s=total, mean_s=each, p50_s=each, p95_s=each
    )


def make_loader(num_workers: int = 2, **fields: Any) -> LoaderSettings:
    """Returns settings of a loader with persistent workers and batches of four."""
    loader = LoaderSettings(
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        prefetch_factor=2 if num_workers else None,
        pin_memory=False,
        batch_size=4,
        batches_per_epoch=100,
        dataset_length=400,
    )
    return replace(loader, **fields)


def make_run(**fields: Any) -> RunRecord:
    """Returns a run record: no GPU, 8 usable cores, two workers, twelve epochs."""
    run = RunRecord(
        started_unix_s=1_700_000_000.0,
        work_dir='/runs/one',
        loop='epoch',
        max_epochs=12,
        max_iters=1200,
        interval_iterations=20,
        loader=make_loader(),
        host=HostLimits(
            logical_cpus=8,
            affinity_cpus=8,
            usable_cores=8.0,
            ram_total_bytes=64 * GIB,
            ram_available_bytes=48 * GIB,
            shm_total_bytes=32 * GIB,
            shm_free_bytes=32 * GIB,
            open_files_soft=65536,
        ),
        versions={'mmengine': '0.10.7'},
        unknown={'GPU': 'training runs on the CPU'},
    )
    return replace(run, **fields)


def make_interval(
    index: int = 0,
    *,
    iterations: int = 20,
    data_wait_s: float = 0.1,
    step_s: float = 0.2,
    hooks_s: float = 0.0,
    by_hook: Mapping[str, float] | None = None,
    **fields: Any,
) -> IntervalRecord:
    """Returns a log interval record in which all iterations take equally long.

    Args:
        index: Intervals before it.
        iterations: How many it has.
        data_wait_s: Per iteration, as the two after it.
        step_s: Likewise.
        hooks_s: Likewise.
        by_hook: Seconds of the interval by class of hook.
        **fields: Of the record.
    """
    ledger = {
        'data_wait': data_wait_s * iterations,
        'step': step_s * iterations,
        'hooks': hooks_s * iterations,
        'checkpoint_save': 0.0,
        'validation': 0.0,
        # what the recorder books of the first waits of epochs
        'startup': max(
            fields.get('first_wait_s', 0.0)
            - fields.get('first_waits', 0) * data_wait_s,
            0.0,
        ),
        'other': 0.0,
    }
    record = IntervalRecord(
        iteration=(index + 1) * iterations,
        epoch=1,
        iterations=iterations,
        elapsed_s=(index + 1) * sum(ledger.values()),
        duration_s=sum(ledger.values()),
        data_wait=steady(data_wait_s, iterations),
        step=steady(step_s, iterations),
        iter=steady(data_wait_s + step_s + hooks_s, iterations),
        ledger_s=ledger,
        hooks_s=by_hook or {},
        data_wait_cpu_s=0.0,
        images=4 * iterations,
        process_cpu_s=0.0,
        system_cpu_pct=10.0,
        process_rss_bytes=GIB,
        batch_bytes=2**20,
        batch_tensors=12,
    )
    return replace(record, **fields)


def make_workers(
    cpu_s: float, *, count: int = 2, iterations: int = 20, run_delay_s: float = 0.0
) -> WorkersWindow:
    """Returns workers' measurements with the given CPU time and run delay per batch."""
    return WorkersWindow(
        count=count, cpu_s=cpu_s * iterations, run_delay_s=run_delay_s * iterations
    )


def make_inside_workers(
    batch_time_s: float = 0.4,
    *,
    std_s: float = 0.05,
    count: int = 2,
    iterations: int = 20,
    **fields: Any,
) -> WorkersWindow:
    """Returns loading times measured inside workers, for one batch per iteration."""
    made = replace(
        steady(batch_time_s, iterations), p95_s=round(batch_time_s + 2 * std_s, 9)
    )
    cpu_s = 0.9 * batch_time_s
    variation = min(std_s / batch_time_s, 9.0) if batch_time_s > 0 else 0.0
    # the 95th percentile of a log-normal that varies as the loading does
    above = math.exp(1.645 * math.sqrt(math.log1p(variation**2)))
    cpu = replace(steady(cpu_s, iterations), p95_s=round(cpu_s * above, 9))
    window = WorkersWindow(
        count=count,
        cpu_s=0.9 * batch_time_s * iterations,
        run_delay_s=0.0,
        batch_time=made,
        batch_time_std_s=std_s,
        batch_cpu=cpu,
        transforms_s={
            'LoadImageFromFile': 0.24,
            'RandomResize': 0.08,
            'LoadAnnotations': 0.04,
            'RandomFlip': 0.004,
            'PackDetInputs': 0.006,
        },
        timed_samples=4,
    )
    return replace(window, **fields)


def make_gpu_fields(util_pct: float = 62.0) -> dict[str, Any]:
    """Returns the fields of a log interval's record that describe a GPU."""
    return {
        'gpu': GpuWindow(
            samples=60,
            util_pct=util_pct,
            zero_pct=25.0,
            sampled_s=12.0,
            mem_used_bytes=9 * GIB,
            sm_clock_mhz=1755.0,
            temperature_c=61.0,
            throttled_pct=12.0,
            throttle_reasons_pct={'power_cap': 12.0},
            sm_active_pct=41.0,
        ),
        'gpu_idle_pct': 31.0,
        'gpu_idle_iterations': 20,
        'gpu_mem_peak_bytes': 7 * GIB,
        'gpu_mem_reserved_bytes': 8 * GIB,
        'cuda_memory': CudaMemoryWindow(
            allocated_bytes=GIB, retries=0, inactive_bytes=GIB // 4
        ),
        'largest_batch_pixels': 4 * 800 * 1344,
        'most_boxes': 212,
    }


def make_gpu_run(rank: int = 0, world_size: int = 1, **fields: Any) -> RunRecord:
    """Returns the run record of one rank of a training with one GPU per rank."""
    run = make_run(
        rank=rank,
        world_size=world_size,
        device='cuda',
        gpu=GpuDevice(
            name='NVIDIA H100 80GB HBM3',
            uuid=f'GPU-{rank}',
            memory_total_bytes=80 * GIB,
            driver_version='550.54',
        ),
        unknown={},
    )
    run = replace(run, host=replace(run.host, ranks_on_host=world_size))
    return replace(run, **fields)


def make_ranks(
    data_wait_s: Sequence[float], *, iter_s: float = 0.3, **fields: Any
) -> list[RunEvidence]:
    """Returns ranks with given data waits, whose steps wait for the slowest rank."""
    world = len(data_wait_s)
    return [
        make_evidence(
            run=make_gpu_run(rank, world),
            data_wait_s=wait_s,
            step_s=iter_s - wait_s,
            **{**make_gpu_fields(62.0 + 5 * rank), **fields},
        )
        for rank, wait_s in enumerate(data_wait_s)
    ]


def make_host_window(**fields: Any) -> HostWindow:
    """Returns measurements of an idle host with enough memory."""
    window = HostWindow(
        throttled_s=0.0, ram_available_bytes=48 * GIB, shm_free_bytes=32 * GIB
    )
    return replace(window, **fields)


def make_evidence(
    intervals: int = 8, run: RunRecord | None = None, **fields: Any
) -> RunEvidence:
    """Returns a completed run of equal intervals (``fields``: see `make_interval`)."""
    records = tuple(make_interval(index, **fields) for index in range(intervals))
    ledger: dict[str, float] = {}
    by_hook: dict[str, float] = {}
    for record in records:
        for part, seconds in record.ledger_s.items():
            ledger[part] = ledger.get(part, 0.0) + seconds
        for name, seconds in record.hooks_s.items():
            by_hook[name] = by_hook.get(name, 0.0) + seconds
    return RunEvidence(
        path='gpu_efficiency.jsonl',
        run=run or make_run(),
        intervals=records,
        end=EndRecord(
            status='completed',
            iterations=sum(record.iterations for record in records),
            duration_s=sum(ledger.values()),
            ledger_s=ledger,
            hooks_s=by_hook,
        ),
    )


def add_to_end(evidence: RunEvidence, **seconds: float) -> RunEvidence:
    """Returns a run with seconds added to time ledger parts of its end record."""
    assert evidence.end is not None
    ledger = dict(evidence.end.ledger_s)
    for part, more in seconds.items():
        ledger[part] += more
    whole_s = sum(ledger.values())
    return replace(
        evidence, end=replace(evidence.end, ledger_s=ledger, duration_s=whole_s)
    )


def render_evidence(evidence: RunEvidence) -> str:
    """Returns a run as the text of an evidence file."""
    lines = [
        evidence.run,
        *([evidence.start] if evidence.start else []),
        *evidence.intervals,
        *evidence.save_records,
        *evidence.after_saves,
        *evidence.validations,
        *evidence.memory,
        *evidence.tuned,
        *([evidence.end] if evidence.end else []),
    ]
    return b''.join(encode_line(record) for record in lines).decode()


def write_run(folder: Path, evidence: RunEvidence, config: str = '') -> Path:
    """Writes a run's evidence into a folder, and the config copy by MMEngine."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / EVIDENCE_NAME).write_text(render_evidence(evidence))
    if config:
        (folder / 'config.py').write_text(config)
    return folder
