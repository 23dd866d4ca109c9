from __future__ import annotations

from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import GIB, make_run
from fakes.validations import make_validation, summarise
from mmgpu_hooks.judge.validation import find_loops
from mmgpu_hooks.recommend.recommendation import recommend_settings
from mmgpu_hooks.recommend.validation import advise_validation
from mmgpu_hooks.schema.judged import Recommendation
from mmgpu_hooks.schema.recorded import ValidationRecord


def advise(*validations: ValidationRecord, **fields: Any) -> Recommendation:
    return advise_validation(summarise(*validations, **fields))


def changed(advice: Recommendation) -> dict[str, Any]:
    return {change.key: change.new for change in advice.changes}


def test_workers_as_few_as_keep_up_with_validation():
    # 80 ms of loading, 20 ms of step: 4 workers are within 2 % of any more
    advice = advise(make_validation(), make_validation(1))
    assert changed(advice) == {'val_dataloader.num_workers': 4}
    outlook = advice.validation
    assert outlook.validations == 2
    assert 'took 19.1 s each, 16.1 s of it in the loop' in outlook.sentence
    # (199 x 60 + 200 + 200 x 20) ms, of which the steps and the start remain
    assert outlook.loop_s == pytest.approx(16.14)
    assert outlook.gain_s == pytest.approx(11.9, rel=0.05)
    # 8 intervals of 6 s, and two validations of 19.14 s
    assert outlook.run_gain_pct == pytest.approx(200 * outlook.gain_s / 86.28)


def test_what_suits_training_is_not_copied_and_training_is_left_as_it_is():
    # training with 2 workers keeps up; validation with 1 does not
    summary = summarise(
        make_validation(), make_validation(1), data_wait_s=0.001, step_s=0.299
    )
    found = recommend_settings(summary)
    assert [change.key for change in found.changes] == ['val_dataloader.num_workers']
    assert found.reason is None
    assert found.validation is not None


def test_workers_that_start_for_each_validation_are_kept_where_that_costs():
    starts = [
        make_validation(number, batch_time_s=0.01, persistent=False, first_wait_s=2.0)
        for number in range(3)
    ]
    advice = advise(*starts)
    assert changed(advice) == {'val_dataloader.persistent_workers': True}
    assert 'in 3 starts' in advice.changes[0].reason


@pytest.mark.parametrize(('iterations', 'validations'), [(10, 1), (10, 2), (2, 5)])
def test_short_evidence_says_so(iterations, validations):
    advice = advise(
        *(make_validation(n, iterations=iterations) for n in range(validations))
    )
    assert advice.changes == ()
    sentence = advice.validation.sentence
    assert 'val_dataloader stays as it is. Not enough evidence: ' in sentence
    assert advice.validation.gain_s is None


def test_a_loop_that_shows_no_iterations_is_left_alone():
    unseen = ValidationRecord(iteration=100, wall_s=8.0)
    advice = advise(unseen)
    assert advice.changes == ()
    assert (advice.validation.validations, advice.validation.loop_s) == (1, None)


def test_workers_that_training_will_have_leave_less_memory_too():
    # training waits as long as it computes, without workers
    none = replace(
        make_run().loader, num_workers=0, persistent_workers=False, prefetch_factor=None
    )
    host = replace(make_run().host, ram_available_bytes=4 * GIB)
    summary = summarise(
        make_validation(),
        make_validation(1),
        run=make_run(loader=none, host=host),
        data_wait_s=0.3,
        data_wait_cpu_s=6.0,
        process_cpu_s=10.0,
    )
    found = recommend_settings(summary)
    new = {change.key: change.new for change in found.changes}
    # each takes 1 GiB at most: half of 4, and half of the 2 that are left
    assert new['train_dataloader.num_workers'] == 2
    assert new['train_dataloader.persistent_workers'] is True
    assert 'val_dataloader.num_workers' not in new
    assert advise_validation(summary).changes[0].new == 2


@pytest.mark.parametrize(
    'edited',
    [
        {'step': None},
        {'wall_s': 0.0},
        {'wall_s': -1.0},
        {'wall_s': 0.0, 'train_workers_cpu_s': 1.0},
        {'first_waits': 10**9},
    ],
)
def test_validations_that_cannot_have_been_are_not_judged_by(edited):
    none = advise(*(make_validation(number, **edited) for number in range(2)))
    assert none.changes == ()
    assert none.validation.loop_s is None
    # and take nothing from the others
    some = advise(make_validation(), make_validation(1, **edited), make_validation(2))
    assert some.validation.loop_s == pytest.approx(16.14)
    assert changed(some) == {'val_dataloader.num_workers': 4}


def test_what_the_training_took_to_be_built_is_no_part_of_a_validation():
    built = advise(make_validation(), make_validation(1), run=make_run(build_s=60.0))
    assert built.validation.loop_s == pytest.approx(16.14)


def test_what_validations_do_not_record_is_unknown_and_not_that_of_training():
    training = summarise(make_validation(), make_validation(1))
    loops = find_loops(training)
    assert loops is not None
    assert (loops.figures.process_cpu_cores, loops.figures.gpu) == (None, None)
    assert (loops.figures.saves, loops.save_records, loops.intervals) == (0, (), ())
    assert loops.figures.ledger_s.keys() == {'data_wait', 'step', 'startup'}
    # a worker that takes 80 ms beside a step of 20 ms; the first wait is a start
    parts = loops.figures.per_iteration
    assert (parts.data_wait_s, parts.step_s) == pytest.approx((0.06, 0.02))
    assert loops.since(1).figures.iterations == 200


def test_other_load_is_that_of_the_validations_not_of_training():
    busy = make_validation(other_cpu_s=2.0 * make_validation().wall_s)
    found = find_loops(summarise(busy, busy))
    assert found is not None
    assert found.figures.external_cpu_cores == pytest.approx(2.0)
