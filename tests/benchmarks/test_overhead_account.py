from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from mmengine.hooks import Hook, LoggerHook

from benchmarks.accounting import (
    CALLS,
    Borders,
    CostAccount,
    EmptyHook,
    ShamHook,
    ThreadCosts,
    has_own,
)
from benchmarks.overhead_loop import BareLoop, NoWork, build, stamp_steps, train
from fakes.clock import HandClock
from mmgpu_hooks import GPUEfficiencyHook
from mmgpu_hooks.measure.clock import Clock


def test_only_what_is_between_the_borders_counts():
    clock = HandClock()
    borders = Borders(clock)
    inner = borders.beneath('f', lambda: clock.turn(20.0))

    def wrapper() -> None:
        clock.turn(2.0)
        inner()

    borders.above('f', wrapper)()
    assert dict(zip(borders.names, borders.read_s())) == {'f': 2.0}


def test_nested_names_count_once():
    clock = HandClock()
    borders = Borders(clock)
    inner = borders.above('inner', lambda: clock.turn(2.0))
    borders.above('outer', borders.beneath('outer', inner))()
    assert dict(zip(borders.names, borders.read_s())) == {'inner': 2.0, 'outer': 0.0}


class WrappingHook(EmptyHook):
    """Takes planted seconds where our hook takes its own."""

    def __init__(self, clock: HandClock) -> None:
        self._clock = clock

    def after_train_iter(self, *args: Any, **kwargs: Any) -> None:
        self._clock.turn(1.0)

    def before_train(self, runner: Any) -> None:
        (logger,) = [h for h in runner.hooks if isinstance(h, LoggerHook)]
        runner.call_hook = self._slow(runner.call_hook, 10.0)
        logger.after_train_iter = self._slow(logger.after_train_iter, 100.0)

    def _slow(self, function: Any, seconds: float) -> Any:
        def slow(*args: Any, **kwargs: Any) -> Any:
            self._clock.turn(seconds)
            return function(*args, **kwargs)

        return slow


def account(
    folder: Path, hook: Hook, clock: Clock = time.perf_counter
) -> list[dict[str, float]]:
    cfg = {'type': BareLoop, 'iterations': 12}
    runner = build(folder, NoWork(), 4, [hook], train_cfg=cfg)
    accounted = CostAccount(runner, hook, clock)
    stamp_steps(runner.model, accounted.begin_step)
    train(runner)
    return accounted.costs_s()


def test_planted_cost_is_found_where_it_was_planted(tmp_path: Path):
    clock = HandClock(0.0)
    rows = account(tmp_path, WrappingHook(clock), clock)
    # without the first step, which lays the borders, and the last, which has no end
    assert len(rows) == 10
    for row in rows:
        assert row == {
            # twice in each iteration, and once
            CALLS: 20.0 + 100.0,
            'its own after_train_iter': 1.0,
        }


@pytest.mark.parametrize(
    'hook', [EmptyHook(), ShamHook(), GPUEfficiencyHook(summary=False)]
)
def test_each_arm_is_accounted_at_the_same_borders(tmp_path: Path, hook: Hook):
    rows = account(tmp_path, hook)
    assert len(rows) == 10
    assert list(rows[0]) == [CALLS, 'its own after_train_iter']


class SometimesWrapping(EmptyHook):
    """Sets a slow wrapper in every third iteration only."""

    def __init__(self, clock: HandClock) -> None:
        self._clock = clock

    def after_train_iter(self, runner: Any, batch_idx: int, **rest: Any) -> None:
        (logger,) = [h for h in runner.hooks if isinstance(h, LoggerHook)]
        if batch_idx % 3 != 1:
            return
        before = logger.after_train_iter

        def slow(*args: Any, **kwargs: Any) -> Any:
            self._clock.turn(100.0)
            logger.after_train_iter = before
            return before(*args, **kwargs)

        logger.after_train_iter = slow


def test_what_a_hook_sets_for_some_iterations_is_accounted_too(tmp_path: Path):
    clock = HandClock(0.0)
    rows = account(tmp_path, SometimesWrapping(clock), clock)
    assert [row[CALLS] for row in rows] == [100, 0, 0] * 3 + [100]


def test_what_a_hook_has_of_its_own():
    class Inner(Hook):
        def _after_iter(self, *args: Any, **kwargs: Any) -> None: ...

    assert has_own(Inner(), 'after_train_iter')
    assert not has_own(Inner(), 'before_train_iter')
    assert not has_own(Hook(), 'after_train_iter')


def test_threads_that_ended_and_threads_that_live():
    costs = ThreadCosts(['ours'])
    stop = threading.Event()

    def work() -> None:
        burn(0.05)
        stop.wait(10)

    with costs.watch():
        ended = threading.Thread(target=burn, args=(0.05,), name='ours-ended')
        stranger = threading.Thread(target=burn, args=(0.05,), name='another')
        living = threading.Thread(target=work, name='ours-living')
        for thread in (ended, stranger, living):
            thread.start()
        ended.join()
        stranger.join()
        while costs.read_s()['ours-living'] < 0.05:
            time.sleep(0.001)
        found = costs.read_s()
    stop.set()
    living.join()
    assert set(found) == {'ours-ended', 'ours-living'}
    assert 0.05 <= found['ours-ended'] < 0.1
    assert threading.Thread.run.__qualname__ == 'Thread.run'


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
