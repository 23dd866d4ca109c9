"""Tests the benchmarks' own arithmetic on synthetic measurements."""

from __future__ import annotations

import dataclasses
import functools
import json
import random
from argparse import ArgumentTypeError
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks import overhead, regret, whole
from benchmarks.overhead import Account, Costs, Growth, Pairs, Spent
from benchmarks.predict import Case
from benchmarks.rewrite import differing, flatten, is_kept, is_variable
from benchmarks.rewrite_projects import list_reasons, parse_projects
from fakes.clock import HandClock
from mmgpu_hooks.schema.judged import Prediction


def test_an_account_is_what_lies_between_its_borders(monkeypatch):
    clock, account = HandClock(), Account()
    monkeypatch.setattr(overhead.time, 'perf_counter', clock)
    inner = account.beneath(functools.partial(clock.turn, 3.0))

    def call() -> None:
        clock.turn(0.5)
        inner()
        clock.turn(0.25)

    account.above(call)()
    assert account.spent_s == pytest.approx(0.75)


def test_costs_are_net_of_the_borders():
    with_it = Spent([50e-6] * 9 + [150e-6], [1e-3] * 3)
    cost = overhead.net_cost(with_it, Spent([40e-6] * 10, [60e-6] * 3))
    assert cost.iteration_s == pytest.approx(20e-6)
    # (1000 - 50) - (60 - 40) us
    assert cost.interval_s == pytest.approx(930e-6)
    verdicts = {
        peer_us: [
            figure.verdict
            for figure in overhead.judge_cost(cost, overhead.Cost(peer_us / 1e6, 0, ''))
        ]
        for peer_us in (299, 310)
    }
    assert verdicts[299] == ['', 'missed', '', 'missed']
    assert verdicts[310] == ['', 'met', '', 'met']
    assert overhead.judge_cost(cost, 'not installed')[1].verdict == 'missed'


def test_ends_of_intervals_are_parted_from_the_others():
    spent = overhead.split_ends([float(number) for number in range(1, 201)])
    assert spent.ends == [100.0, 150.0, 200.0]
    assert len(spent.ordinary) == 196


def test_an_interval_of_a_mean_is_students():
    effect = overhead.mean_effect([1.0, 2.0, 3.0])
    # t(0.95, 2) = 2.920
    assert effect == pytest.approx((2.0, 2.920 / 3**0.5), rel=1e-3)


@pytest.mark.parametrize(
    ('hooks_ms', 'rest_ms', 'threads', 'verdict'),
    [
        (0, 0, 0, 'met'),
        (0.2, 0, 0, 'missed'),
        (0, 0.2, 0, 'missed'),
        (0, 0, 0.005, 'missed'),
    ],
)
def test_what_is_added_is_found_wherever_it_is(hooks_ms, rest_ms, threads, verdict):
    lots = random.Random(0)
    # one round in twenty is hit hard, with the hook or without
    tails = [lots.choice((-1, 1)) * 20 * (lots.random() < 0.05) for _ in range(800)]
    pairs = Pairs(
        [(hooks_ms + lots.gauss(0, 0.1)) / 1000 for _ in tails],
        [(rest_ms + lots.gauss(0, 0.8) + tail) / 1000 for tail in tails],
        [0.028] * len(tails),
        [threads],
    )
    whole = overhead.judge_pairs(pairs)[0]
    planted = 100 * (hooks_ms + rest_ms) / 28 + 100 * threads
    assert whole.value == pytest.approx(planted, abs=0.15)
    assert whole.verdict == verdict


@pytest.mark.parametrize(('grows', 'verdict'), [(0.0, 'met'), (0.2, 'missed')])
def test_growth_is_found(grows, verdict):
    lots, count = random.Random(1), 400

    def draw(usual_s: float) -> list[float]:
        tails = [5 * (lots.random() < 0.02) for _ in range(count)]
        return [usual_s + lots.gauss(0, 0.05) + tail for tail in tails]

    def take_turns(aged_s: float) -> Costs:
        # where its memory lies, the aged one is a tenth slower from the first on
        return Costs(draw(6.1 + aged_s), draw(6), draw(5), draw(1.1 + aged_s), draw(1))

    kept = [1000 + int(grows * 5000) * i for i in range(10)]
    growth = Growth(take_turns(0.0), take_turns(grows), [2**20] * 10, kept, 400)
    figures = overhead.judge_growth(growth)
    assert [figure.verdict for figure in figures] == [verdict, verdict, 'met', verdict]
    assert figures[0].value == pytest.approx(1 + grows, abs=0.02)


@pytest.mark.parametrize(
    ('predicted_s', 'error_pct', 'is_covered'), [(0.11, 10, True), (0.2, 100, False)]
)
def test_a_case_is_judged_against_what_was_measured(predicted_s, error_pct, is_covered):
    bounds = 0.9 * predicted_s, 1.1 * predicted_s
    predicted = Prediction(2, 2, 4, predicted_s, *bounds, 0.0, None, 'step')
    case = Case('drawn 1', 'unseen', [0.1], predicted)
    assert case.error_pct == pytest.approx(error_pct)
    assert case.is_covered is is_covered


def kept(workers: int) -> regret.LoaderChoice:
    return regret.LoaderChoice(workers, persistent_workers=True)


def trial(workers: int, job_s: float, fewer: bool = False) -> regret.JobTraining:
    evidence = ['fewer'] if fewer else []
    return regret.JobTraining('CPU', kept(workers), job_s, 0.0, evidence)


GRID = [
    trial(1, 10.0),
    trial(2, 12.0, fewer=True),
    trial(8, 9.0),
    trial(1, 9.9),
    trial(2, 11.0),
    trial(8, 9.5),
]


def ask(evidence: Sequence[str]) -> dict[str, Any]:
    return {'num_workers': 1} if evidence else {}


def test_the_faster_counts_and_a_loss_within_the_spread_is_none():
    times = regret.gather_times(GRID)
    assert regret.choose_settings(GRID, times, ask) == [kept(1), kept(2)]
    assert regret.find_best(times) == kept(8)
    assert regret.lost_pct(times, kept(1)) == pytest.approx(10.0)
    times = regret.gather_times([*GRID, trial(8, 9.95)])
    assert regret.lost_pct(times, kept(1)) == 0.0


def test_a_training_is_read_as_it_was_kept():
    training = trial(2, 12.0, fewer=True)
    line = json.dumps(dataclasses.asdict(training))
    assert regret.JobTraining.read(json.loads(line)) == training


def test_a_loss_is_judged_by_fresh_trainings_in_turns_alone():
    def train(setting: regret.LoaderChoice) -> regret.JobTraining:
        workers = setting.num_workers
        return trial(workers, {1: 10.1, 8: 9.9}[workers])

    # the best of the grid was lucky, and is no faster than 9.9 s
    fresh = regret.compare_fresh(kept(1), kept(8), train, count=3)
    turns = [training.setting.num_workers for training in fresh.trainings]
    assert turns == [1, 8, 8, 1, 1, 8]
    assert fresh.lost_pct == pytest.approx(100 * (10.1 / 9.9 - 1), abs=0.01)


def test_waits_are_those_of_a_loader_that_hands_out_in_order():
    # one worker, 3 s a batch and 1 s a step: each wait but the first is 2 s
    waits = regret.simulate_waits(1, [3.0] * 4, [1.0] * 4)
    assert waits[1:] == pytest.approx([2.0] * 3, abs=0.01)
    # two workers keep up with steps of 2 s
    assert max(regret.simulate_waits(2, [3.0] * 20, [2.0] * 20)[2:]) < 0.01


OLD = 'a = 1\ntrain_dataloader = dict(num_workers=2, dataset=1)\n'
APPENDED = OLD + '\ntrain_dataloader = dict(\n    num_workers=8,\n    batch_size=3)\n'


@pytest.mark.parametrize(
    ('new', 'good'),
    [
        (OLD.replace('=2', '=8, pin_memory=True'), True),
        (OLD.replace('=2', '=8').replace('a = 1', 'a = 2'), False),
        (OLD.replace('dataset=1', 'dataset=2'), False),
        (APPENDED, True),
        (APPENDED.replace('batch_size', 'lr'), False),
        (f'{APPENDED}\nenv_cfg = dict(mp_cfg=dict(opencv_num_threads=1))\n', True),
        (f'{APPENDED}\nenv_cfg = dict(cudnn_benchmark=True)\n', False),
        (APPENDED.replace('train_', 'val_'), False),
    ],
)
def test_bytes_outside_an_edit_are_compared(new, good):
    assert is_kept(OLD, new) is good


def test_values_are_compared_by_type_and_text():
    left, right = flatten({'a': {'b': [1, True]}}), flatten({'a': {'b': [1, 1]}})
    assert differing(left, right) == [('a', 'b', '1')]


def trained(*seconds: float) -> list[whole.Training]:
    return [
        whole.Training(whole_s, [0.1], 'mmgpu recommend run') for whole_s in seconds
    ]


STORAGE, FINE = whole.CASES['storage that waits'], whole.CASES['nothing wrong']


@pytest.mark.parametrize(
    ('case', 'after', 'share_pct', 'verdicts'),
    [
        # 20 -> 10 s is the best; the faster of two counts
        (STORAGE, (12.0, 11.0), 90.0, ['', 'met', 'met']),
        (STORAGE, (13.0, 14.0), 70.0, ['', 'met', 'missed']),
        (STORAGE, (), 0.0, ['', 'met', 'missed']),
        (STORAGE, (22.0, 23.0), -20.0, ['', 'missed', 'missed']),
        (FINE, (), None, ['met', 'met', 'met']),
        # changed for nothing, but within what its own trainings differ by
        (FINE, (20.9, 22.0), None, ['missed', 'met', 'missed']),
    ],
)
def test_advice_is_held_against_the_best_by_hand(case, after, share_pct, verdicts):
    changes = {'train_dataloader.num_workers': 6} if after else {}
    best = trained(10.0, 10.5) if case.best else []
    outcome = whole.Outcome(
        case, 'data_bound', changes, '', trained(20.0, 21.0), trained(*after), best
    )
    assert outcome.gain_share_pct == (share_pct and pytest.approx(share_pct))
    figures = list(whole.list_figures({'it': outcome}))
    assert [figure.verdict for figure in figures] == verdicts
    assert ('num_workers=6' in whole.render_cases({'it': outcome})) is bool(after)


def test_reasons_that_differ_in_names_are_one_line():
    reasons = {
        'a.py': "expected 'x' in /p/a.py:3, found none",
        'b.py': "expected 'y' in /p/b.py:12, found none",
        'c.py': 'two loaders',
    }
    assert list_reasons(reasons) == [
        "2: expected 'x' in /p/a.py:3, found none (`a.py`)",
        '1: two loaders (`c.py`)',
    ]


def test_an_unknown_project_is_refused():
    assert parse_projects('mmpose, mmyolo') == ['mmpose', 'mmyolo']
    with pytest.raises(ArgumentTypeError, match="found 'mmdet'"):
        parse_projects('mmpose,mmdet')


@pytest.mark.parametrize(
    ('key', 'after', 'found'),
    [
        pytest.param('size', 9, True, id='changed as asked'),
        pytest.param('size', 7, False, id='another value'),
        pytest.param('other', 9, False, id='of another value before'),
        pytest.param('new', 9, False, id='not there before'),
    ],
)
def test_the_variable_of_a_setting_may_change_with_it(key, after, found):
    setting = ('train_dataloader', 'batch_size')
    before = {setting: 8, ('size',): 8, ('other',): 4}
    assert is_variable((key,), before, {(key,): after}, {setting: 9}) == found
