"""What a line says of the records since the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import make_interval
from mmgpu_hooks.hooks.scalars import SCALARS, LineFigures
from mmgpu_hooks.measure.ledger import summarize_durations
from mmgpu_hooks.schema.recorded import GpuWindow, IntervalRecord

MIB = 2**20


def record_of(
    waits_s: Sequence[float], iters_s: Sequence[float], **fields: Any
) -> IntervalRecord:
    """An interval with these iterations; other figures are unknown unless given."""
    plain: dict[str, Any] = {
        'duration_s': sum(iters_s),
        'images': None,
        'process_cpu_s': None,
        'system_cpu_pct': None,
        'gpu': None,
        'gpu_idle_pct': None,
        'gpu_mem_peak_bytes': None,
        'gpu_mem_reserved_bytes': None,
        'saves': 0,
        'ledger_s': {'checkpoint_save': 0.0},
    }
    return replace(
        make_interval(iterations=len(waits_s)),
        data_wait=summarize_durations(waits_s),
        step=summarize_durations([i - w for w, i in zip(waits_s, iters_s)]),
        iter=summarize_durations(iters_s),
        **{**plain, **fields},
    )


def test_several_records_are_shown_as_one():
    first = record_of(
        [0.1, 0.3, 0.2],
        [1.0, 2.0, 1.0],
        images=6,
        process_cpu_s=2.0,
        system_cpu_pct=10.0,
        gpu=GpuWindow(util_pct=50.0, zero_pct=20.0, sampled_s=3.0),
        gpu_idle_pct=40.0,
        gpu_idle_iterations=3,
        gpu_mem_peak_bytes=300 * MIB,
        gpu_mem_reserved_bytes=400 * MIB,
        saves=2,
        ledger_s={'checkpoint_save': 3.0},
    )
    second = record_of(
        [1.0],
        [4.0],
        images=2,
        process_cpu_s=6.0,
        system_cpu_pct=30.0,
        gpu=GpuWindow(util_pct=90.0, zero_pct=0.0, sampled_s=1.0),
        gpu_idle_pct=80.0,
        gpu_idle_iterations=1,
        gpu_mem_peak_bytes=100 * MIB,
        gpu_mem_reserved_bytes=500 * MIB,
        saves=1,
        ledger_s={'checkpoint_save': 6.0},
    )
    line = LineFigures()
    line.add(first)
    line.add(second)
    shown = line.take()
    assert shown == pytest.approx(
        {
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
        }
    )
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
