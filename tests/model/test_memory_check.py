from __future__ import annotations

import pytest

from fakes.replaced import replace
from fakes.runs import make_evidence, make_interval
from mmgpu_hooks.model.memory_check import compare_with_run
from mmgpu_hooks.schema import (
    ActivationFit,
    MeasuredMemory,
    MemoryEstimate,
    ModelBytesRecord,
    StaticBytes,
)

ESTIMATE = MemoryEstimate(
    model='Net',
    static=StaticBytes(10, 40, 40, 40, 8, 12, {'SGD': 100, 'Lion': None}),
    fit=ActivationFit(50.0, 0.0, 2.0, 0.0, 0.1, ()),
)
SMALL = make_interval(0, gpu_mem_peak_bytes=900, largest_batch_pixels=400)
LARGE = make_interval(1, gpu_mem_peak_bytes=1000, largest_batch_pixels=440)


def evidence_of(*intervals, **fields):
    return replace(make_evidence(), intervals=intervals, **fields)


def test_the_largest_peak_is_compared():
    evidence = evidence_of(SMALL, LARGE)
    measured = compare_with_run(ESTIMATE, 'SGD', evidence)
    # 200 bytes are static, 50 are of every batch, 4 images of 110 pixels take 880
    assert measured == MeasuredMemory(evidence.path, 4, 110, 'SGD', 1000, 1130)
    assert measured.error_pct == pytest.approx(13.0)


def test_static_bytes_are_compared_to_the_byte():
    counted = ModelBytesRecord(
        iteration=1,
        parameters=10,
        parameter_bytes=40,
        trainable_bytes=40,
        gradient_bytes=40,
        optimizer_state_bytes=101,
        buffer_bytes=8,
        ema_bytes=12,
    )
    measured = compare_with_run(ESTIMATE, 'SGD', evidence_of(LARGE, model=counted))
    assert isinstance(measured, MeasuredMemory)
    assert measured.static_difference_bytes == 1
    partly = replace(counted, optimizer_state_bytes=None)
    measured = compare_with_run(ESTIMATE, 'SGD', evidence_of(LARGE, model=partly))
    assert isinstance(measured, MeasuredMemory)
    assert measured.static_difference_bytes is None


def test_what_cannot_be_compared_says_why():
    without = evidence_of(make_interval())
    told = compare_with_run(ESTIMATE, 'SGD', without)
    assert isinstance(told, str)
    assert 'no peak of the CUDA allocator' in told
    unknown = 'The run cannot be compared: a part of the estimate is unknown.'
    assert compare_with_run(ESTIMATE, 'Lion', evidence_of(LARGE)) == unknown
    static_only = replace(ESTIMATE, fit=None)
    assert compare_with_run(static_only, 'SGD', evidence_of(LARGE)) == unknown
