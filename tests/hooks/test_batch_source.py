from __future__ import annotations

import sys
from typing import Any

import pytest
from mmengine.hooks import Hook

from mmgpu_hooks.hooks.batches import BatchSource
from mmgpu_hooks.measure.loader.batches import Contents, Held

BATCH = Contents(2, 100, 3)


class Watch:
    """Sees what it is shown."""

    def look(self, batch: Contents) -> Contents:
        return batch


class Delivered:
    """Tells what it is told to."""

    def __init__(self) -> None:
        self.told: list[Contents] | None = []

    def collect(self, is_due: bool = True) -> None: ...

    def drain(self) -> Held | None:
        told, self.told = self.told, []
        if told is None:
            return None
        columns: Any = map(list, zip(*told)) if told else ([], [], [])
        images, pixels, boxes = columns
        return images, pixels, boxes


class Case:
    def __init__(self, delivered: Delivered | None, hook: Any = None) -> None:
        self.hook = hook or Hook()
        self.delivered = delivered
        watch: Any = Watch()
        workers: Any = delivered
        self.source = BatchSource(self.hook, watch, workers)
        self.source.begin(self.source.look)

    @property
    def is_looking(self) -> bool:
        return self.hook.before_train_iter == self.source.look

    def train(self, batches: int, told: int | None) -> None:
        """Iterations, of which the workers tell some."""
        for _ in range(batches):
            if self.is_looking:
                self.hook.before_train_iter(BATCH)
        if self.delivered is not None:
            self.delivered.told = None if told is None else [BATCH] * told
        self.source.follow()


def test_the_workers_alone_look_once_they_have_been_right():
    case = Case(Delivered())
    case.train(16, told=16)
    assert not case.is_looking
    assert case.source.drain(16) == (32, 100, 3)
    case.train(20, told=20)
    assert case.source.drain(20) == (40, 100, 3)


@pytest.mark.parametrize('told', [None, 0, 15, 17])
def test_until_then_the_training_process_looks(told: int | None):
    case = Case(Delivered())
    case.train(16, told)
    assert case.is_looking
    assert case.source.drain(16) == (32, 100, 3)


def test_a_few_batches_prove_nothing():
    case = Case(Delivered())
    case.train(8, told=8)
    assert case.is_looking


def test_without_workers_the_training_process_looks():
    case = Case(None)
    case.train(40, None)
    assert case.is_looking
    assert case.source.drain(40) == (80, 100, 3)


@pytest.mark.parametrize('told', [None, 19, 21])
def test_what_workers_do_not_tell_is_unknown_once_and_then_looked_at(told: int | None):
    case = Case(Delivered())
    case.train(16, told=16)
    case.source.drain(16)
    case.train(20, told)
    assert case.source.drain(20) == (None, None, None)
    case.train(20, told=None)
    assert case.source.drain(20) == (40, 100, 3)


def test_closing_leaves_the_hook_as_it_was():
    case = Case(None)
    case.source.close()
    case.source.close()
    assert vars(case.hook) == {}
    case = Case(Delivered())
    case.train(16, told=16)
    assert not case.is_looking
    case.source.close()
    assert vars(case.hook) == {}


class Users(Hook):
    """A subclass that does something of its own at each iteration."""

    def __init__(self) -> None:
        self.seen = 0


class AtThePoint(Users):
    def before_train_iter(self, *args: Any, **kwargs: Any) -> None:
        self.seen += 1


class AtEveryIteration(Users):
    def _before_iter(self, *args: Any, **kwargs: Any) -> None:
        self.seen += 1


@pytest.mark.parametrize('kind', [AtThePoint, AtEveryIteration])
def test_what_a_users_subclass_does_is_done_in_each_iteration(kind: type[Users]):
    hook = kind()
    delivered = Delivered()
    source = BatchSource(hook, Watch(), delivered)
    source.begin(lambda runner, batch_idx, data_batch: source.look(data_batch))
    for index in range(20):
        hook.before_train_iter(None, batch_idx=index, data_batch=BATCH)
        # of those that nobody took yet
        delivered.told = [BATCH] * (index + 1 if index < 16 else index - 15)
        source.follow()
    assert hook.seen == 20
    assert source.drain(20)[0] == 40


def test_at_rest_no_python_of_ours_runs():
    case = Case(Delivered())
    case.train(16, told=16)
    frames = []
    sys.setprofile(lambda frame, event, arg: frames.append((frame.f_code, event)))
    try:
        case.hook.before_train_iter(object(), batch_idx=3, data_batch=BATCH)
    finally:
        sys.setprofile(None)
    assert [code for code, event in frames if event == 'call'] == []
