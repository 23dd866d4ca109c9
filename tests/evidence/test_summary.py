from __future__ import annotations

from dataclasses import replace

import pytest

from fakes.runs import make_evidence, make_interval, make_run, make_workers
from mmgpu_hooks.evidence.summary import fold_run
from mmgpu_hooks.records import GpuWindow, RunEvidence, SourceOffRecord


def evidence_of(*intervals, **fields) -> RunEvidence:
    return RunEvidence(path='x', run=make_run(), intervals=intervals, **fields)


def test_the_first_interval_is_warm_up():
    slow = make_interval(0, data_wait_s=5.0, step_s=5.0)
    summary = fold_run(evidence_of(slow, make_interval(1), make_interval(2)))
    assert summary.steady_iterations == 40
    assert summary.iterations == 60
    assert summary.data_wait_s == pytest.approx(0.1)
    assert summary.step_s == pytest.approx(0.2)
    assert summary.images_per_s == pytest.approx(4 / 0.3)


def test_a_single_interval_is_used_for_want_of_others():
    assert fold_run(evidence_of(make_interval())).steady_iterations == 20


def test_first_waits_are_start_up_and_no_wait():
    first = make_interval(1)
    first = replace(
        first,
        data_wait=replace(first.data_wait, total_s=1.9 + 4.0),
        first_waits=1,
        first_wait_s=4.0,
    )
    summary = fold_run(evidence_of(make_interval(0), first))
    assert summary.data_wait_s == pytest.approx(0.1)
    assert summary.startup_s == pytest.approx(3.9)
    assert summary.epoch_starts == 1


def test_without_an_end_record_the_run_was_killed():
    summary = fold_run(evidence_of(make_interval(0), make_interval(1)))
    assert summary.status == 'killed'
    assert summary.duration_s == pytest.approx(12.0)
    assert summary.ledger_s['step'] == pytest.approx(8.0)


def test_worker_cpu_is_per_batch_over_windows_without_a_start():
    started = replace(make_workers(9.0), fresh=True)
    summary = fold_run(
        evidence_of(
            make_interval(0),
            make_interval(1, workers=started),
            make_interval(2, workers=make_workers(0.3, run_delay_s=0.05)),
        )
    )
    assert summary.worker_cpu_s == pytest.approx(0.3)
    assert summary.worker_run_delay_s == pytest.approx(0.05)
    assert summary.worker_count == 2


def test_windows_with_a_start_count_the_batches_in_the_making():
    started = replace(make_workers(0.0, count=4, iterations=8), cpu_s=5.0, fresh=True)
    summary = fold_run(evidence_of(make_interval(0), make_interval(1, workers=started)))
    assert summary.worker_cpu_s == pytest.approx(0.5)  # 8 taken, 4 half made


def test_gpu_windows_are_weighted_by_time():
    short = make_interval(1, iterations=10, gpu=GpuWindow(5, 100.0, 0.0, 0.0, 7))
    long = make_interval(2, iterations=30, gpu=GpuWindow(15, 20.0, 60.0, 10.0, 9))
    gpu = fold_run(evidence_of(make_interval(0), short, long)).gpu
    assert gpu is not None
    assert gpu.util_pct == pytest.approx(40.0)
    assert gpu.zero_pct == pytest.approx(45.0)
    assert (gpu.samples, gpu.mem_used_bytes) == (20, 9)


def test_unknown_stays_unknown():
    summary = fold_run(
        make_evidence(3, images=None, process_cpu_s=None, data_wait_cpu_s=None)
    )
    assert summary.images_per_s is None
    assert summary.main_cpu_s is None
    assert summary.data_wait_cpu_share is None
    assert summary.worker_cpu_s is None
    assert summary.gpu is None


def test_a_run_without_intervals_knows_nothing():
    summary = fold_run(evidence_of())
    assert (summary.iterations, summary.steady_iterations) == (0, 0)
    assert (summary.iter_s, summary.data_wait_s, summary.step_s) == (None, None, None)


def test_reasons_of_the_start_and_of_later_are_joined():
    off = SourceOffRecord('CPU', 'OSError: gone', 20)
    unknown = fold_run(evidence_of(make_interval(), sources_off=(off,))).unknown
    assert unknown == {'GPU': 'training runs on the CPU', 'CPU': 'OSError: gone'}


def test_main_cpu_leaves_the_waits_out():
    summary = fold_run(make_evidence(3, process_cpu_s=6.0, data_wait_cpu_s=1.0))
    assert summary.main_cpu_s == pytest.approx(5.0 / 20)
    assert summary.data_wait_cpu_share == pytest.approx(1.0 / 2.0)
