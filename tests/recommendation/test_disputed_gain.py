from __future__ import annotations

import pytest

from fakes.pooled import make_pooled
from fakes.replaced import replace
from fakes.workloads import make_workload
from mmgpu_hooks.diagnosis.facts import fold_facts
from mmgpu_hooks.diagnosis.run_pool import PooledRun, pool_runs
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommendation import chooser
from mmgpu_hooks.recommendation.changes import judge_gain
from mmgpu_hooks.recommendation.choice import (
    Gain,
    Setting,
    find_disputed,
    predict_gain,
)
from mmgpu_hooks.recommendation.policy import recommend_settings
from mmgpu_hooks.schema import Cost, Disputes, JobPlan, LoaderWorkload


def gain_of(newest: LoaderWorkload, older: LoaderWorkload) -> Gain:
    """Of the older run's number of workers over the newest's."""
    return predict_gain(
        replace(newest, others=(older,)),
        Setting(newest.num_workers, 2, persistent_workers=True),
        Setting(older.num_workers, 2, persistent_workers=True),
        JobPlan(iterations=500),
    )


def test_a_gain_that_no_run_sees_is_none():
    # neither waits for data: its step was slower, for whatever reason
    newest = make_workload(num_workers=2, step=Cost(0.06, 0.0, 0.0001, 100))
    older = make_workload(num_workers=4, step=Cost(0.02, 0.0, 0.0001, 100))
    gain = gain_of(newest, older)
    assert gain.share > 0.5
    assert gain.disputed == pytest.approx(gain.share, abs=0.02)
    assert gain.low < 0.0
    assert gain.backed < 0.02


def test_a_gain_that_runs_agree_on_is_kept():
    newest = make_workload(num_workers=1, occupancy=Cost(0.04, 0.0, 0.0001, 100))
    older = make_workload(num_workers=2, occupancy=Cost(0.042, 0.0, 0.0001, 100))
    gain = gain_of(newest, older)
    assert gain.share == pytest.approx(0.48, abs=0.03)
    assert gain.disputed < 0.02
    assert gain.low > 0.3


@pytest.mark.parametrize(('disputed', 'is_made'), [(0.0, True), (0.28, False)])
def test_no_change_is_made_for_what_is_disputed(disputed, is_made, monkeypatch):
    gain = Gain(0.3, 0.1, 0.5, disputed=disputed)
    monkeypatch.setattr(chooser, 'predict_gain', lambda *_: gain)
    run = make_pooled(4, 1, loading_s=0.1, data_wait_s=0.3)
    facts = fold_facts(Run(run))
    assert bool(recommend_settings(facts).changes) is is_made


def test_what_is_disputed_is_beyond_what_any_run_says():
    assert find_disputed(0.3, [0.1, 0.4]) == 0.0
    assert find_disputed(0.5, [0.1, 0.4]) == pytest.approx(0.1)
    assert find_disputed(0.0, [0.1, 0.4]) == 0.0
    assert find_disputed(0.2, [0.2]) == 0.0


SURE = Gain(0.3, 0.2, 0.4)


@pytest.mark.parametrize(
    ('gain', 'disputes', 'word'),
    [
        (SURE, Disputes(), 'high'),
        (replace(SURE, disputed=0.02), Disputes(), 'high'),
        # more than a tenth of it is what no run sees by itself
        (replace(SURE, disputed=0.04), Disputes(), 'medium'),
        (replace(SURE, disputed=0.3), Disputes(), 'low'),
        (replace(SURE, low=-0.01), Disputes(), 'medium'),
        (SURE, Disputes(has_other_limits=True), 'medium'),
        (SURE, Disputes(contradiction=0.16), 'medium'),
        # the same setting differed by more than what the new one would give
        (SURE, Disputes(contradiction=0.5), 'low'),
        # a gain of nothing, made for other reasons
        (Gain(0.0, -0.02, 0.02), Disputes(), 'medium'),
    ],
)
def test_how_sure_a_gain_is_heeds_disputes(gain, disputes, word):
    run = make_pooled(4, 2)
    facts = replace(fold_facts(Run(run)), disputes=disputes)
    assert judge_gain(facts, gain) == word


@pytest.mark.parametrize(
    ('constant_s', 'word'), [(0.06, 'high'), (0.16, 'medium'), (0.5, 'low')]
)
def test_a_change_is_not_sure_where_runs_contradict_each_other(constant_s, word):
    fields = {'loading_s': 0.1, 'data_wait_s': 0.3}
    newest = make_pooled(4, 1, day=22, **fields)
    older = make_pooled(4, 1, day=20, constant_s=constant_s, **fields)
    runs = [PooledRun(fold_facts(Run(one))) for one in (newest, older)]
    pool = pool_runs(runs)
    together = replace(runs[0].facts, workload=pool.workload, disputes=pool.disputes)
    changes = recommend_settings(together).changes
    assert {change.confidence for change in changes if change.rules} == {word}
