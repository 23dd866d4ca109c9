from __future__ import annotations

import pytest

from benchmarks.regret_judge import (
    Trial,
    judge_recommended,
    judge_rule,
    keep_whole,
)
from mmgpu_hooks.schema import Change, Recommendation

WORKERS = Recommendation((Change('train_dataloader.num_workers', 2, 1, '', 'high'),))
MANY = Recommendation((Change('train_dataloader.num_workers', 2, 8, '', 'high'),))
NOTHING = Recommendation(reason='enough')


def trial(
    repeat: int, workers: int, job_s: float, found=NOTHING, beyond=NOTHING
) -> Trial:
    setting, size = (workers, True), workers * 2**20
    return Trial('job', repeat, setting, job_s, 0.0, size, found, beyond)


TRIALS = [
    trial(0, 1, 10.0),
    trial(0, 2, 12.0, WORKERS, MANY),
    trial(0, 8, 9.0),
    trial(1, 1, 10.0),
    trial(1, 2, 12.0),
    trial(1, 8, 11.0),
]


def test_the_best_is_chosen_by_the_other_repeat():
    # in the first 8 looks best, in the second 1
    first, second = judge_recommended(TRIALS, cores=2)
    assert first.setting == (1, True)
    assert first.lost == pytest.approx(((10 / 10 - 1) + (10 / 11 - 1)) / 2)
    assert second.setting == (2, True)


def test_beyond_the_cores_another_setting_may_be_recommended():
    first, second = judge_recommended(TRIALS, cores=2, beyond_cores=True)
    assert (first.setting, second.setting) == ((8, True), (2, True))


def test_within_the_cores_other_settings_are_no_rivals():
    outcome = judge_rule(TRIALS, 2, cores=2)[0]
    assert outcome.lost_within == pytest.approx(0.2)
    assert outcome.workers_bytes == 2 * 2**20


def test_a_rule_that_was_not_tried_is_not_judged():
    assert judge_rule(TRIALS, 4, cores=2) == []


def test_a_repeat_that_was_cut_short_is_left_out():
    assert keep_whole([*TRIALS, trial(2, 1, 10.0)]) == TRIALS
