from __future__ import annotations

from collections.abc import Sequence

import pytest

from fakes.replaced import replace
from fakes.runs import make_evidence, make_inside_workers, make_run, steady
from fakes.saves import HOST, LOADER, make_contended_ones, with_saves
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.job import Job
from mmgpu_hooks.recommend.recommendation import with_save_cures
from mmgpu_hooks.recommend.settings import SETTINGS
from mmgpu_hooks.schema.judged import Change, Recommendation, SaveCure
from mmgpu_hooks.schema.recorded import SaveRecord
from mmgpu_hooks.schema.text import quoted

NOTHING = Recommendation(reason=quoted('In steady iterations data is at hand.'))
CONTENDED = make_contended_ones(4)
NICED = ('default_hooks.gpu_efficiency.worker_nice', None, 10)


def run_of(saves: Sequence[SaveRecord]) -> Run:
    """Returns a run of 40 s with checkpoint saves and more workers than it needs."""
    inside = make_inside_workers(0.2, std_s=0.0, count=8, batch_cpu=steady(0.15, 20))
    evidence = make_evidence(
        run=make_run(host=HOST, loader=LOADER),
        data_wait_s=0.0,
        step_s=0.25,
        workers=replace(inside, cpu_s=0.15 * 20, run_delay_s=0.4 * 20),
    )
    return Run(with_saves(evidence, saves))


def cures_of(summary: Run, settings=NOTHING) -> dict[str, SaveCure]:
    found = with_save_cures(settings, summary)
    return {cure.name: cure for cure in found.save_cures}


def changes_of(summary: Run, settings=NOTHING) -> list[tuple]:
    found = with_save_cures(settings, summary)
    return [(change.key, change.old, change.new) for change in found.changes]


def test_what_no_job_is_known_to_lose_changes_nothing_but_is_said():
    summary = run_of(CONTENDED)
    unknown = Run(replace(summary.evidence, after_saves=()))
    assert changes_of(unknown) == []
    assert cures_of(unknown)['worker_nice'].run_net_s is None
    back = tuple(
        replace(after, usual_wait_s=0.1, waits_s=0.0) for after in summary.after_saves
    )
    summary = Run(replace(summary.evidence, after_saves=back))
    assert changes_of(summary) == []
    assert with_save_cures(NOTHING, summary).reason == NOTHING.reason
    cure = cures_of(summary)['worker_nice']
    assert (cure.run_gross_s, cure.run_net_s) == (pytest.approx(6.4), 0.0)


@pytest.mark.parametrize(('count', 'changes'), [(3, [NICED]), (2, [])])
def test_small_delays_count_when_they_add_up(count, changes):
    # 0.15 s each, of which none is slow
    summary = run_of(make_contended_ones(count, run_delay_s=0.15))
    assert changes_of(summary) == changes
    assert ('worker_nice' in cures_of(summary)) is bool(changes)


def test_niced_workers_must_gain_beyond_fewer_ones():
    fewer = Change('train_dataloader.num_workers', 8, 1, quoted('why not'), 'high')
    summary = run_of(CONTENDED)
    settings = Recommendation((fewer,))
    assert changes_of(summary, settings) == [('train_dataloader.num_workers', 8, 1)]


def test_saves_of_a_training_are_shorter_by_what_workers_held_up():
    run = run_of(CONTENDED)
    assert run.workload is not None
    job = Job.of(run, run.workload, SETTINGS)
    now, niced = job.base, job.at({**job.old, 'worker_nice': 10})
    net_s = cures_of(run)['worker_nice'].run_net_s
    saves_s = run.figures.ledger_s['checkpoint_save']
    assert 0.0 < net_s < saves_s
    assert niced.plan.saves_s == pytest.approx(now.plan.saves_s * (1 - net_s / saves_s))
    # with a core to spare nothing held them up
    fewer = {**job.old, 'num_workers': 1}
    assert job.at({**fewer, 'worker_nice': 10}) == job.at(fewer)
