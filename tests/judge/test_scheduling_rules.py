from __future__ import annotations

import pytest

from fakes.replaced import replace
from fakes.runs import (
    make_evidence,
    make_host_window,
    make_inside_workers,
    make_run,
    make_workers,
)
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.schema import Diagnosis, HostLimits, LoaderSettings, RunRecord

MAIN = {'process_cpu_s': 4.0}
"""0.2 s per iteration: the step."""


def diagnose(run: RunRecord | None = None, **fields) -> Diagnosis:
    summary = Run(make_evidence(run=run, **{**MAIN, **fields}))
    return diagnose_run(summary)


def finding(diagnosis: Diagnosis, code: str):
    return next((f for f in diagnosis.findings if f.code == code), None)


@pytest.mark.parametrize(
    ('delay_s', 'severity', 'verdict'),
    [
        (20 * 0.15, 'problem', 'cpu_oversubscribed'),
        (20 * 0.029, None, 'compute_bound'),
        (None, 'unknown', 'compute_bound'),
    ],
)
def test_a_training_thread_that_waits_for_a_core(delay_s, severity, verdict):
    diagnosis = diagnose(data_wait_s=0.001, step_s=0.3, process_run_delay_s=delay_s)
    found = finding(diagnosis, 'MG110')
    assert (found and found.severity) == severity
    assert diagnosis.verdict.name == verdict
    if severity == 'problem':
        assert 'waited 0.150 s per iteration' in diagnosis.verdict.sentence


def confined(cpus: int, workers: int = 4):
    inside = make_inside_workers(1.1, count=workers, affinity_cpus=cpus)
    run = make_run(
        loader=LoaderSettings(
            num_workers=workers,
            persistent_workers=True,
            prefetch_factor=2,
            pin_memory=False,
            batch_size=4,
            batches_per_epoch=100,
            dataset_length=400,
        )
    )
    return diagnose(run=run, workers=inside)


def test_workers_on_one_cpu_are_the_verdict():
    diagnosis = confined(1)
    assert diagnosis.verdict.name == 'affinity_collapsed'
    assert 'may run on 1 CPU(s) only' in diagnosis.verdict.sentence


def test_workers_with_a_cpu_each_are_only_noticed():
    found = finding(confined(4), 'MG111')
    assert found is not None
    assert found.severity == 'notice'


def test_workers_that_may_run_everywhere_are_no_finding():
    assert finding(confined(8), 'MG111') is None


def test_no_workers_are_bound_where_there_are_none():
    host = HostLimits(
        logical_cpus=8,
        affinity_cpus=1,
        unbound_cpus=8,
        bound_by='OMP_PROC_BIND',
        usable_cores=8.0,
    )
    loader = LoaderSettings(
        num_workers=0,
        persistent_workers=False,
        prefetch_factor=None,
        pin_memory=False,
        batch_size=4,
        batches_per_epoch=100,
        dataset_length=400,
    )
    found = finding(diagnose(run=make_run(host=host, loader=loader)), 'MG113')
    assert (found.severity, 'worker' in found.detail) == ('notice', False)


@pytest.mark.parametrize(
    ('host', 'severity', 'verdict', 'words'),
    [
        (
            HostLimits(
                logical_cpus=8,
                affinity_cpus=1,
                unbound_cpus=8,
                bound_by='OMP_PROC_BIND',
                usable_cores=8.0,
            ),
            'problem',
            'affinity_collapsed',
            'OMP_PROC_BIND bound it to 1 of 8 CPUs (7 lost)',
        ),
        # room enough for four workers and the training thread
        (
            HostLimits(
                logical_cpus=8, affinity_cpus=5, unbound_cpus=8, usable_cores=8.0
            ),
            'notice',
            'data_bound_workers',
            'bound after start to 5 of 8 CPUs (3 lost)',
        ),
        (HostLimits(logical_cpus=8, affinity_cpus=1, usable_cores=1.0), None, None, ''),
    ],
)
def test_a_training_process_that_was_bound(host, severity, verdict, words):
    loader = LoaderSettings(
        num_workers=4,
        persistent_workers=True,
        prefetch_factor=2,
        pin_memory=False,
        batch_size=4,
        batches_per_epoch=100,
        dataset_length=400,
    )
    diagnosis = diagnose(run=make_run(host=host, loader=loader))
    found = finding(diagnosis, 'MG113')
    assert (found and found.severity) == severity
    assert words in (found.detail if found else '')
    assert verdict in (None, diagnosis.verdict.name)


@pytest.mark.parametrize(
    ('throttled_s', 'severity', 'verdict'),
    [
        # of 6 s an interval
        (1.5, 'problem', 'quota_throttled'),
        (0.2, None, 'compute_bound'),
        (None, None, 'compute_bound'),
    ],
)
def test_a_quota_that_throttles(throttled_s, severity, verdict):
    diagnosis = diagnose(
        data_wait_s=0.001,
        step_s=0.299,
        host=make_host_window(throttled_s=throttled_s),
    )
    found = finding(diagnosis, 'MG112')
    assert (found and found.severity) == severity
    assert diagnosis.verdict.name == verdict


def test_late_batches_hold_up_the_ones_behind_them():
    # two workers need 0.2 s a batch, as the step does, and vary by as much
    inside = make_inside_workers(
        0.4, std_s=0.4, worker_batches=(10, 10), asks=20, out_of_order=8
    )
    fields = {'data_wait_s': 0.06, 'step_s': 0.24, 'workers': inside}
    diagnosis = diagnose(**fields)
    found = finding(diagnosis, 'MG109')
    assert found is not None
    assert found.severity == 'problem'
    assert diagnosis.verdict.name == 'data_bound_order'
    in_order = replace(inside, out_of_order=0)
    assert finding(diagnose(**{**fields, 'workers': in_order}), 'MG109') is None


def test_an_order_that_was_not_measured_cannot_be_told():
    found = finding(diagnose(workers=make_workers(0.4)), 'MG109')
    assert found is not None
    assert found.severity == 'unknown'


def test_the_headspace_is_what_free_data_would_give():
    # 0.1 s of every 0.3 s is waiting
    verdict = diagnose().verdict
    assert verdict.headspace_pct == pytest.approx(50.0)
    assert diagnose(data_wait_s=0.0).verdict.headspace_pct == 0.0


def test_the_headspace_counts_what_workers_hold_the_step_up():
    evidence = make_evidence(workers=make_inside_workers(0.2), **MAIN)
    run = Run(evidence)
    assert run.workload is not None
    held_up = run.altered(workload=replace(run.workload, held_up_s=0.1))
    # 0.1 s of every 0.3 s is the step's own, in the steady iterations
    whole_s = run.duration_s
    waits_s = run.headspace_pct * whole_s / (100.0 + run.headspace_pct)
    waits_s += 0.1 * run.workload.iterations
    assert held_up.headspace_pct == pytest.approx(
        100.0 * waits_s / (whole_s - waits_s), rel=0.01
    )


def test_a_short_run_has_no_headspace():
    assert diagnose(intervals=1, iterations=5).verdict.headspace_pct is None
