"""Tests which changes of validation's loader are proposed, kept and taken back."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import make_run
from fakes.tuning import settings
from fakes.validations import make_validation, summarise
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.recommendation import recommend_settings
from mmgpu_hooks.recommend.tuning_validation import answer_on_validation
from mmgpu_hooks.schema.recorded import (
    MemoryRecord,
    RunRecord,
    TrainingPlan,
    TunedRecord,
    ValidationRecord,
    ValInterval,
)
from mmgpu_hooks.schema.tuning import TuneAnswer, TuneQuestion
from mmgpu_hooks.show.tuning import list_tuned
from mmgpu_hooks.show.words import say

QUESTION = TuneQuestion(iterations_left=10_000, loader='validation')
PLAN = TrainingPlan(val_intervals=(ValInterval(begin=0, interval=1),), val_begin=1)
LONG = make_run(max_epochs=50, plan=PLAN)
ONE, FOUR = (settings(n, persistent_workers=True, prefetch_factor=2) for n in (1, 4))


def make(
    *validations: ValidationRecord,
    tuned: tuple[TunedRecord, ...] = (),
    memory: tuple[MemoryRecord, ...] = (),
    run: RunRecord = LONG,
) -> Run:
    evidence = summarise(*validations, run=run).evidence
    return Run(replace(evidence, tuned=tuned, memory=memory, end=None))


def change(number: int, **fields: Any) -> TunedRecord:
    """Returns a change from one worker to four before a validation."""
    given: dict[str, Any] = {
        'action': 'change',
        'reason': 'predicted',
        'old': ONE,
        'new': FOUR,
        'gain_pct': 70.0,
        'gain_low_pct': 50.0,
        'gain_high_pct': 75.0,
        **fields,
    }
    return TunedRecord(iteration=100 * (number + 1), loader='validation', **given)


def test_validation_that_waits_is_given_workers_in_one_jump():
    answer = answer_on_validation(make(make_validation()), QUESTION)
    record = answer.proposed
    assert (record.loader, record.action, record.reason) == (
        'validation',
        'change',
        'predicted',
    )
    assert (record.old.num_workers, record.new.num_workers) == (1, 4)
    assert record.iter_s == pytest.approx(0.08, rel=0.05)
    assert record.predicted_iter_s == pytest.approx(0.02, rel=0.1)
    assert 60 < record.gain_low_pct < record.gain_pct < record.gain_high_pct
    assert answer.cost_s > 0.5


def test_workers_do_not_begin_to_live_on_where_a_hook_may_need_them_anew():
    starts = (
        make_validation(n, batch_time_s=0.01, persistent=False, first_wait_s=3.0)
        for n in range(3)
    )
    run = make(*starts)
    answers = [
        answer_on_validation(run, replace(QUESTION, may_persist=may))
        for may in (True, False)
    ]
    assert answers[0].proposed.new.persistent_workers
    assert answers[1].proposed is None


LOW = MemoryRecord(
    phase='train',
    elapsed_s=10.0,
    bound='host',
    total_bytes=8 * 2**30,
    used_bytes=8 * 2**30 - 1,
    is_low=True,
)
STAYS: dict[str, tuple[tuple[ValidationRecord, ...], dict[str, Any], str]] = {
    'at hand': ((make_validation(batch_time_s=0.01),), {}, 'no other setting'),
    'few batches': (
        (make_validation(iterations=5),),
        {},
        '5 steady iterations, 20 needed',
    ),
    'nothing seen': ((ValidationRecord(iteration=1, wall_s=8.0),), {}, 'does not show'),
    'last one': ((make_validation(49),), {}, 'too short to pay'),
    'little memory': ((make_validation(),), {'memory': (LOW,)}, 'memory is short'),
}


@pytest.mark.parametrize('name', STAYS)
def test_nothing_is_changed_where_it_does_not_pay(name):
    validations, fields, said = STAYS[name]
    answer = answer_on_validation(make(*validations, **fields), QUESTION)
    assert answer.proposed is None
    assert said in answer.why


def judge(*after: ValidationRecord, run: RunRecord = LONG, **fields: Any) -> TuneAnswer:
    """Returns the judgement of a change after two validations."""
    before = make_validation(0, batch_time_s=2.0), make_validation(1, first_wait_s=0.0)
    return answer_on_validation(
        make(*before, *after, tuned=(change(2, **fields),), run=run), QUESTION
    )


def after(*seconds: float, **fields: Any) -> list[ValidationRecord]:
    return [
        make_validation(
            2 + n, **{'batch_time_s': each, 'workers': 4, 'first_wait_s': 0.0, **fields}
        )
        for n, each in enumerate(seconds)
    ]


VERDICTS: dict[str, tuple[list[ValidationRecord], dict[str, Any], str, str]] = {
    'gain': (after(0.08, 0.081, 0.08), {}, 'keep', 'gain'),
    'loss, after three': (after(0.36, 0.361, 0.362), {}, 'roll_back', 'loss'),
    'loss that is clear after one': (after(0.48), {}, 'roll_back', 'loss'),
    'the same': (after(0.32, 0.322, 0.318), {}, 'keep', 'unclear'),
    'slower, it seems': (after(0.30, 0.42, 0.43), {}, 'roll_back', 'unclear'),
    # of which 60 ms were a wait and 30 ms are; on a card the step is no matter of it
    'another step': (
        after(0.32, 0.322, 0.318, step_s=0.05),
        {'device': 'cuda'},
        'keep',
        'gain',
    ),
    'another step on the cores': (
        after(0.32, 0.322, 0.318, step_s=0.05),
        {'device': 'cpu'},
        'keep',
        'unclear',
    ),
    'others came': (
        after(0.08, 0.08, 0.08, other_cpu_s=30.0),
        {},
        'keep',
        'other_load',
    ),
}


@pytest.mark.parametrize('name', VERDICTS)
def test_a_change_is_judged_by_what_it_gave(name):
    records, given, action, reason = VERDICTS[name]
    judged = judge(*records, run=replace(LONG, **given)).judged
    assert (judged.action, judged.reason) == (action, reason)
    assert judged.loader == 'validation'
    assert judged.new == (FOUR if action == 'keep' else ONE)


def test_a_validation_with_the_loader_before_is_none_after_the_change():
    # two validations at one iteration; the change came with the second
    first, second = make_validation(2), after(0.48)[0]
    assert judge(first, second).judged.reason == 'loss'
    assert judge(first).judged is None


@pytest.mark.parametrize(
    'records', [after(), after(0.08), after(0.32, 0.32)], ids=['none', 'one', 'unclear']
)
def test_a_change_without_enough_evidence_is_not_judged_yet(records):
    answer = judge(*records)
    assert (answer.judged, answer.proposed) == (None, None)
    assert 'too few validations' in answer.why


def with_start(record: ValidationRecord) -> ValidationRecord:
    """Returns a validation whose iterations hold the wait for the first batch, too."""
    assert record.iter is not None
    total_s = record.iter.total_s + record.first_wait_s
    return replace(record, iter=replace(record.iter, total_s=total_s))


@pytest.mark.parametrize(('persistent', 'said'), [(True, None), (False, 'loss')])
def test_the_start_of_workers_that_live_on_is_no_loss(persistent, said):
    # an iteration as long as before, and 8 s more, of 16
    (record,) = after(0.32, first_wait_s=8.0, persistent=persistent)
    new = settings(4, persistent_workers=persistent, prefetch_factor=2)
    judged = judge(with_start(record), new=new).judged
    assert (judged and judged.reason) == said


def test_there_is_one_change():
    keep = replace(change(3), action='keep', reason='gain', old=FOUR)
    run = make(make_validation(), *after(0.3, 0.3), tuned=(change(2), keep), run=LONG)
    answer = answer_on_validation(run, QUESTION)
    assert (answer.judged, answer.proposed) == (None, None)


def test_the_next_run_is_recommended_what_this_one_ended_with():
    keep = replace(
        change(4),
        action='keep',
        reason='gain',
        old=FOUR,
        iter_s=0.08,
        measured_iter_s=0.02,
    )
    run = make(
        make_validation(),
        make_validation(1),
        *after(0.08, 0.08),
        tuned=(change(2), keep),
    )
    found = recommend_settings(run)
    (workers,) = (
        each for each in found.changes if each.key == 'val_dataloader.num_workers'
    )
    assert (workers.old, workers.new, workers.confidence) == (1, 4, 'high')
    said = 'an iteration of validation took 80.0 ms before it and 20.0 ms with it'
    assert said in workers.reason
    assert 'val_dataloader stays as it was tuned' in found.validation.sentence
    assert [say(text) for text in list_tuned(run.evidence)] == [
        'val_dataloader: num_workers 1 -> 4 at the validation after iteration 300: '
        'predicted 70 % less time, measured 70 %, kept'
    ]
    # the train loader was not tuned
    assert run.last_switch is None
