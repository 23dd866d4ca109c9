"""Tests the findings on parts of validations, and the hours that a remedy saves."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import make_run
from fakes.validations import make_validation, summarise
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.validation_findings import FAST_METRIC_GAIN
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.recommend.advice import advise
from mmgpu_hooks.recommend.hours import FAST_METRIC_KEY, list_saved_hours
from mmgpu_hooks.schema.judged import Finding, Recommendation
from mmgpu_hooks.schema.recorded import TrainingPlan, ValInterval

PLAN = TrainingPlan(val_intervals=(ValInterval(begin=0, interval=1),))
"""Schedule with a validation after each of twelve epochs."""


def validate(
    metrics_s: dict[str, float] | None = None,
    run: dict[str, Any] | None = None,
    **parts_s: float,
) -> Run:
    """Returns a run with one validation of the given parts in seconds."""
    record = make_validation(
        parts_s=parts_s,
        metrics_s=metrics_s,
        process_s={'CocoMetric': parts_s.get('process', 0.0)},
        wall_s=sum(parts_s.values()),
    )
    return summarise(record, run=make_run(**{'plan': PLAN, **(run or {})}))


def find(run: Run, code: str) -> Finding | None:
    return next((f for f in diagnose_run(run).findings if f.code == code), None)


@pytest.mark.parametrize(
    ('code', 'part', 'words'),
    [
        ('MG501', 'metric', 'compute_metrics of CocoMetric took 30.0 s of the 40.0 s'),
        ('MG502', 'process', 'process of CocoMetric took 30.0 s of the 40.0 s'),
        ('MG503', 'data_wait', 'val_dataloader (num_workers=1) took 30.0 s of'),
        ('MG504', 'forward', 'val_step took 30.0 s of the 40.0 s of a validation'),
    ],
)
def test_the_part_that_takes_most_is_found(code, part, words):
    parts: dict[str, Any] = {part: 30.0, 'rest': 10.0}
    run = validate({'CocoMetric': 30.0}, **parts)
    finding = find(run, code)
    assert finding is not None and finding.severity == 'notice'
    assert words in finding.detail
    assert '(75 %, 360.0 s of a whole run)' in finding.detail
    # 48 s of training beside it
    assert finding.share == pytest.approx(30 / 88)
    others = {'MG501', 'MG502', 'MG503', 'MG504'} - {code}
    assert [found for other in others if (found := find(run, other))] == []


def test_a_part_of_a_twentieth_is_worth_a_word():
    for spent_s, is_found in ((2.3, False), (2.7, True)):
        run = validate({'VOCMetric': spent_s}, metric=spent_s)
        assert (find(run, 'MG501') is not None) is is_found


def test_the_metric_ends_in_the_key_and_the_hours_it_gives_back():
    run = validate({'CocoMetric': 900.0, 'VOCMetric': 100.0}, metric=1000.0)
    finding = find(run, 'MG501')
    hours = FAST_METRIC_GAIN * 900 * 12 / 3600
    assert finding is not None
    assert f'FastCocoMetric would save {hours:.1f} h of it' in finding.detail
    key = 'val_evaluator.type=mmgpu_hooks.FastCocoMetric'
    assert f'mmgpu set CONFIG {key}' in finding.detail
    assert key in next(advise(run))
    (saved,) = list_saved_hours(run, Recommendation(), None)
    assert saved.keys == (FAST_METRIC_KEY,)
    assert saved.whole == pytest.approx(hours)


def test_in_a_list_of_evaluators_the_line_is_said():
    metrics_s = {'CocoMetric': 900.0, 'VOCMetric': 100.0}
    run = validate(metrics_s, {'fast_metric': 'list'}, metric=1000.0)
    finding = find(run, 'MG501')
    by_hand = "write type='mmgpu_hooks.FastCocoMetric' into its CocoMetric by hand"
    assert finding is not None
    for said in (finding.detail, next(advise(run))):
        assert by_hand in said
        assert 'mmgpu set' not in said
    assert len(list_saved_hours(run, Recommendation(), None)) == 1


def test_a_slow_metric_beside_it_is_not_put_down_to_it():
    metrics_s = {'CocoMetric': 20.0, 'VOCMetric': 980.0}
    run = validate(metrics_s, {'fast_metric': 'list'}, metric=1000.0)
    assert [said for said in advise(run) if 'FastCocoMetric' in said] == []


def test_where_it_cannot_help_it_is_not_offered():
    run = validate({'CocoMetric': 1000.0}, {'fast_metric': 'no'}, metric=1000.0)
    finding = find(run, 'MG501')
    assert finding is not None and 'FastCocoMetric' not in finding.detail
    assert [said for said in advise(run) if 'FastCocoMetric' in said] == []
    assert list_saved_hours(run, Recommendation(), None) == ()


@pytest.mark.parametrize('metric', ['VOCMetric', 'FastCocoMetric'])
def test_of_another_metric_no_key_is_offered(metric):
    run = validate({metric: 1000.0}, metric=1000.0)
    finding = find(run, 'MG501')
    assert finding is not None and 'FastCocoMetric would' not in finding.detail
    assert list_saved_hours(run, Recommendation(), None) == ()


def test_on_a_card_the_wait_for_the_forward_pass_may_be_in_process():
    run = validate(process=30.0, run={'device': 'cuda'})
    finding = find(run, 'MG502')
    assert finding is not None
    assert finding.detail.endswith(
        'The wait for the forward pass on the card is in it.'
    )


def test_an_interval_is_named_at_which_validations_are_a_tenth():
    # an epoch takes 30 s: 90 s of validation ask for 27 epochs, of which there are 12
    finding = find(validate(forward=90.0), 'MG505')
    assert finding is not None
    assert finding.detail == (
        'A validation of 90.0 s follows each epoch, 30.0 s of training. '
        'train_cfg.val_interval=12 would save 16.5 min of a whole run.'
    )
    shorter = find(validate(forward=20.0), 'MG505')
    assert shorter is not None
    # at 6 of 12 epochs there are 2 in the place of 12
    assert 'val_interval=6 would save 200.0 s of a whole run' in shorter.detail


@pytest.mark.parametrize(
    'plan',
    [
        None,
        TrainingPlan(val_intervals=(ValInterval(begin=0, interval=12),)),
        TrainingPlan(
            val_intervals=(
                ValInterval(begin=0, interval=5),
                ValInterval(begin=10, interval=1),
            )
        ),
    ],
    ids=['unknown', 'seldom already', 'changes while it trains'],
)
def test_where_the_interval_is_no_choice_none_is_named(plan):
    assert find(validate(forward=90.0, run={'plan': plan}), 'MG505') is None


def test_evidence_without_parts_has_none_of_these_findings():
    run = validate(forward=90.0)
    record = replace(run.validations[0], parts_s=None)
    plain = Run(replace(run.evidence, validations=(record,)))
    codes = {finding.code for finding in diagnose_run(plain).findings}
    assert not [code for code in codes if code.startswith('MG5')]
    assert 'MG302' in codes
