"""What settings can save, at most and given what is not known."""

from __future__ import annotations

import pytest

from fakes.replaced import replace
from fakes.workloads import make_workload
from mmgpu_hooks.model.job import JobPlan
from mmgpu_hooks.model.workload import Cost, Workload
from mmgpu_hooks.recommend.choice import Setting, job_s, most_gain, predict_gain

OLD = Setting(2, 2, True)
ALONE = Setting(0, 2, False)
PLAN = JobPlan(iterations=200, epochs=2)


def make_light(**fields) -> Workload:
    """A worker does little more for a batch than handing it over."""
    usual = {
        'step': Cost(0.02),
        'step_cpu_s': 0.02,
        'batch_time': Cost(0.004),
        'batch_cpu': Cost(0.004),
        'transfer_s': 0.003,
        'transfer_cpu_s': 0.003,
        'fetch_s': 0.003,
    }
    return make_workload(**{**usual, **fields})


@pytest.mark.parametrize(
    'workload',
    [
        make_light(),
        make_light(usable_cores=2.0, host_cores=2.0),
        make_workload(),
        make_workload(batch_time=Cost(0.05, 0.04), batch_cpu=Cost(0.05, 0.04)),
    ],
)
def test_no_setting_saves_more_than_the_most(workload):
    most = most_gain(workload, OLD, PLAN)
    now_s = job_s(workload, OLD, PLAN)
    for workers in (0, 1, 3, 4, 8):
        new = Setting(workers, 2, workers > 0)
        assert 1.0 - job_s(workload, new, PLAN) / now_s <= most + 0.005


def test_without_workers_nothing_is_fetched():
    # 23 ms with a batch at hand that has to be fetched, 21 ms without
    most = most_gain(make_light(), OLD, PLAN)
    assert most == pytest.approx(1.0 - 0.021 / 0.023, abs=0.01)


def test_a_gain_without_workers_is_as_unsure_as_the_handing_over():
    light = make_light()
    sure = replace(light, transfer_s=0.0, transfer_cpu_s=0.0, batch_time=Cost(0.001))
    sure = replace(sure, batch_cpu=Cost(0.001))
    gains = [predict_gain(one, OLD, ALONE, PLAN) for one in (light, sure)]
    assert gains[0].share == pytest.approx(gains[1].share, abs=0.005)
    # half of the 3 ms that handing over is taken to need
    assert gains[0].noise == pytest.approx(0.0015 / 0.023, rel=0.05)
    assert gains[1].noise < 0.002


def test_handing_over_is_no_more_than_all_that_a_worker_does():
    tiny = make_light(batch_time=Cost(0.002), batch_cpu=Cost(0.002))
    gain = predict_gain(tiny, OLD, ALONE, PLAN)
    assert gain.noise == pytest.approx(0.001 / 0.023, rel=0.05)


def test_with_workers_before_and_after_it_does_not_matter():
    gain = predict_gain(make_light(), OLD, replace(OLD, num_workers=1), PLAN)
    assert gain.noise < 0.002
