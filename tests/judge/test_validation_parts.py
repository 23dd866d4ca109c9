"""Tests the times of validation parts, and where an unfinished one stopped."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import make_evidence
from fakes.validations import make_validation, summarise
from mmgpu_hooks.judge.standstill import Rank
from mmgpu_hooks.judge.validation_parts import find_costs, find_unfinished
from mmgpu_hooks.judge.why import judge_end
from mmgpu_hooks.schema.judged import HostNow
from mmgpu_hooks.schema.recorded import StuckRecord, ValidationProgressRecord
from mmgpu_hooks.schema.run import RunEvidence
from mmgpu_hooks.show.validation import phrase_validation, summarize_validations

PARTS_S = {'data_wait': 6.0, 'forward': 3.0, 'process': 0.05, 'metric': 11.0}
TAKEN: dict[str, Any] = {
    'parts_s': PARTS_S,
    'wall_s': sum(PARTS_S.values()),
    'metrics_s': {'VOCMetric': 3.0, 'CocoMetric': 8.0},
    'process_s': {'CocoMetric': 0.04},
}


def test_validations_add_up_by_part_and_metric():
    run = summarise(make_validation(**TAKEN), make_validation(1, **TAKEN))
    costs = find_costs(run)
    assert costs is not None
    assert (costs.count, costs.wall_s) == (2, pytest.approx(40.1))
    assert costs.parts_s == {part: 2 * spent for part, spent in PARTS_S.items()}
    assert list(costs.metrics_s) == ['CocoMetric', 'VOCMetric']
    assert costs.share('metric') == pytest.approx(0.5486, abs=1e-4)
    assert summarize_validations(costs) == (
        '2 took 20.1 s each: metric 55 % (CocoMetric, VOCMetric), data wait 30 %, '
        'forward 15 %'
    )


def test_evidence_without_parts_says_nothing_of_them():
    run = summarise(make_validation())
    assert run.validations[0].parts_s is None
    assert find_costs(run) is None
    assert phrase_validation(run.validations[0]) is None


def test_the_log_names_the_parts_that_are_worth_it():
    assert phrase_validation(make_validation(**TAKEN)) == (
        'validation took 20.1 s: metric 11.0 s (CocoMetric, VOCMetric), data wait '
        '6.0 s, forward 3.0 s'
    )


def stop_in(**fields: Any) -> RunEvidence:
    """Returns a run whose evidence ends inside a validation at iteration 160."""
    record = ValidationProgressRecord(
        iteration=160,
        elapsed_s=352.0,
        batches=5000,
        batches_in_all=5000,
        part='metric',
        metric='CocoMetric',
        call_s=24.0,
        parts_s={'metric': 24.0, 'forward': 328.0},
        metrics_s={'CocoMetric': 24.0},
    )
    evidence = replace(make_evidence(), end=None)
    progress = (replace(record, elapsed_s=30.0), replace(record, **fields))
    return replace(evidence, validation_progress=progress)


@pytest.mark.parametrize('is_alive', [True, False], ids=['stands', 'was killed'])
def test_why_names_part_and_metric(is_alive):
    ranks = [Rank(stop_in(), HostNow(is_alive=is_alive))]
    proof = judge_end([], ranks).proof[-1].text
    assert proof == (
        'validation after iteration 160: in compute_metrics of CocoMetric in '
        'validation for 24.0 s and more (352.0 s in all: forward 328.0 s, metric 24.0 '
        's (CocoMetric); batch 5000 of 5000)'
    )


def test_a_validation_that_has_just_begun_has_no_parts():
    fresh = stop_in(part='rest', metric=None, parts_s={'rest': 0.0}, elapsed_s=0.0)
    (said,) = (
        each.text
        for each in judge_end([], [Rank(fresh, HostNow(is_alive=False))]).proof
        if each.text.startswith('validation after')
    )
    assert said.endswith('(0.0 ms in all; batch 5000 of 5000)')


@pytest.mark.parametrize(
    'fields', [{'iteration': 100}, {'iteration': 159}], ids=['earlier', 'just before']
)
def test_a_validation_that_training_went_on_after_is_no_end(fields):
    assert find_unfinished(stop_in(**fields)) is None


def test_a_validation_that_ended_is_no_end():
    ended = replace(stop_in(), validations=(make_validation(iteration=160),))
    assert find_unfinished(ended) is None


@pytest.mark.parametrize(
    ('part', 'metric', 'words'),
    [
        ('process', 'CocoMetric', 'in process of CocoMetric in validation'),
        ('process', None, "in the evaluator's process in validation"),
        ('forward', None, 'in the forward pass of validation'),
        ('data_wait', None, 'waiting for data in validation'),
        ('one of tomorrow', None, 'in validation'),
    ],
)
def test_a_standstill_in_validation_is_named(part, metric, words):
    stuck = StuckRecord(
        iteration=160,
        part='validation',
        validation_part=part,
        metric=metric,
        waited_s=61.0,
    )
    evidence = replace(make_evidence(), end=None, stuck=(stuck,))
    why = judge_end([], [Rank(evidence, HostNow(is_alive=True))])
    assert why.sentence.startswith(f'Stuck for 61 s and more, {words} (iteration 161).')
