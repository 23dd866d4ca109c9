"""Tests the host work per iteration, measured by a profile or estimated by counts."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.overhead import (
    COUNTED,
    HOST_PARTS,
    make_host_bound,
    make_overhead_run,
    make_profile,
    with_histories,
)
from fakes.replaced import replace
from fakes.runs import make_gpu_fields, make_gpu_run
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.schema.recorded import AveragedModel
from mmgpu_hooks.schema.run import RunEvidence

HOST_CODES = ('MG601', 'MG602', 'MG603', 'MG604', 'MG605', 'MG606', 'MG607')


def find(evidence: RunEvidence) -> dict[str, Any]:
    """Returns the findings on host work by rule code."""
    findings = diagnose_run(Run(evidence)).findings
    return {each.code: each for each in findings if each.code in HOST_CODES}


def test_what_was_measured_is_said_in_ms_and_per_cent():
    found = find(make_host_bound(make_profile()))
    # 22 ms of the step, of schedulers and of zeroing, less 6 ms that are left
    assert found['MG601'].detail == (
        'AdamW steps through 240 parameter groups that have 2 settings: 22.0 ms of '
        'host CPU an iteration, of which optimize=param_groups takes off 16.0 ms (16 % '
        'of 100.0 ms), all bits the same.'
    )
    assert found['MG601'].share == pytest.approx(0.16)
    assert 'ExpMomentumEMA averages 400 tensors one by one: 10.0 ms' in (
        found['MG602'].detail
    )
    assert found['MG603'].detail.startswith('Workers send 36 tensors of a batch')
    assert 'the gradients of 240 tensors in each step: 3.0 ms' in found['MG605'].detail
    assert {each.severity for each in found.values()} == {'notice'}


def test_without_a_profile_the_most_is_said():
    # each within what its part of an iteration takes
    spans: dict[str, Any] = dict(data_wait_s=0.006, step_s=0.0799, hooks_s=0.014)
    found = find(make_host_bound(**spans))
    assert found['MG601'].detail.endswith(
        'up to 35.7 ms of host CPU an iteration (36 % of 99.9 ms). `mmgpu profile` '
        'measures it; optimize=param_groups takes it off, all bits the same.'
    )
    assert found['MG601'].share is None
    assert 'up to 14.0 ms' in found['MG602'].detail
    assert 'up to 5.8 ms' in found['MG603'].detail
    assert found['MG605'].severity == 'ok'


def test_the_most_is_no_more_than_what_was_measured_of_the_run():
    """Tests that upper bounds of host time stay within a run's own measured parts."""
    spans: dict[str, Any] = dict(data_wait_s=0.001, step_s=0.016, hooks_s=0.003)
    found = find(make_host_bound(**spans, process_cpu_s=0.4))
    assert 'up to 16.0 ms of host CPU an iteration (80 % of' in found['MG601'].detail
    assert 'up to 3.0 ms' in found['MG602'].detail
    assert 'up to 1.0 ms' in found['MG603'].detail
    # the rest of it the thread slept, or waited for a core
    costs = Run(make_host_bound(**spans, process_cpu_s=0.2)).host_costs
    assert costs['param_groups'].saved_s == pytest.approx(0.01)


def other_profile(**counted: Any) -> Any:
    return make_profile(counted=replace(COUNTED, **counted))


@pytest.mark.parametrize(
    'profile',
    [other_profile(groups=241), make_profile(device='NVIDIA H100'), None],
    ids=['another model', 'another device', 'none'],
)
def test_a_profile_of_another_training_is_not_used(profile):
    assert 'up to' in find(make_host_bound(profile))['MG601'].detail


NOT_ALIKE = make_overhead_run(overhead=replace(COUNTED, groups=2))
ON = make_overhead_run(optimized=('param_groups',))
CARD: dict[str, Any] = {
    'device': 'cuda',
    'overhead': COUNTED,
    'hook_place': 'custom_hooks.0',
}
ON_CARD = {
    name: value
    for name, value in make_gpu_fields(97.0).items()
    if name in ('gpu', 'gpu_idle_pct')
}


@pytest.mark.parametrize(
    ('evidence', 'why'),
    [
        (make_host_bound(data_wait_s=0.05), 'it waits for data'),
        (make_host_bound(step_s=10.0), 'the step is long'),
        (make_host_bound(make_profile(), step_s=10.0), 'the step is long, profiled'),
        (make_host_bound(run=NOT_ALIKE), 'no groups are alike'),
        (make_host_bound(run=ON), 'it is on'),
        (make_host_bound(run=make_gpu_run(**CARD), **ON_CARD), 'the card is full'),
        (make_host_bound(intervals=1, iterations=10), 'too short'),
    ],
    ids=lambda value: value if isinstance(value, str) else '',
)
def test_a_run_that_host_overhead_does_not_bind_has_no_finding_on_it(evidence, why):
    found = find(evidence)
    assert 'MG601' not in found, why


def on_card(bound: str, uncovered_s: float) -> RunEvidence:
    """Returns a GPU run whose profiled step has some seconds without a kernel."""
    profile = make_profile(
        device='NVIDIA H100 80GB HBM3', bound=bound, uncovered_s=uncovered_s
    )
    return make_host_bound(profile, run=make_gpu_run(**CARD))


def test_on_a_card_no_more_is_gained_than_it_waits_for_the_host():
    cost = Run(on_card('launches', 0.012)).host_costs['param_groups']
    assert (cost.saved_s, cost.is_covered) == (0.012, False)
    assert 'MG601' in find(on_card('launches', 0.012))
    # kernels run all the time
    assert 'MG601' not in find(on_card('kernels', 0.012))


def test_an_average_taken_rarely_costs_less():
    rare = AveragedModel(kind='ExponentialMovingAverage', tensors=400, interval=10)
    swa = AveragedModel(kind='StochasticWeightAverage', tensors=400, interval=1)
    for averages, most_s in (((rare,), 0.0014), ((rare, swa), 0.0014), ((swa,), None)):
        run = make_overhead_run(overhead=replace(COUNTED, averages=averages))
        cost = Run(make_host_bound(run=run)).host_costs.get('ema')
        assert (cost and cost.saved_s) == (most_s and pytest.approx(most_s))


def test_a_part_that_was_refused_is_not_promised():
    parts = {**HOST_PARTS, 'average': replace(HOST_PARTS['average'], optimized_s=None)}
    assert 'ema' not in Run(make_host_bound(make_profile(host_parts=parts))).host_costs


def test_long_histories_are_named_from_one_per_cent_on():
    assert 'MG604' not in find(with_histories(make_host_bound(), 0.0011))
    found = find(with_histories(make_host_bound(), 0.0033))['MG604']
    assert found.detail.startswith(
        '13 histories of scalars have 100,000 values, and each is copied for every '
        'value that is added: 3.3 ms of host CPU an iteration, of which '
        'optimize=history takes off 3.2 ms (3.2 % of 100.0 ms)'
    )


def test_where_a_thread_receives_batches_the_loop_gains_nothing():
    run = make_overhead_run()
    run = replace(run, loader=replace(run.loader, pin_memory=True))
    cost = Run(make_host_bound(make_profile(), run=run)).host_costs['small_tensors']
    assert (cost.saved_s, cost.sent_s) == (0.0, pytest.approx(0.002))


def test_scalars_that_are_read_and_tensors_that_are_filled_are_counted():
    filled = replace(COUNTED, fills_new_tensors=True)
    run = make_overhead_run(overhead=filled)
    found = find(make_host_bound(make_profile(counted=filled, fills=2443.0), run=run))
    assert 'fill each new tensor: 2443 fills in a step' in found['MG607'].detail
    assert 'MG606' not in found
    found = find(make_host_bound(read_scalars=3))
    assert found['MG606'].detail.startswith('3 scalars of each iteration are read')
    assert found['MG606'].severity == 'ok'
