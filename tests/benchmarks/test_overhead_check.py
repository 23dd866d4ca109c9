from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from benchmarks.overhead_check import (
    BurningHook,
    SlowingHook,
    judge_planted,
    judge_thread,
)
from benchmarks.overhead_effect import Iteration, Round
from benchmarks.overhead_pairs import Paired


def rounds(spread_ms: float = 0.1, **added_ms: float) -> list[Round]:
    """Twenty rounds in which arms take so much longer than ``none``."""

    def arm(milliseconds: float) -> list[Iteration]:
        return [Iteration(0.005 + milliseconds / 1000, 0.02)] * 4

    return [
        {
            'none': arm(0.0),
            **{k: arm(v + sign * spread_ms) for k, v in added_ms.items()},
        }
        for sign in [1, -1] * 10
    ]


@pytest.mark.parametrize(
    ('spread_ms', 'found_ms', 'verdicts'),
    [
        pytest.param(0.1, (0.0, 0.25), ['met', 'met'], id='as planted'),
        pytest.param(0.1, (0.0, 0.13), ['met', 'missed'], id='half of it'),
        pytest.param(0.1, (0.1, 0.25), ['missed', 'met'], id='something of nothing'),
        # an interval around nothing of +- 0.3 %, around 1 % down to 0.7
        pytest.param(0.19, (0.0, 0.25), ['missed', 'met'], id='noise'),
        pytest.param(0.4, (0.0, 0.25), ['missed', 'missed'], id='more noise'),
    ],
)
def test_what_is_found_is_held_against_what_was_planted(
    spread_ms: float, found_ms: tuple[float, float], verdicts: list[str]
):
    found = rounds(spread_ms, twin=found_ms[0], iteration=found_ms[1])
    planted_s = {'twin': 0.0, 'iteration': 0.00025}
    figures = judge_planted(Paired(found, 0.0, {}), planted_s)
    assert [figure.verdict for figure in figures] == verdicts
    assert figures[1].value == pytest.approx(100 * found_ms[1] / 25)


def test_a_cost_within_the_margin_is_only_to_be_found():
    figures = judge_planted(Paired(rounds(interval=0.1), 0.0, {}), {'interval': 0.0001})
    assert figures[0].verdict == 'met'
    assert figures[0].target.startswith('0.40 +- ')
    assert 'beyond' not in figures[0].target


@pytest.mark.parametrize(('threads', 'verdict'), [(1.0, 'met'), (0.5, 'missed')])
def test_the_cpu_of_a_thread_must_be_seen(threads: float, verdict: str):
    assert judge_thread(Paired(rounds(thread=0.0), threads, {})).verdict == verdict


def test_what_is_burnt_is_counted():
    hook = BurningHook(0.001, 0.003)
    for index in (47, 48, 49):
        hook.after_train_iter(None, index)
    assert hook.iterations == 3
    assert hook.burnt_s >= 0.005


def test_a_step_that_is_slowed_does_its_work_all_the_same():
    hook, model = SlowingHook(0.002, 0.002), SimpleNamespace(forward=lambda x: x + 1)
    hook.before_train(SimpleNamespace(model=model))
    begin = time.perf_counter()
    assert model.forward(3) == 4
    assert time.perf_counter() - begin >= 0.002
    hook.after_train_iter(None, 0)
    assert hook.iterations == 1
    assert hook.burnt_s >= 0.002
