"""Tests the gain of ``optimize`` that is predicted from a run's host work."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.overhead import (
    COUNTED,
    make_host_bound,
    make_overhead_run,
    make_profile,
    make_short_of_cores,
    with_histories,
)
from fakes.replaced import replace
from fakes.runs import make_inside_workers, make_loader
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.advice import advise
from mmgpu_hooks.recommend.host_overhead import change_optimize, with_host_overhead
from mmgpu_hooks.recommend.recommendation import recommend_settings
from mmgpu_hooks.schema.judged import HostOverhead, Recommendation
from mmgpu_hooks.schema.run import RunEvidence


def predict(
    evidence: RunEvidence, found: Recommendation | None = None
) -> HostOverhead | None:
    run = Run(evidence)
    return with_host_overhead(found or Recommendation(), run).host_overhead


def test_what_is_spared_is_what_an_iteration_gains():
    overhead = predict(make_host_bound(make_profile()))
    assert overhead is not None
    found = {saving.name: saving for saving in overhead.savings}
    assert list(found) == ['param_groups', 'ema']
    groups = found['param_groups']
    assert (groups.host_s, groups.optimized_host_s) == (
        pytest.approx(0.022),
        pytest.approx(0.006),
    )
    # 16 ms of 100 ms
    assert groups.predicted_gain_pct == pytest.approx(16, abs=1)
    assert groups.predicted_iter_s == pytest.approx(0.084, abs=0.002)
    low, high = groups.predicted_gain_low_pct, groups.predicted_gain_high_pct
    assert low is not None and high is not None
    assert 12 < low < 16 < high < 20
    # both together, 24 ms
    assert overhead.predicted_gain_pct == pytest.approx(24, abs=1)
    assert overhead.names == ('param_groups', 'ema')
    assert overhead.key == 'default_hooks.gpu_efficiency.optimize'


def test_where_cores_are_short_the_wait_goes_with_the_cpu():
    # each iteration waits for a core as long as it computes
    evidence = make_host_bound(
        make_profile(), step_s=0.179, hooks_s=0.02, process_run_delay_s=2.0
    )
    overhead = predict(evidence)
    assert overhead is not None
    # 24 of 100 ms of CPU, and at least the 24 of 200 ms that are spared for sure
    assert overhead.predicted_gain_pct == pytest.approx(24, abs=2)
    assert overhead.predicted_gain_low_pct == pytest.approx(11, abs=2)


def test_what_was_not_measured_is_listed_without_a_prediction():
    spans: dict[str, Any] = dict(data_wait_s=0.006, step_s=0.0799, hooks_s=0.014)
    overhead = predict(with_histories(make_host_bound(**spans), 0.005))
    assert overhead is not None
    unknown = {
        saving.name: saving.most_saved_s
        for saving in overhead.savings
        if saving.predicted_gain_pct is None
    }
    assert unknown == {
        'param_groups': pytest.approx(0.0357),
        'ema': pytest.approx(0.014),
        'small_tensors': pytest.approx(0.00576),
    }
    (history,) = (saving for saving in overhead.savings if saving.name == 'history')
    assert history.predicted_gain_pct == pytest.approx(4.87, abs=0.3)


def test_nothing_is_listed_where_the_loop_waits_for_data():
    """Tests that no gain is predicted for host work if the loop waits for data."""
    evidence = make_short_of_cores(0.043, 0.08)
    assert Run(evidence).is_data_bound
    assert predict(evidence, recommend_settings(Run(evidence))) is None
    slow = make_inside_workers(0.3)
    assert predict(make_host_bound(make_profile(), workers=slow, data_wait_s=0.05)) is (
        None
    )


def test_what_takes_turns_with_loading_is_listed_where_the_loop_waits_for_data():
    run = make_overhead_run()
    run = replace(run, loader=make_loader(0, pin_memory=False))
    # on one core no worker would help
    run = replace(run, host=replace(run.host, affinity_cpus=1, usable_cores=1.0))
    evidence = make_host_bound(
        make_profile(), run=run, workers=None, data_wait_s=0.1, data_wait_cpu_s=2.0
    )
    assert Run(evidence).is_data_bound
    overhead = predict(evidence)
    assert overhead is not None
    assert {saving.name for saving in overhead.savings} >= {'param_groups', 'ema'}


def test_what_is_saved_only_beside_other_load_is_not_listed():
    # alone on the host the worker would set the speed
    evidence = make_short_of_cores(0.011, 0.09)
    assert not Run(evidence).is_data_bound
    overhead = predict(evidence)
    assert overhead is not None
    assert [saving.name for saving in overhead.savings] == ['small_tensors']


def test_host_overhead_is_judged_with_the_recommended_settings():
    # data-bound as it ran; with the recommended workers the step decides
    slow = make_inside_workers(0.3, std_s=0.01)
    evidence = make_host_bound(make_profile(), workers=slow, data_wait_s=0.05)
    found = recommend_settings(Run(evidence))
    assert [change.key for change in found.changes] == ['train_dataloader.num_workers']
    overhead = predict(evidence, found)
    assert overhead is not None
    assert 'param_groups' in [saving.name for saving in overhead.savings]


@pytest.mark.parametrize(
    'evidence',
    [
        make_host_bound(make_profile(), step_s=10.0),
        make_host_bound(step_s=10.0),
        make_host_bound(run=make_overhead_run(overhead=None), small_tensors=None),
    ],
    ids=['profiled', 'counted', 'an older run'],
)
def test_a_long_step_gets_silence(evidence):
    assert predict(evidence) is None


def test_what_is_on_stays_on():
    run = make_overhead_run(optimized=('history', 'ema'))
    evidence = make_host_bound(make_profile(), run=run)
    overhead = predict(evidence)
    assert overhead is not None
    assert overhead.names == ('history', 'ema', 'param_groups')
    change = change_optimize(overhead, Run(evidence))
    assert change is not None
    assert (change.old, change.new) == ('history,ema', 'history,ema,param_groups')
    assert change.rules == ('MG601',)


@pytest.mark.parametrize('place', [None, 'custom_hooks.0'])
def test_a_hook_in_no_dict_is_changed_by_hand(place):
    evidence = make_host_bound(make_profile(), run=make_overhead_run(hook_place=place))
    overhead = predict(evidence)
    assert overhead is not None
    assert overhead.key is None
    assert change_optimize(overhead, Run(evidence)) is None


def test_the_first_answers_of_the_field_are_said_with_what_they_change():
    said = ' '.join(advise(Run(make_host_bound(make_profile()))))
    assert 'fused=True in optim_wrapper.optimizer' in said
    assert 'compile=True' in said
    assert 'they round in another way, so the weights differ' in said
    used = replace(COUNTED, is_fused=True)
    run = make_overhead_run(overhead=used)
    said = ' '.join(advise(Run(make_host_bound(make_profile(counted=used), run=run))))
    assert 'fused=True' not in said
    assert 'compile=True' in said
    assert 'compile' not in ' '.join(advise(Run(make_host_bound(step_s=10.0))))
