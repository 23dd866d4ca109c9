"""Tests the hours that changes save in a whole run, and in the rest of one."""

from __future__ import annotations

from datetime import datetime

import pytest

from fakes.replaced import replace
from fakes.runs import make_evidence, make_run
from fakes.validations import make_validation, summarise
from mmgpu_hooks.adviser.last_sign import find_job_end, find_last_sign
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.measure.clock import local_time
from mmgpu_hooks.recommend.answer import Answer
from mmgpu_hooks.recommend.hours import forecast_end, list_saved_hours
from mmgpu_hooks.schema.judged import Change, Recommendation, ValidationOutlook
from mmgpu_hooks.schema.recorded import TrainingPlan, ValInterval
from mmgpu_hooks.schema.text import Text
from mmgpu_hooks.show.recommendation import describe_hours, render_json
from mmgpu_hooks.show.terminal import render

EVERY_EPOCH = TrainingPlan(val_intervals=(ValInterval(begin=0, interval=1),))
ITER_S, VALIDATION_S = 30.0, 600.0


def change(key: str, gain_pct: float | None = None) -> Change:
    return Change(key, 2, 4, Text('It is faster.'), 'high', predicted_gain_pct=gain_pct)


FOUND = Recommendation(
    (
        change('train_dataloader.num_workers', 20.0),
        change('train_dataloader.persistent_workers', 20.0),
        change('val_dataloader.num_workers'),
    ),
    validation=ValidationOutlook(Text(''), 1, 500.0, 60.0, 5.0),
)


def train(is_over: bool) -> Run:
    """Returns a run of 12 epochs of 100 iterations at 30 s, 160 of them recorded."""
    run = summarise(
        make_validation(wall_s=VALIDATION_S),
        run=make_run(plan=EVERY_EPOCH),
        step_s=ITER_S,
        data_wait_s=0.0,
    )
    return run if is_over else Run(replace(run.evidence, end=None))


def test_a_run_that_goes_on_has_hours_left():
    run = train(is_over=False)
    ending = forecast_end(run)
    assert ending is not None
    left_s = (1200 - 160) * ITER_S
    assert ending.training_hours == pytest.approx(left_s / 3600)
    assert ending.validation_hours == pytest.approx(11 * VALIDATION_S / 3600)
    loader, validation = list_saved_hours(run, FOUND, ending)
    assert loader.keys == (
        'train_dataloader.num_workers',
        'train_dataloader.persistent_workers',
    )
    assert loader.whole == pytest.approx(0.2 * 1200 * ITER_S / 3600)
    assert loader.rest == pytest.approx(0.2 * left_s / 3600)
    assert validation.keys == ('val_dataloader.num_workers',)
    assert validation.whole == pytest.approx(12 * 60 / 3600)
    assert validation.rest == pytest.approx(11 * 60 / 3600)


def test_a_run_that_is_over_has_none_left():
    run = train(is_over=True)
    assert forecast_end(run) is None
    loader, validation = list_saved_hours(run, FOUND, None)
    assert loader.whole == pytest.approx(0.2 * 160 * ITER_S / 3600)
    assert (loader.rest, validation.rest) == (None, None)


@pytest.mark.parametrize(
    ('last_sign', 'words'),
    [
        (datetime(2026, 11, 27, 22, 0), 'ends tomorrow'),
        (None, '10.5 h were left ('),
    ],
    ids=['goes on', 'was killed'],
)
def test_the_answer_says_the_end_and_the_saved_hours(last_sign, words):
    run = train(is_over=False)
    ending = forecast_end(run)
    saved = list_saved_hours(run, FOUND, ending)
    answer = Answer(
        'run.jsonl',
        diagnose_run(run),
        FOUND,
        run,
        ending=ending,
        last_sign=last_sign,
        saved_hours=saved,
    )
    said = ' '.join(render(describe_hours(answer)).split())
    assert words in said
    assert 'num_workers, persistent_workers: 2.0 h off a whole run, 1.7 h off' in said
    assert '"saved_hours"' in render_json(answer)


def test_the_limit_of_its_job_stands_beside_the_end():
    run = train(is_over=False)
    ending = forecast_end(run)
    assert ending is not None
    now = local_time()
    passed_s = 3600 * (ending.whole_hours - ending.hours_left)
    started = replace(
        run.meta,
        started_unix_s=now.timestamp() - passed_s,
        # two epochs of 50 minutes, and a validation of 10
        slurm_end_unix_s=now.timestamp() + 2 * 3000 + 700,
    )
    run = Run(replace(run.evidence, run=started))
    end, last_sign = find_job_end(run, ending), find_last_sign(run, ending)
    assert end is not None and last_sign is not None
    assert end.limit.missing == 9
    answer = Answer(
        'run.jsonl',
        diagnose_run(run),
        FOUND,
        run,
        ending=ending,
        last_sign=last_sign,
        job_end=end,
    )
    said = ' '.join(render(describe_hours(answer)).split())
    assert 'SLURM ends this job' in said and '9 of 12 epochs will be missing' in said
    late = replace(started, slurm_end_unix_s=now.timestamp() + 86_400)
    assert find_job_end(Run(replace(run.evidence, run=late)), ending) is None
    silent = replace(started, started_unix_s=started.started_unix_s - 7200)
    assert find_last_sign(Run(replace(run.evidence, run=silent)), ending) is None


def test_minutes_are_not_worth_a_line():
    run = Run(make_evidence())
    saved = list_saved_hours(run, replace(FOUND, validation=None), None)
    answer = Answer('run.jsonl', diagnose_run(run), FOUND, run, saved_hours=saved)
    assert describe_hours(answer) == []
