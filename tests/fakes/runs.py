"""Runs as the hook would have recorded them, with every figure chosen by the test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mmgpu_hooks.evidence.codec import render_line
from mmgpu_hooks.records import (
    DurationStats,
    EndRecord,
    HostLimits,
    IntervalRecord,
    LoaderSettings,
    RunEvidence,
    RunRecord,
    WorkersWindow,
)

GIB = 2**30


def steady(seconds: float, count: int) -> DurationStats:
    """``count`` times the same duration, in whole nanoseconds as in a file."""
    one, total = round(seconds, 9), round(seconds * count, 9)
    return DurationStats(count, total, one, one, one, one)


def make_run(**fields: Any) -> RunRecord:
    """A GPU-less run of 8 usable cores, two workers and twelve epochs."""
    run = RunRecord(
        run_id='a1b2',
        started_unix_s=1_700_000_000.0,
        work_dir='/runs/one',
        loop='epoch',
        max_epochs=12,
        max_iters=1200,
        interval_iterations=20,
        loader=LoaderSettings(2, True, 2, False, 4, 100, 400, 'fork'),
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
    **fields: Any,
) -> IntervalRecord:
    """One interval in which every iteration took the same."""
    ledger = {
        'data_wait': data_wait_s * iterations,
        'step': step_s * iterations,
        'hooks': hooks_s * iterations,
        'checkpoint_save': 0.0,
        'validation': 0.0,
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
    """Workers that used ``cpu_s`` and waited ``run_delay_s`` per batch."""
    return WorkersWindow(
        count=count,
        window_s=1.0,
        iterations=iterations,
        cpu_s=cpu_s * iterations,
        run_delay_s=run_delay_s * iterations,
    )


def make_evidence(
    intervals: int = 8, run: RunRecord | None = None, **fields: Any
) -> RunEvidence:
    """A completed run of equal intervals; ``fields`` as for `make_interval`."""
    records = tuple(make_interval(index, **fields) for index in range(intervals))
    ledger: dict[str, float] = {}
    for record in records:
        for part, seconds in record.ledger_s.items():
            ledger[part] = ledger.get(part, 0.0) + seconds
    return RunEvidence(
        path='gpu_efficiency.jsonl',
        run=run or make_run(),
        intervals=records,
        end=EndRecord(
            status='completed',
            iterations=sum(record.iterations for record in records),
            duration_s=sum(ledger.values()),
            ledger_s=ledger,
        ),
    )


def render_evidence(evidence: RunEvidence) -> str:
    """The evidence as the lines of a file."""
    lines = [
        evidence.run,
        *evidence.intervals,
        *([evidence.end] if evidence.end else []),
    ]
    return ''.join(render_line(record) for record in lines)
