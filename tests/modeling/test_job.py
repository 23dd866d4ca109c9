from __future__ import annotations

import pytest

from fakes.workloads import make_workload
from mmgpu_hooks.modeling.job import predict_job
from mmgpu_hooks.schema import Cost, JobPlan, JobPrediction, NoPrediction

# 40 ms of loading that only waits, a 20 ms step, nothing to fetch
PLAIN = {
    'occupancy': Cost(0.04),
    'batch_cpu': Cost(0.0),
    'step': Cost(0.02),
    'step_cpu_s': 0.0,
    'fetch_s': 0.0,
    'fetch_busy_s': 0.0,
    'worker_start_s': 0.1,
}


def predict(workers: int, plan: JobPlan, persistent: bool = True) -> JobPrediction:
    found = predict_job(
        make_workload(**PLAIN), workers, 2, plan, persistent_workers=persistent
    )
    assert isinstance(found, JobPrediction)
    return found


def test_every_epoch_starts_with_no_batch_made():
    job = predict(4, JobPlan(iterations=100, epochs=10))
    assert job.iterations_s == pytest.approx(1000 * 0.02)
    # ten first batches of 40 ms, and four workers started once
    assert job.starts_s == pytest.approx(10 * 0.04 + 4 * 0.1)
    assert job.job_s == pytest.approx(20 + 0.8)
    assert job.job_low_s < job.job_s < job.job_high_s


def test_workers_that_do_not_persist_are_started_each_epoch():
    plan = JobPlan(iterations=100, epochs=10)
    job = predict(4, plan, persistent=False)
    assert job.starts_s == pytest.approx(10 * (0.04 + 4 * 0.1))


def test_many_workers_lose_short_epochs_that_start_them():
    """Steady speed alone would have them win."""
    plan = JobPlan(iterations=5, epochs=20)
    assert predict(16, plan, False).job_s > 2 * predict(2, plan, True).job_s


def test_without_workers_nothing_starts():
    job = predict(0, JobPlan(iterations=100, epochs=10))
    assert job.starts_s == 0.0
    assert job.job_s == pytest.approx(1000 * 0.06)


def test_a_save_costs_its_time_where_the_step_is_the_wall():
    plan = JobPlan(iterations=100, saves=3, save_cpu_s=0.1, save_wait_s=0.4)
    job = predict(4, plan)
    assert job.saves_s == pytest.approx(1.5)
    assert job.saves_net_s == pytest.approx(1.5)


def test_batches_made_during_a_save_win_a_part_of_it_back():
    plan = JobPlan(iterations=100, saves=3, save_cpu_s=0.1, save_wait_s=0.4)
    job = predict(1, plan)
    assert job.saves_s == pytest.approx(1.5)
    # two batches of 40 ms were made ahead each time; nobody made the third
    assert job.saves_net_s == pytest.approx(1.5 - 3 * 0.08, abs=0.07)


def test_workers_hold_a_save_up_where_cores_are_scarce():
    workload = make_workload(
        **{**PLAIN, 'batch_cpu': Cost(0.04), 'step': Cost(0.005)},
        usable_cores=2.0,
        host_cores=2.0,
    )
    plan = JobPlan(iterations=100, saves=1, save_cpu_s=0.1)
    job = predict_job(workload, 8, 2, plan, persistent_workers=True)
    assert isinstance(job, JobPrediction)
    assert job.saves_s > 0.2
    # what the workers did meanwhile is not lost
    assert job.saves_net_s < 0.1


def test_an_epoch_of_one_batch_is_its_loading_and_its_step():
    job = predict(2, JobPlan(iterations=1))
    assert job.job_s == pytest.approx(2 * 0.1 + 0.04 + 0.02)


def test_a_job_of_nothing_is_refused():
    with pytest.raises(ValueError, match='at least one epoch of one iteration'):
        predict(2, JobPlan(iterations=0))


def test_an_unknown_batch_size_gives_the_reason():
    found = predict_job(make_workload(), 2, 2, JobPlan(100), batch_size=32)
    assert isinstance(found, NoPrediction)
