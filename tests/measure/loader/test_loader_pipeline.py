from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.clock import HandClock
from fakes.loader_datasets import Double, Piped
from mmgpu_hooks.measure.loader.pipeline import (
    CallCost,
    PipelineTimer,
    find_transforms,
)

CLOCK = HandClock()


class Takes:
    """A transform that takes its time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, value: int) -> int:
        CLOCK.turn(self.seconds)
        return value


class Other(Takes):
    """Inherits its call."""


class Careful(Takes):
    """Calls its parent's."""

    def __call__(self, value: int) -> int:
        CLOCK.turn(0.5)
        return super().__call__(value)


class Compose:
    """Runs others, as everybody's does."""

    def __init__(self, *transforms: Any) -> None:
        self.transforms = list(transforms)

    def __call__(self, value: int) -> int:
        for transform in self.transforms:
            value = transform(value)
        return value


class Twice(Compose):
    """Takes time itself, beside what it runs."""

    def __call__(self, value: int) -> int:
        CLOCK.turn(0.25)
        return super().__call__(super().__call__(value))


class Breaks:
    def __call__(self, value: int) -> int:
        CLOCK.turn(1.0)
        raise KeyError('no image', value)


def time_one(dataset: Any, index: int = 1) -> dict[str, CallCost]:
    timer = PipelineTimer(CLOCK)
    timer.start(dataset)
    try:
        dataset[index]
    finally:
        costs = timer.stop()
    return costs


def test_each_class_has_its_own_time_and_what_it_calls_is_left_out():
    dataset = Piped(Takes(1.0), Takes(2.0), Twice(Other(4.0)))
    assert time_one(dataset) == {
        'Takes': CallCost(2, 3.0),
        'Other': CallCost(2, 8.0),
        'Twice': CallCost(1, 0.25),
    }


def test_a_class_that_calls_its_parents_call_is_one_call():
    costs = time_one(Piped(Careful(1.0), Takes(2.0)))
    assert costs == {'Careful': CallCost(1, 1.5), 'Takes': CallCost(1, 2.0)}


def test_the_classes_are_as_before_afterwards():
    class Inherits(Takes):
        """Never patched before."""

    class Owns(Takes):
        def __call__(self, value: int) -> int:
            return value

    before = [dict(vars(kind)) for kind in (Inherits, Owns, Twice)]
    time_one(Piped(Inherits(1.0), Owns(1.0), Twice(Owns(1.0))))
    assert [dict(vars(kind)) for kind in (Inherits, Owns, Twice)] == before


def test_a_patch_that_somebody_else_laid_over_ours_stays(
    monkeypatch: pytest.MonkeyPatch,
):
    timer = PipelineTimer(CLOCK)
    timer.start(Piped(Takes(1.0)))
    monkeypatch.setattr(Takes, '__call__', lambda self, value: 7)
    timer.stop()
    assert Takes(1.0)(1) == 7


def test_instances_outside_the_pipeline_and_other_threads_pass_untimed():
    outsider, insider = Takes(1.0), Takes(2.0)
    timer = PipelineTimer(CLOCK)
    timer.start(Piped(insider))
    outsider(1)
    thread = threading.Thread(target=insider, args=(1,))
    thread.start()
    thread.join()
    insider(1)
    assert timer.stop() == {'Takes': CallCost(1, 2.0)}


def test_an_error_passes_as_it_is_and_the_classes_are_given_back():
    dataset = Piped(Takes(1.0), Twice(Breaks()))
    with pytest.raises(KeyError) as plain:
        dataset[3]
    with pytest.raises(KeyError) as timed:
        time_one(dataset, 3)
    assert timed.value.args == plain.value.args == ('no image', 3)
    if sys.version_info >= (3, 11):  # earlier, our frames are between them
        names = [entry.name for entry in timed.traceback][2:]
        assert names == [entry.name for entry in plain.traceback][1:]


def test_functions_and_sealed_classes_are_left_alone():
    dataset = Piped(Double(), abs, lambda value: value + 1, Takes(1.0))
    assert dataset[1] == 3
    assert time_one(dataset) == {'Takes': CallCost(1, 1.0)}


@pytest.mark.parametrize(
    'wrap',
    [
        lambda inner: SimpleNamespace(dataset=inner),
        lambda inner: SimpleNamespace(datasets=[Piped(), inner]),
        lambda inner: SimpleNamespace(datasets=(SimpleNamespace(dataset=inner),)),
        lambda inner: SimpleNamespace(pipeline=Compose(Compose(*inner.pipeline))),
        lambda inner: SimpleNamespace(transform=Compose(*inner.pipeline)),
        lambda inner: SimpleNamespace(
            pipeline=[SimpleNamespace(branch_pipelines={'sup': inner.pipeline})]
        ),
        lambda inner: SimpleNamespace(
            pipeline=[SimpleNamespace(pre_transform=Compose(*inner.pipeline))]
        ),
    ],
)
def test_transforms_are_found_through_what_wraps_them(wrap):
    one, other = Takes(1.0), Other(1.0)
    found = find_transforms(wrap(Piped(one, other)))
    assert {id(transform) for transform in found} == {id(one), id(other)}


def test_a_dataset_that_holds_itself_or_very_much_is_searched_within_bounds():
    looped = SimpleNamespace(pipeline=[Takes(1.0)])
    looped.dataset = looped
    assert len(find_transforms(looped)) == 1
    assert len(find_transforms(Piped(*(Takes(1.0) for _ in range(10_000))))) <= 64
    assert find_transforms(['no', 'attributes', 1]) == []


def test_no_property_of_the_users_runs():
    class Lazy:
        @property
        def pipeline(self) -> Any:
            raise AssertionError('looked at')

    assert find_transforms(Lazy()) == []
