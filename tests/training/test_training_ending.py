"""Tests the forecast of a real training's end in its log and scalars."""

from __future__ import annotations

import math
import re
import time
from typing import Any

import pytest

from mmgpu_hooks.hooks import end_source
from mmgpu_hooks.schema.recorded import TrainingPlan, ValInterval
from training.toy import HOOK, build_runner, evidence_of, log_of, scalar_lines, train

ENDS = r'GPUEfficiencyHook: ends (\d\d:\d\d|tomorrow \d\d:\d\d) \(.*\): training .*'


def options(**more: Any) -> dict[str, Any]:
    """Returns options of a training: four epochs of 40 iterations, with validation."""
    return {
        'iterations': 40,
        'epochs': 4,
        'step_s': 0.002,
        'evaluation_s': 0.05,
        'checkpoint': {'interval': 2},
        **more,
    }


def test_the_end_is_said_after_each_validation_but_the_last(tmp_path):
    runner = train(build_runner(tmp_path, **options()))
    found = re.findall(ENDS, log_of(runner))
    assert len(found) == 3
    assert 'validation 0 s' in log_of(runner)


def test_without_validations_the_end_is_said_in_a_period(tmp_path, monkeypatch):
    monkeypatch.setattr(end_source, 'PERIOD_S', 0.1)
    runner = train(build_runner(tmp_path, **options(evaluation_s=None)))
    assert len(re.findall(ENDS, log_of(runner))) >= 2


@pytest.mark.parametrize(
    ('left_s', 'words'),
    [
        (0.05, r'SLURM ends this job at \d\d:\d\d: 3 of 4 epochs will be missing'),
        (86_400.0, None),
        # a year from now: no limit
        (365 * 86_400.0, None),
    ],
)
def test_the_limit_of_a_job_is_said_beside_it(tmp_path, monkeypatch, left_s, words):
    # whole seconds, as SLURM has it, and no later than planted
    monkeypatch.setenv('SLURM_JOB_END_TIME', f'{math.floor(time.time() + left_s)}')
    runner = train(build_runner(tmp_path, **options(epochs=4)))
    assert bool(words and re.search(words, log_of(runner))) is bool(words)
    assert ('SLURM ends' in log_of(runner)) is bool(words)


@pytest.mark.parametrize(('scalars', 'is_there'), [('all', True), ('main', False)])
def test_hours_left_fall(tmp_path, monkeypatch, scalars, is_there):
    monkeypatch.setattr(end_source, 'SCALAR_S', 0.0)
    hook = {**HOOK, 'scalars': scalars, 'summary': False}
    train(build_runner(tmp_path, **options(hook=hook, step_s=0.01)))
    found = [
        line['hours_left'] for line in scalar_lines(tmp_path) if 'hours_left' in line
    ]
    if not is_there:
        assert found == []
        return
    assert len(found) > 20
    assert found[-1] < 0.3 * found[0]


def test_hours_left_are_there_as_soon_as_they_are_known(tmp_path):
    hook = {**HOOK, 'scalars': 'all', 'summary': False}
    train(build_runner(tmp_path, **options(hook=hook, step_s=0.01)))
    lines = ['hours_left' in line for line in scalar_lines(tmp_path)]
    assert not lines[0]
    assert any(lines)


@pytest.mark.parametrize(
    ('more', 'plan'),
    [
        (
            {'val_interval': 2},
            TrainingPlan(
                val_intervals=(ValInterval(begin=0, interval=2),),
                save_interval=2,
                saves_last=True,
            ),
        ),
        (
            {'evaluation_s': None, 'checkpoint': {'interval': -1, 'save_last': False}},
            TrainingPlan(),
        ),
        (
            {
                'loop': 'iter',
                'val_interval': 10,
                'checkpoint': {'interval': 20, 'by_epoch': False, 'save_begin': 5},
            },
            TrainingPlan(
                val_intervals=(ValInterval(begin=0, interval=10),),
                save_interval=20,
                saves_by_epoch=False,
                save_begin=5,
                saves_last=True,
            ),
        ),
    ],
    ids=['epochs', 'nothing', 'iterations'],
)
def test_the_plan_is_recorded(tmp_path, more, plan):
    train(build_runner(tmp_path, **options(**more)))
    assert evidence_of(tmp_path).run.plan == plan


@pytest.mark.parametrize('method', ['add_interval', 'add_validation'])
def test_a_forecast_that_fails_harms_nothing(tmp_path, monkeypatch, method):
    def fail(*_: Any) -> None:
        raise ValueError('planted')

    monkeypatch.setattr(end_source.EndForecaster, method, fail)
    runner = train(build_runner(tmp_path, **options()))
    evidence = evidence_of(tmp_path)
    assert evidence.end is not None and evidence.end.status == 'completed'
    assert len(evidence.validations) == 4
    assert [off.source for off in evidence.sources_off] == [end_source.END_SOURCE]
    assert log_of(runner).count('end of training is switched off') == 1
