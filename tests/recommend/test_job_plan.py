from __future__ import annotations

import pytest

from fakes.replaced import replace
from fakes.runs import add_to_end, make_evidence, make_run
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.job import JobPlan
from mmgpu_hooks.recommend.job_plan import count_starts, plan_job
from mmgpu_hooks.schema import SaveRecord


def fold(**run) -> Run:
    return Run(make_evidence(run=make_run(**run)))


def test_a_job_is_all_epochs_that_were_configured():
    # 160 iterations were recorded, of 12 epochs of 100
    assert plan_job(fold()) == JobPlan(iterations=100, epochs=12)


def test_a_loop_that_counts_iterations_is_one_epoch():
    assert plan_job(fold(loop='iter', max_iters=5000)) == JobPlan(5000, 1)


def test_without_a_configured_end_what_was_recorded_is_the_job():
    assert plan_job(fold(loop='MyLoop', max_iters=None)) == JobPlan(160, 1)


@pytest.mark.parametrize(
    ('run', 'starts'),
    [({}, 12), ({'loop': 'iter'}, 3), ({'max_epochs': None}, 3)],
)
def test_starts_are_what_is_configured_or_was_seen(run, starts):
    assert count_starts(fold(**run).altered(epoch_starts=3)) == starts


def test_saves_come_as_often_as_they_came():
    evidence = add_to_end(make_evidence(), checkpoint_save=8.0)
    assert evidence.end is not None
    evidence = replace(evidence, end=replace(evidence.end, saves=4))
    plan = plan_job(Run(evidence))
    # 4 in 160 iterations, so 30 in 1200; they took 2 s each, of which CPU is unknown
    assert plan == JobPlan(100, 12, saves=30, save_cpu_s=0.0, save_wait_s=2.0)


def test_saves_that_were_taken_apart_tell_their_cpu():
    saves = tuple(
        SaveRecord(
            iteration=20 * index, epoch=1, wall_s=3.0, cpu_s=1.0 + index, blocked_s=0.5
        )
        for index in range(3)
    )
    plan = plan_job(fold().altered(saves=3, save_records=saves))
    assert (plan.save_cpu_s, plan.save_wait_s) == (2.0, 0.5)
