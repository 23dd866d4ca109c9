"""Hooks that are not like the others, and a clock that is none, in a live run."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
from mmengine.hooks import Hook
from mmengine.runner import Runner

import mmgpu_hooks.hooks.loop_timer
from mmgpu_hooks.measure.clock import monotonic_s
from training.toy import build_runner, evidence_of

pytestmark = pytest.mark.timing


class Nesting(Hook):
    """Calls a hook point of its own, at which it takes most of its time."""

    def __init__(self) -> None:
        self.taken_s: list[float] = []

    def after_train_iter(self, runner: Runner, batch_idx: int, **rest: Any) -> None:
        begin = time.perf_counter()
        runner.call_hook('at_my_own_point')
        time.sleep(0.001)
        self.taken_s.append(time.perf_counter() - begin)

    def at_my_own_point(self, runner: Runner) -> None:
        time.sleep(0.004)


def test_what_a_hook_calls_at_a_point_of_its_own_is_its_own(tmp_path: Path) -> None:
    hook = Nesting()
    build_runner(tmp_path, iterations=60, custom_hooks=[hook]).train()
    end = evidence_of(tmp_path).end
    assert end is not None
    taken_s = math.fsum(hook.taken_s)
    assert end.hooks_s['Nesting'] == pytest.approx(taken_s, rel=0.02)


class Dumping(Hook):
    """Takes long in one iteration of each epoch."""

    def __init__(self) -> None:
        self.taken_s: list[float] = []

    def after_train_iter(self, runner: Runner, batch_idx: int, **rest: Any) -> None:
        if batch_idx == 33:
            begin = time.perf_counter()
            time.sleep(0.1)
            self.taken_s.append(time.perf_counter() - begin)


def test_a_hook_that_takes_long_seldom_has_its_first_time_too(tmp_path: Path) -> None:
    hook = Dumping()
    runner = build_runner(tmp_path, iterations=60, epochs=3, custom_hooks=[hook])
    runner.train()
    end = evidence_of(tmp_path).end
    assert end is not None
    assert len(hook.taken_s) == 3
    # 1 ms for each of them
    assert end.hooks_s['Dumping'] == pytest.approx(math.fsum(hook.taken_s), abs=0.003)
    assert math.fsum(end.hooks_s.values()) <= end.ledger_s['hooks']


class Turning(Hook):
    """Sets the clock back for a while."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def after_train_iter(self, runner: Runner, batch_idx: int, **rest: Any) -> None:
        if batch_idx == 10:
            self.ahead_s = -5.0
        if batch_idx == 20:
            self.ahead_s = 0.0


def test_a_clock_that_is_set_back_leaves_evidence_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = Turning()
    monkeypatch.setattr(
        mmgpu_hooks.hooks.loop_timer,
        'monotonic_s',
        lambda: monotonic_s() + hook.ahead_s,
    )
    build_runner(tmp_path, iterations=30, custom_hooks=[hook]).train()
    evidence = evidence_of(tmp_path)
    assert evidence.notes == ()
    assert sum(record.iterations for record in evidence.intervals) == 30
    end = evidence.end
    assert end is not None
    assert all(seconds >= 0 for seconds in end.ledger_s.values())
