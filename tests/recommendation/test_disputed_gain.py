from __future__ import annotations

from dataclasses import replace

import pytest

from fakes.pooled import make_pooled
from fakes.workloads import make_workload
from mmgpu_hooks.diagnosis.facts import fold_facts
from mmgpu_hooks.evidence.summary import fold_run
from mmgpu_hooks.recommendation import chooser
from mmgpu_hooks.recommendation.choice import (
    Gain,
    Setting,
    find_disputed,
    predict_gain,
)
from mmgpu_hooks.recommendation.policy import recommend_settings
from mmgpu_hooks.records import Cost, JobPlan, LoaderWorkload


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
    facts = fold_facts(fold_run(run), run.intervals)
    assert bool(recommend_settings(facts).changes) is is_made


def test_what_is_disputed_is_beyond_what_any_run_says():
    assert find_disputed(0.3, [0.1, 0.4]) == 0.0
    assert find_disputed(0.5, [0.1, 0.4]) == pytest.approx(0.1)
    assert find_disputed(0.0, [0.1, 0.4]) == 0.0
    assert find_disputed(0.2, [0.2]) == 0.0
