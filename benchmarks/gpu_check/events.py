"""The idle share from CUDA events beside a planted stall, and what events cost."""

from __future__ import annotations

import statistics
import time

import torch

from benchmarks.gpu_check.load import Matmuls
from benchmarks.gpu_check.table import Row, judged, skipped
from mmgpu_hooks.measure.absent import Absent
from mmgpu_hooks.measure.cuda import open_cuda_events

IDLE_POINTS = 2.0
ITERATION_US = 15.0
INTERVAL_MS = 1.0
WORK_S, STALL_S = 0.050, 0.025


def check_idle() -> list[Row]:
    """A host that sleeps between two steps, and one that never does."""
    load = Matmuls()
    return [
        _check_stall(load, STALL_S, 'planted stall'),
        _check_stall(load, 0.0, 'no stall'),
    ]


def _check_stall(load: Matmuls, stall_s: float, name: str) -> Row:
    check = f'idle share from events, {name}'
    events = open_cuda_events()
    if isinstance(events, Absent):
        return skipped(check, events.reason)
    begins: list[float] = []
    stalls_s: list[float] = []
    for _ in range(40):
        begins.append(time.perf_counter())
        events.begin_step()
        load.queue(WORK_S)
        events.end_step()
        torch.cuda.synchronize()  # as the reading of the losses does
        done_s = time.perf_counter()
        if stall_s:
            time.sleep(stall_s)
        stalls_s.append(time.perf_counter() - done_s)
    idle, iterations = events.drain()
    # what the host saw: the last step has none after it
    planted = 100.0 * sum(stalls_s[:-1]) / (begins[-1] - begins[0])
    if idle is None:
        return judged(check, 'unknown', f'{planted:.1f} %', False)
    return judged(
        check,
        f'{idle:.1f} % for {planted:.1f} %',
        f'within {IDLE_POINTS:.0f} points',
        abs(idle - planted) <= IDLE_POINTS,
        f'{iterations} iterations; the host clock is the planted truth',
    )


def check_cost() -> list[Row]:
    """Main thread, per iteration and per interval of 50."""
    events = open_cuda_events()
    if isinstance(events, Absent):
        return [skipped('cost of events', events.reason)]
    load = Matmuls(512)
    costs_us: list[float] = []
    drains_ms: list[float] = []
    for iteration in range(1, 1001):
        start_s = time.perf_counter()
        events.begin_step()
        begun_s = time.perf_counter()
        load.queue(0.0005)
        end_s = time.perf_counter()
        events.end_step()
        ended_s = time.perf_counter()
        costs_us.append(1e6 * (begun_s - start_s + ended_s - end_s))
        torch.cuda.synchronize()
        if iteration % 50 == 0:
            start_s = time.perf_counter()
            events.drain()
            drains_ms.append(1e3 * (time.perf_counter() - start_s))
    median_us = statistics.median(costs_us[100:])
    p95_us = statistics.quantiles(costs_us[100:], n=20)[-1]
    median_ms = statistics.median(drains_ms)
    return [
        judged(
            'cost of events, iteration',
            f'{median_us:.1f} us median',
            f'<= {ITERATION_US:.0f} us',
            median_us <= ITERATION_US,
            f'95th percentile {p95_us:.1f} us, {len(costs_us) - 100} iterations',
        ),
        judged(
            'cost of events, interval',
            f'{median_ms:.3f} ms median',
            f'<= {INTERVAL_MS:.0f} ms',
            median_ms <= INTERVAL_MS,
            f'{len(drains_ms)} drains of 50 iterations',
        ),
    ]
