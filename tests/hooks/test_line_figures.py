"""Tests the scalars of a log line, averaged over the intervals since the last line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mmgpu_hooks.hooks.scalars import SCALARS, LineFigures
from mmgpu_hooks.measure.ledger import summarize_durations
from mmgpu_hooks.schema.recorded import GpuWindow, IntervalRecord, WorkersWindow

MIB = 2**20


def record_of(
    waits_s: Sequence[float],
    iters_s: Sequence[float],
    save_s: float = 0.0,
    **fields: Any,
) -> IntervalRecord:
    """Returns a log interval record with the given data waits and iteration times."""
    return IntervalRecord(
        iteration=len(waits_s),
        epoch=1,
        iterations=len(waits_s),
        elapsed_s=0.0,
        duration_s=sum(iters_s),
        data_wait=summarize_durations(waits_s),
        step=summarize_durations([i - w for w, i in zip(waits_s, iters_s)]),
        iter=summarize_durations(iters_s),
        ledger_s={'checkpoint_save': save_s},
        **fields,
    )


def test_several_records_are_shown_as_one():
    columns: dict[str, tuple[Any, Any]] = {
        'images': (6, 2),
        'process_cpu_s': (2.0, 6.0),
        'system_cpu_pct': (10.0, 30.0),
        'gpu': (
            GpuWindow(util_pct=50.0, zero_pct=20.0, sampled_s=3.0),
            GpuWindow(util_pct=90.0, zero_pct=0.0, sampled_s=1.0),
        ),
        'gpu_idle_pct': (40.0, 80.0),
        'gpu_idle_iterations': (3, 1),
        'gpu_mem_peak_bytes': (300 * MIB, 100 * MIB),
        'gpu_mem_reserved_bytes': (400 * MIB, 500 * MIB),
        'saves': (2, 1),
        'save_s': (3.0, 6.0),
        'workers': (
            WorkersWindow(count=0, cpu_s=0.0, run_delay_s=0.0),
            WorkersWindow(count=2, cpu_s=0.0, run_delay_s=0.0),
        ),
    }
    first, second = ({n: c[i] for n, c in columns.items()} for i in (0, 1))
    line = LineFigures()
    line.add(record_of([0.1, 0.3, 0.2], [1.0, 2.0, 1.0], **first))
    line.add(record_of([1.0], [4.0], **second))
    line.note('hours_left', 7.0)
    shown = line.take()
    expected = {
        'data_wait_s': 0.4,
        'step_s': 1.6,
        'iter_s': 2.0,
        'data_wait_pct': 20.0,
        'images_per_s': 1.0,
        'gpu_util_pct': 60.0,
        'gpu_zero_pct': 15.0,
        'gpu_idle_pct': 60.0,
        'gpu_mem_peak_mib': 300.0,
        'gpu_mem_reserved_mib': 500.0,
        'process_cpu_cores': 1.0,
        'system_cpu_pct': 20.0,
        'save_s': 3.0,
        'hours_left': 7.0,
        # the newest
        'num_workers': 2.0,
    }
    assert shown == pytest.approx(expected)
    assert set(shown) == set(SCALARS)
    assert line.take() == {}


def test_what_a_record_does_not_know_comes_from_the_others():
    waits_s, iters_s = [0.0, 0.0], [1.0, 1.0]
    line = LineFigures()
    for fields in ({'images': None}, {'images': 8}, {'system_cpu_pct': 7.0}):
        line.add(record_of(waits_s, iters_s, **fields))
    shown = line.take()
    assert shown['images_per_s'] == 4.0
    assert shown['system_cpu_pct'] == 7.0
    assert 'save_s' not in shown
    assert 'gpu_util_pct' not in shown
