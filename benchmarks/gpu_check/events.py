"""The idle share from CUDA events beside a planted stall, and what events cost."""

from __future__ import annotations

import statistics
import time

import torch

from benchmarks.gpu_check.load import Matmuls
from benchmarks.harness import Figure, at_most, near
from mmgpu_hooks.measure.absent import Absent
from mmgpu_hooks.measure.cuda import open_cuda_events

IDLE_POINTS = 2.0
WORK_S, STALL_S = 0.050, 0.025


def check_idle() -> list[Figure]:
    """A host that sleeps between two steps, and one that never does."""
    load = Matmuls()
    return [
        _check_stall(load, STALL_S, 'planted stall'),
        _check_stall(load, 0.0, 'no stall'),
    ]


def _check_stall(load: Matmuls, stall_s: float, name: str) -> Figure:
    figure = f'idle share from events, {name}'
    events = open_cuda_events()
    if isinstance(events, Absent):
        return Figure(figure, None, note=events.reason)
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
    note = f'{iterations} iterations; the host clock is the planted truth'
    return near(figure, idle, planted, IDLE_POINTS, '%', note)


def check_cost() -> list[Figure]:
    """Main thread, per iteration and per interval of 50."""
    events = open_cuda_events()
    if isinstance(events, Absent):
        return [Figure('cost of events', None, note=events.reason)]
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
    p95_us = statistics.quantiles(costs_us[100:], n=20)[-1]
    return [
        at_most(
            'cost of events, iteration',
            statistics.median(costs_us[100:]),
            15.0,
            'us',
            f'median; 95th percentile {p95_us:.1f}, {len(costs_us) - 100} iterations',
        ),
        at_most(
            'cost of events, interval',
            statistics.median(drains_ms),
            1.0,
            'ms',
            f'median of {len(drains_ms)} drains of 50 iterations',
        ),
    ]
