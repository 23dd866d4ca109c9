"""Tests a real training with a fake NVML library."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import Mock

import pytest

from fakes.nvml import FakeGpu
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.measure.cuda import CudaEvents
from training.toy import (
    HOOK,
    AfterIteration,
    LossTape,
    build_runner,
    evidence_of,
    log_of,
    scalar_lines,
)

FAST = {**HOOK, 'gpu_sample_period_s': 0.01}


@pytest.fixture(autouse=True)
def trains_on_the_gpu(monkeypatch):
    device = {'uuid': None, 'pci_bus_id': FakeGpu().bus}
    monkeypatch.setattr('mmgpu_hooks.hooks.sources.cuda_device', lambda: device)


def test_utilisation_reaches_evidence_and_scalars(tmp_path, fake_nvml):
    fake_nvml.set(FakeGpu(util=(0, 80), memory=(1000, 400)))
    # workers start while the sampler runs
    options: dict[str, Any] = {'epochs': 3, 'num_workers': 2, 'hook': FAST}
    runner = build_runner(tmp_path, iterations=8, step_s=0.05, **options)
    runner.train()
    evidence = evidence_of(tmp_path)
    assert (evidence.end.status, evidence.end.iterations) == ('completed', 24)
    assert evidence.run.device == 'cuda'
    assert evidence.run.gpu.name == FakeGpu().name
    assert evidence.run.gpu.memory_total_bytes == 1000
    assert 'GPU' not in evidence.run.unknown
    for record, line in zip(evidence.intervals, scalar_lines(tmp_path), strict=True):
        window = record.gpu
        assert window.samples >= 4
        assert window.mem_used_bytes == 400
        # every other sample is 0, and all stand for about as long
        assert window.util_pct == pytest.approx(40, abs=15)
        assert window.zero_pct == pytest.approx(50, abs=20)
        assert line['gpu_util_pct'] == pytest.approx(window.util_pct, rel=1e-6)
        assert line['gpu_zero_pct'] == pytest.approx(window.zero_pct, rel=1e-6)
    assert 'mmgpu-gpu-sampler' not in [t.name for t in threading.enumerate()]


def test_a_driver_that_fails_later_costs_its_figures_only(tmp_path, fake_nvml):
    lost = 15  # the GPU fell off the bus
    fake_nvml.set(FakeGpu(util=(70,), fail={'util': (lost, 12)}))
    tape = LossTape()
    runner = build_runner(
        tmp_path,
        iterations=16,
        step_s=0.05,
        log_interval=1,
        hook=FAST,
        custom_hooks=[tape],
    )
    runner.train()
    assert len(tape.losses) == 16
    log = log_of(runner)
    assert log.count('GPU is switched off for this run (') == 1
    assert log.count('is switched off for this run') == 1
    evidence = evidence_of(tmp_path)
    assert [off.source for off in evidence.sources_off] == ['GPU']
    assert evidence.intervals[0].gpu is not None
    assert evidence.intervals[-1].gpu is None
    assert 'gpu_util_pct' not in scalar_lines(tmp_path)[-1]
    assert 'images_per_s' in scalar_lines(tmp_path)[-1]


def test_one_odd_figure_costs_that_figure_only(tmp_path, fake_nvml):
    # WSL2: memory is there, utilisation is an unknown error
    fake_nvml.set(FakeGpu(more=['temperature 61'], fail={'util': (999, 0)}))
    runner = build_runner(tmp_path, step_s=0.05, hook=FAST)
    runner.train()
    log = log_of(runner)
    assert log.count('is switched off for this run') == 1
    assert log.count('GPU util_pct is switched off for this run (') == 1
    evidence = evidence_of(tmp_path)
    assert [off.source for off in evidence.sources_off] == ['GPU util_pct']
    for record in evidence.intervals:
        assert (record.gpu.util_pct, record.gpu.mem_used_bytes) == (None, 400)
    findings = diagnose_run(Run(evidence)).findings
    (detail,) = (found.detail for found in findings if found.code == 'MG202')
    assert 'Unknown Error' in detail


@pytest.mark.parametrize(
    ('driver', 'hip', 'reason'),
    [
        ({'init': 9}, None, 'driver is not loaded'),
        ({}, '6.2', 'ROCm'),
        # the fixture proves that NVML was shut down
        ({'fail': {'name': (15, 0)}}, None, 'switched off'),
    ],
)
def test_a_card_that_cannot_be_read_is_a_reason(
    tmp_path, fake_nvml, monkeypatch, driver, hip, reason
):
    monkeypatch.setattr('torch.version.hip', hip)
    gpu = {name: value for name, value in driver.items() if name == 'fail'}
    fake_nvml.set(FakeGpu(**gpu), init=driver.get('init', 0))
    runner = build_runner(tmp_path)
    runner.train()
    evidence, log = evidence_of(tmp_path), log_of(runner)
    assert evidence.end is not None
    assert {record.gpu for record in evidence.intervals} == {None}
    assert 'no real card yet' in log
    is_off = reason == 'switched off'
    assert log.count('GPU is switched off for this run (') == is_off
    assert is_off or reason in evidence.run.unknown['GPU']


def test_the_work_of_hooks_is_in_no_idle_time(tmp_path, monkeypatch):
    log: list[str] = []

    def event() -> Mock:
        record = Mock(side_effect=lambda stream: log.append('event'))
        return Mock(record=record, **{'elapsed_time.return_value': 1.0})

    events = CudaEvents(event, lambda: 'stream')
    monkeypatch.setattr('mmgpu_hooks.hooks.sources.open_cuda_events', lambda: events)
    monkeypatch.setattr('mmgpu_hooks.hooks.sources.cuda_device', lambda: None)
    # the last of the hooks behind a step, such as one that averages the weights
    last = AfterIteration(lambda runner: log.append('hook'), 'LOWEST')
    runner = build_runner(tmp_path, iterations=8, custom_hooks=[last])
    runner.train()
    assert log == ['event', 'hook', 'event'] * 8
    idle = [record.gpu_idle_iterations for record in evidence_of(tmp_path).intervals]
    assert sum(idle) >= 6
