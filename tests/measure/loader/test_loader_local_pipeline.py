"""Transforms that run in the training process: timed, and no class touched."""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from fakes.clock import HandClock
from fakes.loader_datasets import Piped
from fakes.loader_loop import Loop
from mmgpu_hooks.measure.loader.board import make_private_slot
from mmgpu_hooks.measure.loader.pipeline import CallCost, LocalPipelineTimer
from mmgpu_hooks.measure.loader.worker import FetchProbe

CLOCK = HandClock()


class Takes:
    """A transform that takes its time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.calls = 0

    def __call__(self, value: Any) -> Any:
        CLOCK.turn(self.seconds)
        self.calls += 1
        return value


class Other(Takes):
    """Inherits its call."""


class Compose:
    """Runs others, as everybody's does."""

    def __init__(self, *transforms: Any) -> None:
        self.transforms = list(transforms)

    def __call__(self, value: Any) -> Any:
        for transform in self.transforms:
            value = transform(value)
        return value


class Twice(Compose):
    """Takes time itself, and can be iterated over."""

    def __call__(self, value: Any) -> Any:
        CLOCK.turn(0.25)
        return super().__call__(super().__call__(value))

    def __iter__(self) -> Any:
        return iter(self.transforms)


KINDS = (Takes, Other, Compose, Twice)


class Looks:
    """Looks at the classes while a fetch runs."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, value: Any) -> Any:
        self.seen.append([dict(vars(kind)) for kind in KINDS])
        return value


class Held(Piped):
    """Its pipeline is a ``Compose``, as MMEngine's datasets have it."""

    def __init__(self, *transforms: Any) -> None:
        self.pipeline = Compose(*transforms)

    def __getitem__(self, index: int) -> Any:
        return self.pipeline(index)


def time_one(dataset: Any, index: int = 1) -> dict[str, CallCost]:
    timer = LocalPipelineTimer(CLOCK)
    timer.start(dataset)
    try:
        dataset[index]
    finally:
        costs = timer.stop()
    return costs


@pytest.mark.parametrize('kind', [Piped, Held])
def test_each_class_has_its_own_time_and_what_it_calls_is_left_out(kind):
    transforms = Takes(1.0), Takes(2.0), Compose(Other(4.0)), Twice(Other(4.0))
    assert time_one(kind(*transforms)) == {
        'Takes': CallCost(2, 3.0),
        'Other': CallCost(3, 12.0),
        'Twice': CallCost(1, 0.25),
    }


def test_no_class_of_the_training_process_is_ever_another():
    looks = Looks()
    dataset = Held(Takes(0.0), looks, Twice(Other(0.0)))
    before = [dict(vars(kind)) for kind in (*KINDS, Looks)]
    held = dataset.pipeline.transforms
    loop = Loop(DataLoader(dataset, batch_size=2, num_workers=0))
    loop.run_epoch()
    timed = loop.read()
    assert timed.transforms['Takes'].calls >= 2  # it was timed meanwhile
    assert len(looks.seen) == 8
    assert all(seen == before[:-1] for seen in looks.seen)
    assert [dict(vars(kind)) for kind in (*KINDS, Looks)] == before
    assert dataset.pipeline.transforms is held
    loop.close()


def holders() -> tuple[Any, list[tuple[dict[str, Any], str, Any]]]:
    """A dataset, and each attribute with what it holds."""
    inner = Twice(Other(1.0))
    branches = SimpleNamespace(branch_pipelines={'sup': (Takes(1.0),)})
    dataset = Held(Takes(1.0), inner)
    dataset.transform = Takes(1.0)
    dataset.pre_transform = branches
    places = [
        (vars(dataset), 'pipeline'),
        (vars(dataset), 'transform'),
        (vars(dataset.pipeline), 'transforms'),
        (vars(inner), 'transforms'),
        (vars(branches), 'branch_pipelines'),
    ]
    return dataset, [(place, name, place[name]) for place, name in places]


def test_every_attribute_holds_what_it_held_afterwards():
    dataset, before = holders()
    timer = LocalPipelineTimer(CLOCK)
    timer.start(dataset)
    held = [place[name] is value for place, name, value in before]
    assert held == [True, False, False, False, False]
    timer.stop()
    assert all(place[name] is value for place, name, value in before)


def interrupt_at(line: int, call: Any) -> bool:
    """Raise where so many lines of ours have run; whether there were so many."""

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal line
        if 'mmgpu_hooks' not in frame.f_code.co_filename:
            return None
        line -= event == 'line'
        if event == 'line' and not line:
            raise KeyboardInterrupt
        return count

    previous = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(previous)
    return False


def test_an_interrupt_at_any_line_of_a_fetch_leaves_nothing_behind():
    for line in itertools.count(1):
        dataset, before = holders()
        probe = FetchProbe(
            make_private_slot(),
            cpu_between_ends=False,
            timer=LocalPipelineTimer(CLOCK),
            clock=CLOCK,
            cpu_clock=CLOCK,
        )
        fetcher = _MapDatasetFetcher(dataset, True, list, False)
        fetch = probe.wrap(_MapDatasetFetcher.fetch)
        fetch(fetcher, [0])
        is_interrupted = interrupt_at(line, functools.partial(fetch, fetcher, [1]))
        assert all(place[name] is value for place, name, value in before), line
        probe.close()
        assert fetcher.dataset is dataset
        if not is_interrupted:
            break
    assert line > 100


def test_what_was_replaced_meanwhile_stays():
    dataset = Held(Takes(1.0))
    timer = LocalPipelineTimer(CLOCK)
    timer.start(dataset)
    others = dataset.pipeline.transforms = [Takes(2.0)]
    timer.stop()
    assert dataset.pipeline.transforms is others


def test_a_stand_in_passes_for_its_transform():
    plain, chain = Takes(1.0), Twice(Other(1.0))
    dataset = Held(plain, chain)
    timer = LocalPipelineTimer(CLOCK)
    timer.start(dataset)
    stand_in, iterable = dataset.pipeline.transforms
    assert stand_in is not plain
    assert isinstance(stand_in, Takes)
    assert stand_in == plain and plain in dataset.pipeline.transforms
    assert hash(stand_in) == hash(plain)
    assert repr(stand_in) == repr(plain)
    assert not hasattr(stand_in, '__iter__')
    assert len(list(iterable)) == 1
    stand_in.mark = 3
    assert plain.mark == 3
    del stand_in.mark
    assert not hasattr(plain, 'mark')
    for twin in (
        copy.copy(stand_in),
        copy.deepcopy(stand_in),
        pickle.loads(pickle.dumps(stand_in)),
    ):
        assert type(twin) is Takes
        assert twin is not plain
    assert b'mmgpu_hooks.measure' not in pickle.dumps(copy.deepcopy(stand_in))
    timer.stop()


def test_other_threads_pass_untimed():
    dataset = Held(Takes(1.0))
    timer = LocalPipelineTimer(CLOCK)
    timer.start(dataset)
    thread = threading.Thread(target=dataset.pipeline, args=(1,))
    thread.start()
    thread.join()
    dataset[1]
    assert timer.stop() == {'Takes': CallCost(1, 1.0)}


def test_an_error_passes_as_it_is():
    class Breaks(Takes):
        def __call__(self, value: Any) -> Any:
            CLOCK.turn(1.0)
            raise KeyError('no image', value)

    dataset = Held(Takes(1.0), Twice(Breaks(1.0)))
    with pytest.raises(KeyError) as plain:
        dataset[3]
    with pytest.raises(KeyError) as timed:
        time_one(dataset, 3)
    assert timed.value.args == plain.value.args == ('no image', 3)
    if sys.version_info >= (3, 11):  # earlier, our frames are between them
        names = [entry.name for entry in timed.traceback][2:]
        assert names == [entry.name for entry in plain.traceback][1:]


def test_a_list_that_holds_itself_is_exchanged_within_bounds():
    dataset = Piped(Takes(1.0))
    dataset.pipeline.append(dataset.pipeline)
    timer = LocalPipelineTimer(CLOCK)
    timer.start(dataset)
    timer.stop()
    assert dataset.pipeline[1] is dataset.pipeline
