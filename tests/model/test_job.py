from __future__ import annotations

import pytest

from fakes.workloads import make_workload
from mmgpu_hooks.model.job import estimate_job_s
from mmgpu_hooks.schema import Cost, JobPlan

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


def job_s(workers: int, plan: JobPlan, persistent: bool = True, **fields) -> float:
    workload = make_workload(**{**PLAIN, **fields})
    return estimate_job_s(workload, workers, 2, plan, persistent_workers=persistent)


def test_every_epoch_starts_with_no_batch_made():
    plan = JobPlan(iterations=100, epochs=10)
    # ten first batches of 40 ms, and four workers started once
    assert job_s(4, plan) == pytest.approx(1000 * 0.02 + 10 * 0.04 + 4 * 0.1)


def test_workers_that_do_not_persist_are_started_each_epoch():
    plan = JobPlan(iterations=100, epochs=10)
    started = job_s(4, plan, persistent=False)
    assert started == pytest.approx(1000 * 0.02 + 10 * (0.04 + 4 * 0.1))


def test_many_workers_lose_short_epochs_that_start_them():
    """Steady speed alone would have them win."""
    plan = JobPlan(iterations=5, epochs=20)
    assert job_s(16, plan, False) > 2 * job_s(2, plan, True)


def test_without_workers_nothing_starts():
    assert job_s(0, JobPlan(iterations=100, epochs=10)) == pytest.approx(1000 * 0.06)


def save_net_s(workers: int, plan: JobPlan, **fields) -> float:
    without = JobPlan(plan.iterations, plan.epochs)
    return job_s(workers, plan, **fields) - job_s(workers, without, **fields)


SAVING = JobPlan(iterations=100, saves=3, save_cpu_s=0.1, save_wait_s=0.4)


def test_a_save_costs_its_time_where_the_step_is_the_wall():
    assert save_net_s(4, SAVING) == pytest.approx(1.5)


def test_batches_made_during_a_save_win_a_part_of_it_back():
    # two batches of 40 ms were made ahead each time; nobody made the third
    assert save_net_s(1, SAVING) == pytest.approx(1.5 - 3 * 0.08, abs=0.07)


def test_what_workers_did_during_a_save_on_scarce_cores_is_not_lost():
    scarce = {'usable_cores': 2.0, 'host_cores': 2.0}
    costs = {'batch_cpu': Cost(0.04), 'step': Cost(0.005)}
    plan = JobPlan(iterations=100, saves=1, save_cpu_s=0.1)
    assert save_net_s(8, plan, **costs, **scarce) < 0.1


def test_an_epoch_of_one_batch_is_its_loading_and_its_step():
    assert job_s(2, JobPlan(iterations=1)) == pytest.approx(2 * 0.1 + 0.04 + 0.02)


def test_a_job_of_nothing_is_refused():
    with pytest.raises(ValueError, match='at least one epoch of one iteration'):
        job_s(2, JobPlan(iterations=0))
