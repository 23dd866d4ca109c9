"""Tests the measuring of a batch's fetch inside a worker, by fake clocks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from mmengine.dataset import BaseDataset
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from fakes.clock import HandClock
from fakes.loaders import Double, Piped
from mmgpu_hooks.measure.loader import counters as at
from mmgpu_hooks.measure.loader.batches import BatchWatch
from mmgpu_hooks.measure.loader.counters import Counters, WorkerNotes
from mmgpu_hooks.measure.loader.pipeline import PipelineTimer, find_transforms
from mmgpu_hooks.measure.loader.worker import FetchProbe

CLOCK, CPU = HandClock(), HandClock()


class Takes:
    """Transform that takes some seconds on the fake clocks, half of it CPU."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, value: int) -> int:
        CLOCK.turn(self.seconds)
        CPU.turn(self.seconds / 2)
        return value


class Other(Takes):
    """Transform that inherits its ``__call__``."""


class Careful(Takes):
    """Transform whose ``__call__`` calls its parent's."""

    def __call__(self, value: int) -> int:
        CLOCK.turn(0.5)
        return super().__call__(value)


class Twice:
    """Transform that takes time and runs another transform twice."""

    def __init__(self, transform: Any) -> None:
        self.transforms = [transform]

    def __call__(self, value: int) -> int:
        CLOCK.turn(0.25)
        return self.transforms[0](self.transforms[0](value))


class Planted:
    """Data set whose samples take given seconds on the fake clocks."""

    def __init__(self, seconds: dict[int, float] | None = None) -> None:
        self.seconds = seconds or {}

    def __getitem__(self, index: int) -> Any:
        Takes(self.seconds.get(index, 1.0))(index)
        return {'img_id': index, 'img_path': f'{index}.jpg'}


class Worker:
    """Fake worker that fetches batches under a `FetchProbe` with fake clocks."""

    opened: ClassVar[list[FetchProbe]] = []

    def __init__(self, dataset: Any, worker: int | None = 0) -> None:
        self.counters = Counters(1)
        self.probe = FetchProbe(
            self.counters, worker, BatchWatch(), clock=CLOCK, cpu_clock=CPU
        )
        self.opened.append(self.probe)
        self.fetcher = _MapDatasetFetcher(dataset, True, list, False)
        self.measured = self.probe.wrap(_MapDatasetFetcher.fetch)
        self.idx = 0

    def fetch(self, *indices: Any) -> Any:
        idx = self.idx  # as PyTorch's worker loop names it
        batch = self.measured(self.fetcher, list(indices))
        self.idx = idx + 1
        return batch

    @property
    def made(self) -> float:
        return self.counters.workers['made'][0]

    @property
    def row(self) -> list[float]:
        """Seconds for the last batch: wall clock, CPU, and CPU of the fetch only."""
        row = self.counters.ring[(self.idx - 1) % at.RING]
        return [float(row[name]) for name in ('wall_s', 'cpu_s', 'fetch_cpu_s')]

    @property
    def notes(self) -> WorkerNotes:
        self.counters._seen[:] = 0.0
        return self.counters.read_notes().get(0, WorkerNotes())


@pytest.fixture(autouse=True)
def no_probe_left() -> Iterator[None]:
    """Closes the probes of a test, which replace a method of all data sets."""
    yield
    while Worker.opened:
        Worker.opened.pop().close()


def test_wall_cpu_and_contents_of_each_batch_stand_by_its_number():
    worker = Worker(Planted({0: 2.0, 1: 4.0, 2: 3.0}))
    worker.idx = at.RING + 5
    worker.fetch(0, 1)
    CPU.turn(0.25)  # handing the first batch over
    worker.fetch(2)
    assert worker.made == 2
    rows = worker.counters.ring[5:7]
    assert rows['number'].tolist() == [at.RING + 5, at.RING + 6]
    assert rows['wall_s'].tolist() == [6, 3]
    assert rows['cpu_s'].tolist() == [3, 1.75]
    assert rows['fetch_cpu_s'].tolist() == [3, 1.5]
    assert rows['images'].tolist() == [2, 1]
    assert np.isnan(rows['pixels']).all()


def test_without_a_clock_of_threads_the_cpu_of_a_fetch_is_unknown(monkeypatch):
    # what its threads send meanwhile would count as the fetch's
    monkeypatch.setattr('mmgpu_hooks.measure.proc.sys.platform', 'darwin')
    worker = Worker(Planted())
    worker.fetch(0)
    wall_s, cpu_s, fetch_cpu_s = worker.row
    assert (wall_s, cpu_s) == (1.0, 0.5)
    assert np.isnan(fetch_cpu_s)


def test_in_the_process_that_trains_a_step_is_no_part_of_a_batch():
    worker = Worker(Planted(), worker=None)
    worker.fetch(0)
    CPU.turn(7.0)  # a step
    worker.fetch(1)
    assert worker.row == [1.0, 0.5, 0.5]
    assert worker.counters.ring['number'][:2].tolist() == [0, 1]


class Images(BaseDataset):
    """Data set that records what the probe knows of a sample while it is loaded."""

    def __init__(self) -> None:
        super().__init__(lazy_init=True, serialize_data=False)
        self.data_list = [{'img_path': f'{n}.jpg'} for n in range(10)]
        self._fully_initialized = True
        self.seen: list[tuple[Any, ...]] = []

    def __getitem__(self, index: int) -> Any:
        CLOCK.turn(1.0)
        before = self.counters.read_file(0)
        self.get_data_info(index)
        now = self.counters.workers[0]
        known = now['loading_index'], now['loading_since_s']
        self.seen.append((*known, before, self.counters.read_file(0)))
        return index


def test_the_sample_that_is_being_made_is_known_while_it_is():
    dataset, began = Images(), CLOCK.now
    worker = Worker(dataset)
    dataset.counters = worker.counters
    worker.fetch(7, 8)
    assert dataset.seen == [(7, began, None, '7.jpg'), (8, began + 1.0, None, '8.jpg')]
    assert worker.counters.workers['loading_since_s'][0] == 0.0


class Refusing:
    def __index__(self) -> int:
        raise RuntimeError('a meta tensor')


@pytest.mark.parametrize('index', [(640, 1), Refusing()])
def test_samples_with_an_index_that_is_no_number_are_made(index: Any):
    class Fives:
        def __getitem__(self, index: Any) -> int:
            return 5

    worker = Worker(Fives())
    assert worker.fetch(index) == [5]
    assert (worker.made, worker.counters.workers['loading_index'][0]) == (1, -1)


def test_transforms_are_timed_from_the_second_batch_on():
    worker = Worker(Piped(Takes(0.5)))
    worker.fetch(0, 1)
    assert worker.notes == WorkerNotes()
    worker.fetch(2, 3)
    worker.fetch(4)
    assert worker.notes.transforms_s == {'Takes': 1.5}
    assert worker.notes.timed_samples == 3
    for index in range(8):  # one batch a second
        worker.fetch(index)
    assert worker.notes.timed_samples == 7


def test_a_timed_fetch_that_raises_leaves_nothing_behind():
    class Broken(Piped):
        def __getitem__(self, index: int) -> int:
            if index == 3:
                raise IndexError('gone')
            return super().__getitem__(index)

    before = dict(vars(Takes))
    worker = Worker(Broken(Takes(0.5)))
    worker.fetch(0)
    with pytest.raises(IndexError, match='gone'):
        worker.fetch(3)
    assert dict(vars(Takes)) == before
    worker.fetch(1)
    CLOCK.turn(1.0)
    worker.fetch(2)
    assert worker.made == 3
    assert worker.notes.transforms_s == {'Takes': 0.5}


@pytest.mark.parametrize('target', ['_begin', '_end', '_leave'])
def test_a_failure_of_ours_ends_the_probe_and_never_the_fetch(monkeypatch, target: str):
    dataset = Piped(Takes(0.5))
    worker = Worker(dataset)

    def fail(*_: Any) -> None:
        raise ValueError('a bug of ours')

    worker.fetch(0)
    monkeypatch.setattr(worker.probe, target, fail)
    assert worker.fetch(1, 2) == [1, 2]
    assert worker.fetch(3) == [3]
    assert worker.probe.is_off
    assert worker.fetcher.dataset is dataset
    assert worker.notes == WorkerNotes(failure='ValueError: a bug of ours')


def test_a_loader_that_the_dataset_runs_itself_is_part_of_the_sample():
    class Nested:
        def __getitem__(self, index: int) -> Any:
            inner = _MapDatasetFetcher(Planted(), True, list, False)
            return worker.measured(inner, [index, index])

    worker = Worker(Nested())
    worker.fetch(0, 1)
    assert (worker.made, worker.row[0]) == (1, 4.0)


def test_notes_are_read_once_and_never_half_written():
    counters = Counters(2)
    assert counters.read_notes() == {}
    notes = WorkerNotes({'Resize': 0.5}, timed_samples=8, opencv_threads=1)
    counters.write_notes(1, notes)
    assert counters.read_notes() == {1: notes}
    assert counters.read_notes() == {}
    counters.workers['sequence'][1] += 1  # a worker writes
    assert counters.read_notes() == {}
    counters.write_notes(0, WorkerNotes(failure='too long' * 10_000))
    assert counters.read_notes() == {}


def time_one(dataset: Any) -> dict[str, float]:
    timer = PipelineTimer(CLOCK)
    timer.start(dataset)
    try:
        dataset[1]
    finally:
        costs = timer.stop()
    return costs


@pytest.mark.parametrize(
    ('transforms', 'costs'),
    [
        (
            [Takes(1.0), Takes(2.0), Twice(Other(4.0))],
            {'Takes': 3.0, 'Other': 8.0, 'Twice': 0.25},
        ),
        ([Careful(1.0), Takes(2.0)], {'Careful': 1.5, 'Takes': 2.0}),
        ([Double(), abs, lambda value: value + 1, Takes(1.0)], {'Takes': 1.0}),
    ],
    ids=['nested', 'an own clock', 'not classes'],
)
def test_each_class_has_its_own_time_and_is_given_back(transforms, costs):
    before = [dict(vars(kind)) for kind in (Takes, Other, Careful, Twice)]
    assert time_one(Piped(*transforms)) == costs
    assert [dict(vars(kind)) for kind in (Takes, Other, Careful, Twice)] == before


def test_instances_outside_the_pipeline_and_other_threads_pass_untimed(monkeypatch):
    outsider, insider = Takes(1.0), Takes(2.0)
    timer = PipelineTimer(CLOCK)
    timer.start(Piped(insider))
    outsider(1)
    thread = threading.Thread(target=insider, args=(1,))
    thread.start()
    thread.join()
    insider(1)
    # what is laid over ours meanwhile stays
    monkeypatch.setattr(Takes, '__call__', lambda self, value: 7)
    assert timer.stop() == {'Takes': 2.0}
    assert Takes(1.0)(1) == 7


def test_the_search_is_bounded_and_runs_no_property_of_the_users():
    class Lazy:
        @property
        def pipeline(self) -> Any:
            raise AssertionError('read')

    looped = SimpleNamespace(pipeline=[Takes(1.0)])
    looped.dataset = looped
    assert len(find_transforms(looped)) == 1
    assert len(find_transforms(Piped(*(Takes(1.0) for _ in range(10_000))))) <= 64
    assert find_transforms(['no', 'attributes', 1]) == find_transforms(Lazy()) == []
