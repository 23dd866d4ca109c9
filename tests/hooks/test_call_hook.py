"""Tests that each hook's measured time is what it took, in every kind of Runner."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from mmengine.hooks import Hook
from mmengine.runner import FlexibleRunner, Runner

from mmgpu_hooks.hooks.loop_timer import HookTimer, is_plain
from mmgpu_hooks.measure.ledger import TimeLedger
from mmgpu_hooks.measure.loop_listener import LoopListener


class Sleeper(Hook):
    """Hook that sleeps after each train iteration and records for how long."""

    def __init__(self, seconds: float = 0.004) -> None:
        self.seconds = seconds
        self.spent_s = 0.0

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        begin = time.perf_counter()
        time.sleep(self.seconds)
        self.spent_s += time.perf_counter() - begin


class SleepsElsewhere(Sleeper):
    """Sleeping hook of another class, to be timed separately."""


class SleepsEachIteration(Hook):
    """Hook that sleeps in each iteration of training, validation and test."""

    def _after_iter(self, *args: Any, **kwargs: Any) -> None:
        time.sleep(0.004)


class DoesNothing(Hook):
    """Hook without any method of its own."""


class Replaced(Hook):
    """Hook without methods, to which a test assigns one."""


class Acting(Hook):
    """Hook that calls a function before each iteration."""

    def __init__(self, action: Callable[[Any], None]) -> None:
        self.action = action

    def before_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        self.action(runner)

    def __repr__(self) -> str:
        return 'Acting()'


def bare(kind: type[Any], *hooks: Hook) -> Any:
    """Returns a Runner that has hooks but nothing else."""
    runner = object.__new__(kind)
    runner._hooks = list(hooks)
    return runner


def timed(runner: Any) -> TimeLedger:
    ledger = TimeLedger(time.perf_counter, part='step')
    runner.call_hook = HookTimer(runner, ledger).make()
    return ledger


@pytest.mark.parametrize('kind', [Runner, FlexibleRunner])
def test_each_hook_has_its_own_seconds(kind):
    hooks = [Sleeper(), SleepsElsewhere(0.008), Sleeper()]
    runner = bare(kind, *hooks)
    assert is_plain(runner)
    ledger = timed(runner)
    for _ in range(5):
        runner.call_hook('after_train_iter', batch_idx=0)
    found = ledger.take().hooks_s
    own_s = hooks[0].spent_s + hooks[2].spent_s
    assert found['Sleeper'] == pytest.approx(own_s, abs=0.001)
    assert found['SleepsElsewhere'] == pytest.approx(hooks[1].spent_s, abs=0.001)


def test_a_hook_that_does_nothing_at_a_point_has_no_seconds_there():
    replaced, late = Replaced(), SleepsElsewhere()
    runner = bare(Runner, SleepsEachIteration(), DoesNothing(), replaced)
    ledger = timed(runner)
    # what comes in mid-run is timed, too
    replaced.after_train_iter = late.after_train_iter
    runner._hooks.append(late)
    runner.call_hook('after_train_iter', batch_idx=0)
    found = ledger.take().hooks_s
    assert set(found) == {'SleepsEachIteration', 'Replaced', 'SleepsElsewhere'}
    assert min(found.values()) >= 0.004


def test_hooks_are_called_by_methods_that_somebody_gave_to_all(monkeypatch):
    spy = Mock()
    # a function, and what has no code of its own
    for own in (lambda *_, **__: spy(), spy):
        monkeypatch.setattr(Hook, '_after_iter', own)
        runner = bare(Runner, DoesNothing())
        timed(runner)
        runner.call_hook('after_train_iter', batch_idx=0)
    assert spy.call_count == 2


class Noting(Hook):
    """Hook that records its calls around a validation."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def before_val(self, runner: Any) -> None:
        self.events.append('before_val')

    def after_val(self, runner: Any) -> None:
        self.events.append('after_val')


class Hearing(LoopListener):
    """Loop listener that records the events it receives."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def on_validation_begin(self) -> None:
        self.events.append('begin')

    def on_validation_end(self) -> None:
        self.events.append('end')


def test_a_listener_hears_of_a_validation_around_its_hooks():
    events: list[str] = []
    runner = bare(Runner, Noting(events))
    ledger = TimeLedger(time.perf_counter, part='loop')
    around = {'after_train_iter': (lambda: events.append('around'),)}
    timer = HookTimer(runner, ledger, Hearing(events), around)
    runner.call_hook = timer.make()
    for point in ('after_train_iter', 'before_val', 'after_val'):
        runner.call_hook(point)
    assert events == ['around', 'begin', 'before_val', 'after_val', 'end']
    assert ledger.running == ['loop']


def test_inner_time_of_nested_calls_is_counted_once():
    def call_within(runner: Any) -> None:
        time.sleep(0.002)
        runner.call_hook('after_train_iter', batch_idx=0)
        time.sleep(0.002)

    sleeper = Sleeper(0.02)
    runner = bare(Runner, Acting(call_within), sleeper)
    ledger = timed(runner)
    begin_s = time.perf_counter()
    runner.call_hook('before_train_iter', batch_idx=0)
    whole_s = time.perf_counter() - begin_s
    window = ledger.take()
    # a busy machine only adds to what is around the sleep
    assert sleeper.spent_s <= window.hooks_s['Sleeper'] <= whole_s - 0.004
    # counted twice it would be 20 ms more
    assert 0.004 <= window.hooks_s['Acting'] <= whole_s - sleeper.spent_s
    assert ledger.running == ['step']


@pytest.mark.parametrize('kind', [Runner, FlexibleRunner])
@pytest.mark.parametrize('depth', [1, 3])
def test_an_iteration_within_a_hook_leaves_what_runs_around_it(kind, depth):
    again = [depth, 0]

    def train_within(runner: Any) -> None:
        if again[0]:
            again[0] -= 1
            runner.call_hook('before_train_iter', batch_idx=0)
            time.sleep(0.002)

    runner = bare(kind, Acting(train_within), Acting(lambda runner: None))
    ledger = timed(runner)
    ledger.push('loop')
    runner.call_hook('before_train_iter', batch_idx=0)
    # what an error left open is closed, and the hooks around each other are timed
    assert ledger.running == ['step']
    assert ledger.take().hooks_s['Acting'] > 0.002 * depth


@pytest.mark.parametrize(
    ('kind', 'has_cause'), [(Runner, False), (FlexibleRunner, True)]
)
def test_a_hook_that_raises_ends_as_without_us(kind, has_cause):
    def take_nothing() -> None:
        """Accepts no arguments, so that calling it as a hook method fails."""

    action: Callable[..., None] = take_nothing
    runner = bare(kind, Acting(action))
    with pytest.raises(TypeError) as plain:
        runner.call_hook('before_train_iter', batch_idx=0)
    ledger = timed(runner)
    with pytest.raises(TypeError) as ours:
        runner.call_hook('before_train_iter', batch_idx=0)
    assert str(ours.value) == str(plain.value)
    assert str(ours.value).endswith(' in Acting()')
    assert (ours.value.__cause__ is not None) == has_cause
    assert ours.value.__suppress_context__ == plain.value.__suppress_context__
    assert len(ledger.running) == 1


def test_hooks_come_and_go_in_the_midst_of_a_call():
    def leave(runner: Any) -> None:
        called.append(len(runner._hooks))
        runner._hooks.pop(0)

    called: list[int] = []
    runner, plain = (bare(Runner, *map(Acting, [leave] * 3)) for _ in range(2))
    plain.call_hook('before_train_iter', batch_idx=0)
    ledger = timed(runner)
    runner.call_hook('before_train_iter', batch_idx=0)
    # MMEngine passes over the hook behind one that leaves
    assert called == [3, 2] * 2
    runner._hooks.append(SleepsElsewhere())
    runner.call_hook('after_train_iter', batch_idx=0)
    assert ledger.take().hooks_s['SleepsElsewhere'] > 0.003


class OwnRunner(Runner):
    """Runner that calls its hooks in reverse order."""

    def call_hook(self, fn_name: str, **kwargs: Any) -> None:
        for hook in reversed(self._hooks):
            getattr(hook, fn_name)(self, **kwargs)


def test_a_runner_with_a_call_hook_of_its_own_is_timed_as_a_whole():
    sleeper = Sleeper()
    runner = bare(OwnRunner, sleeper)
    assert not is_plain(runner)
    ledger = timed(runner)
    runner.call_hook('after_train_iter', batch_idx=0)
    whole_s = ledger.take().hooks_s['(unattributed)']
    assert whole_s == pytest.approx(sleeper.spent_s, abs=0.001)


def test_a_replaced_call_hook_is_not_replaced_by_ours():
    runner = bare(Runner)
    runner.call_hook = runner.call_hook
    assert not is_plain(runner)
