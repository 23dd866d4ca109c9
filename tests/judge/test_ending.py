"""Tests the forecast of a training's end by the records so far."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from fakes.runs import make_interval, make_loader, make_run
from fakes.validations import make_validation
from mmgpu_hooks.judge.ending import EndForecaster
from mmgpu_hooks.schema.judged import JobLimit, TrainingEnd
from mmgpu_hooks.schema.recorded import (
    IntervalRecord,
    SaveRecord,
    TrainingPlan,
    ValInterval,
)
from mmgpu_hooks.show.ending import (
    format_moment,
    phrase_ending,
    phrase_limit,
)

EVERY_EPOCH = TrainingPlan(
    val_intervals=(ValInterval(begin=0, interval=1),),
    save_interval=1,
    saves_last=True,
)
ITER_S = 0.3
"""Seconds per iteration in the synthetic log intervals."""


def run_of(**fields: Any) -> Any:
    """Returns the run record of twelve epochs of 100 iterations."""
    return make_run(**{'plan': EVERY_EPOCH, 'max_epochs': 12, **fields})


def feed(intervals: int = 5, **fields: Any) -> EndForecaster:
    """Returns a forecaster that was given a number of intervals of 20 iterations."""
    forecaster = EndForecaster(run_of(**fields))
    for index in range(intervals):
        forecaster.add_interval(make_interval(index))
    return forecaster


def hours(seconds: float) -> Any:
    return pytest.approx(seconds / 3600)


def test_iterations_validations_and_saves_add_up():
    forecaster = feed()
    forecaster.add_save(SaveRecord(iteration=100, wall_s=2.0, name='epoch_1.pth'))
    forecaster.add_save(SaveRecord(iteration=100, wall_s=9.0, name='best_mAP.pth'))
    parts_s = {'metric': 7.0, 'forward': 3.0}
    forecaster.add_validation(
        make_validation(iteration=100, wall_s=10.0, parts_s=parts_s)
    )
    ending = forecaster.forecast()
    assert ending is not None
    assert ending.training_hours == hours(1100 * ITER_S)
    assert ending.validation_hours == hours(11 * 10.0)
    assert ending.metric_hours == hours(11 * 7.0)
    assert ending.save_hours == hours(11 * 2.0)
    assert ending.hours_left == hours(1100 * ITER_S + 110 + 22)
    assert ending.whole_hours == hours(1200 * ITER_S + 110 + 22)
    assert ending.hours_left_low < ending.hours_left < ending.hours_left_high


def test_what_was_not_seen_yet_is_unknown():
    ending = feed().forecast()
    assert ending is not None
    assert (ending.validation_hours, ending.save_hours) == (None, None)
    nothing = feed(plan=TrainingPlan()).forecast()
    assert nothing is not None
    assert (nothing.validation_hours, nothing.save_hours) == (0.0, 0.0)


def test_a_loop_of_its_own_validates_as_often_as_until_now():
    forecaster = feed(plan=None)
    forecaster.add_validation(make_validation(iteration=50, wall_s=10.0))
    forecaster.add_validation(make_validation(iteration=100, wall_s=10.0))
    ending = forecaster.forecast()
    assert ending is not None
    assert ending.validation_hours == hours(22 * 10.0)


@pytest.mark.parametrize(
    'fields',
    [{'loop': 'EndlessLoop'}, {'loader': make_loader(batches_per_epoch=None)}],
    ids=['another loop', 'no length'],
)
def test_without_a_length_there_is_no_end(fields):
    assert feed(**fields).forecast() is None


def test_too_few_iterations_and_a_training_that_is_over_have_no_end():
    assert feed(1).forecast() is None
    assert feed(60).forecast() is None


def drifting(change: Any, tenth: int = 120) -> float:
    """Returns the ratio of predicted to true time left, a tenth into a drifting run."""
    run = run_of(loader=make_loader(batches_per_epoch=24_000), max_epochs=1, plan=None)
    forecaster, true_s = EndForecaster(run), 0.0
    for index in range(1200):
        each_s = change(index / 1200) * (1 + 0.02 * ((index * 7) % 5 - 2))
        interval: IntervalRecord = make_interval(index, data_wait_s=0.0, step_s=each_s)
        if index < tenth:
            forecaster.add_interval(interval)
        else:
            true_s += interval.duration_s
    ending = forecaster.forecast()
    assert ending is not None
    return 3600 * ending.hours_left / true_s


@pytest.mark.parametrize(
    'change',
    [
        pytest.param(lambda done: 0.3, id='even'),
        pytest.param(lambda done: 0.2 if done < 0.04 else 0.3, id='slower since'),
        pytest.param(lambda done: 0.3 if done < 0.04 else 0.2, id='faster since'),
        pytest.param(lambda done: 0.3 * (1 + done), id='grows along a line'),
        pytest.param(lambda done: 0.3 * (1 + 4 * done), id='grows fast'),
    ],
)
def test_a_rate_that_changes_is_followed(change):
    assert drifting(change) == pytest.approx(1.0, abs=0.04)


def test_starts_of_epochs_are_counted():
    run = run_of(plan=TrainingPlan())
    forecaster = EndForecaster(run)
    for index in range(12):
        starts = index % 5 == 0
        more: dict[str, Any] = {
            'first_waits': int(starts),
            'first_wait_s': 4.1 * starts,
        }
        forecaster.add_interval(make_interval(index, **more))
    ending = forecaster.forecast()
    assert ending is not None
    # the intervals' ledger has 4.0 s of start-up beyond a wait
    iterations = 1200 - 240
    assert ending.training_hours == hours(iterations * ITER_S + 9 * 4.0)


@pytest.mark.parametrize(
    ('left_s', 'limit'),
    [
        (10_000.0, None),
        (0.0, JobLimit('epoch', 12, 11, None)),
        # an epoch takes 30 s, a save 2 and a validation 10
        (31.0, JobLimit('epoch', 12, 10, None)),
        (33.0, JobLimit('epoch', 12, 10, 2)),
        (42.0 * 8 + 33.0, JobLimit('epoch', 12, 2, 10)),
    ],
)
def test_a_limit_leaves_epochs_undone(left_s, limit):
    forecaster = feed()
    forecaster.add_save(SaveRecord(iteration=100, wall_s=2.0, name='epoch_1.pth'))
    forecaster.add_validation(make_validation(iteration=100, wall_s=10.0))
    assert forecaster.find_limit(left_s) == limit


def test_a_limit_is_said_in_iterations_where_these_are_counted():
    plan = TrainingPlan(save_interval=50, saves_by_epoch=False)
    forecaster = feed(loop='iter', max_epochs=None, max_iters=1200, plan=plan)
    forecaster.add_save(SaveRecord(iteration=50, wall_s=0.0, name='iter_50.pth'))
    limit = forecaster.find_limit(120 * ITER_S)
    assert limit == JobLimit('iteration', 1200, 1200 - 220, 200)


NOW = datetime(2026, 11, 27, 22, 0)
"""Friday evening, as the time of the forecast."""


@pytest.mark.parametrize(
    ('moment', 'words'),
    [
        (datetime(2026, 11, 27, 23, 5), '23:05'),
        (datetime(2026, 11, 28, 14, 20), 'tomorrow 14:20'),
        (datetime(2026, 11, 30, 14, 20), 'Mon 14:20'),
        (datetime(2026, 12, 4, 14, 20), '4 Dec 14:20'),
    ],
)
def test_a_moment_has_the_day_that_it_needs(moment, words):
    assert format_moment(moment, NOW) == words


def test_the_end_is_said_with_its_parts():
    ending = TrainingEnd(
        hours_left=16.34,
        hours_left_low=15.67,
        hours_left_high=17.17,
        training_hours=9.1,
        validation_hours=3.0,
        metric_hours=2.2,
        save_hours=0.2,
        whole_hours=20.0,
    )
    assert phrase_ending(ending, NOW) == (
        'ends tomorrow 14:20 (13:40 to 15:10): training 9.1 h, validation 3.0 h '
        '(metric 2.2 h), saves 12 min'
    )


def test_a_limit_is_said_with_what_is_saved():
    end = datetime(2026, 11, 28, 8, 0)
    assert phrase_limit(JobLimit('epoch', 12, 3, 9), end, NOW) == (
        'SLURM ends this job tomorrow 08:00: 3 of 12 epochs will be missing; epoch '
        '9 is the last that is saved'
    )
