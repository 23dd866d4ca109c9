from __future__ import annotations

import pytest

from benchmarks.regret_judge import (
    Trial,
    judge_recommended,
    judge_rule,
    keep_whole,
)
from mmgpu_hooks.schema import Change, Recommendation

FEWER = Recommendation((Change('train_dataloader.num_workers', 2, 1, '', 'high'),))
NOTHING = Recommendation(reason='enough')


def trial(repeat: int, workers: int, job_s: float, found=NOTHING) -> Trial:
    setting, size = (workers, True), workers * 2**20
    return Trial('job', repeat, setting, job_s, 0.0, size, found)


TRIALS = [
    trial(0, 1, 10.0),
    trial(0, 2, 12.0, FEWER),
    trial(0, 8, 9.0),
    trial(1, 1, 9.9),
    trial(1, 2, 11.0),
    trial(1, 8, 9.5),
]


def test_each_recommendation_is_judged_against_the_fastest_of_all():
    first, second = judge_recommended(TRIALS)
    assert (first.setting, second.setting) == ((1, True), (2, True))
    assert first.lost == pytest.approx(9.9 / 9.0 - 1)
    assert second.lost == pytest.approx(11.0 / 9.0 - 1)


def test_a_loss_within_what_two_trainings_differ_by_is_none():
    apart = [*TRIALS[:-1], trial(1, 8, 9.9)]
    assert [one.lost > 0 for one in judge_recommended(apart)] == [False, True]


def test_a_rule_is_judged_as_a_recommendation_is():
    outcome = judge_rule(TRIALS, 2)[0]
    assert outcome.lost == pytest.approx(11.0 / 9.0 - 1)
    assert outcome.workers_bytes == 2 * 2**20


def test_a_rule_that_was_not_tried_is_not_judged():
    assert judge_rule(TRIALS, 4) == []


def test_a_repeat_that_was_cut_short_is_left_out():
    assert keep_whole([*TRIALS, trial(2, 1, 10.0)]) == TRIALS
