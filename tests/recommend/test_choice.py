"""What settings can save, at most and given what is not known."""

from __future__ import annotations

import pytest

from fakes.replaced import replace
from fakes.runs import add_to_end, make_evidence, make_run
from fakes.workloads import make_workload
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.prediction import JobPlan, Setting
from mmgpu_hooks.model.workload import Cost
from mmgpu_hooks.recommend.choice import Job, count_starts, most_gain

OLD = Setting(2, 2, True)
ALONE = Setting(0, 2, False)
RUN = Run(make_evidence(run=make_run(max_epochs=2)))


LIGHT = make_workload(
    step=Cost(0.02),
    step_cpu_s=0.02,
    batch_time=Cost(0.004),
    batch_cpu=Cost(0.004),
    usable_cores=2.0,
    host_cores=2.0,
)
"""A worker does little for a batch."""


@pytest.mark.parametrize('workload', [LIGHT, make_workload()])
def test_no_setting_saves_more_than_the_most(workload):
    job = Job(RUN, workload)
    most, now_s = most_gain(job, OLD), job.total_s(OLD)
    for workers in (0, 1, 3, 4, 8):
        new = Setting(workers, 2, workers > 0)
        assert 1.0 - job.total_s(new) / now_s <= most + 0.005


def read(saves: int = 0, **run) -> Run:
    evidence = make_evidence(run=make_run(**run))
    if saves:
        evidence = add_to_end(evidence, checkpoint_save=2.0 * saves)
        evidence = replace(evidence, end=replace(evidence.end, saves=saves))
    return Run(evidence)


@pytest.mark.parametrize(
    ('run', 'plan'),
    [
        # 160 iterations were recorded, of 12 epochs of 100
        ({}, JobPlan(100, 12)),
        ({'loop': 'iter', 'max_iters': 5000}, JobPlan(5000, 1)),
        ({'loop': 'MyLoop', 'max_iters': None}, JobPlan(160, 1)),
        # 8 s in 160 iterations, so 60 s in 1200
        ({'saves': 4}, JobPlan(100, 12, 60.0)),
    ],
)
def test_a_job_is_what_was_configured(run, plan):
    assert Job(read(**run), LIGHT).plan == plan


@pytest.mark.parametrize(
    ('run', 'starts'), [({}, 12), ({'loop': 'iter'}, 3), ({'max_epochs': None}, 3)]
)
def test_starts_are_what_is_configured_or_was_seen(run, starts):
    assert count_starts(read(**run).altered(epoch_starts=3)) == starts
