from __future__ import annotations

import itertools
from typing import Any

import pytest
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

from fakes.clock import HandClock
from mmgpu_hooks.measure.loader import board
from mmgpu_hooks.measure.loader.board import make_private_slot
from mmgpu_hooks.measure.loader.inside import InsideReader, InsideTally
from mmgpu_hooks.measure.loader.worker import FetchProbe
from mmgpu_hooks.schema import DurationStats, SlowSample, TransformCost

pytestmark = pytest.mark.timing

CLOCK = HandClock()
CPU = HandClock()


class Planted:
    """A dataset whose samples take the seconds it is told."""

    def __init__(self, seconds: dict[int, float] | None = None) -> None:
        self.seconds = seconds or {}

    def __getitem__(self, index: int) -> Any:
        seconds = self.seconds.get(index, 1.0)
        CLOCK.turn(seconds)
        CPU.turn(seconds / 2)
        return {'img_id': index, 'img_path': f'{index}.jpg'}


class Worker:
    """One worker's probe, and the training process's reader of it."""

    def __init__(self, dataset: Any, *, cpu_between_ends: bool = True) -> None:
        self.slot = make_private_slot()
        self.probe = FetchProbe(
            self.slot, cpu_between_ends=cpu_between_ends, clock=CLOCK, cpu_clock=CPU
        )
        self.fetcher = _MapDatasetFetcher(dataset, True, list, False)
        self.measured = self.probe.wrap(_MapDatasetFetcher.fetch)
        self.reader = InsideReader([self.slot])
        self.tally = InsideTally()

    def fetch(self, *indices: int) -> Any:
        return self.measured(self.fetcher, list(indices))

    def read(self) -> Any:
        self.reader.collect(self.tally)
        return self.tally.drain()


def test_wall_and_cpu_of_each_batch_are_exact():
    worker = Worker(Planted({0: 2.0, 1: 4.0, 2: 3.0}))
    worker.fetch(0, 1)
    worker.fetch(2)
    figures = worker.read()
    assert figures.occupancy == DurationStats(
        count=2,
        total_s=9.0,
        mean_s=4.5,
        p50_s=4.5,
        p95_s=pytest.approx(5.85),
    )
    assert figures.batch_cpu == DurationStats(
        count=2,
        total_s=4.5,
        mean_s=2.25,
        p50_s=2.25,
        p95_s=pytest.approx(2.925),
    )
    assert figures.occupancy_std_s == 1.5
    assert figures.worker_batches == (2,)
    assert worker.read() is None


def test_what_a_worker_burns_between_two_fetches_belongs_to_the_batch():
    worker = Worker(Planted())
    worker.fetch(0)
    CPU.turn(0.25)  # handing the first batch over
    worker.fetch(1)
    assert worker.read().batch_cpu.total_s == 0.5 + 0.25 + 0.5


def test_what_this_process_burns_between_two_fetches_does_not():
    worker = Worker(Planted(), cpu_between_ends=False)
    worker.fetch(0)
    CPU.turn(7.0)  # a step
    worker.fetch(1)
    assert worker.read().batch_cpu.total_s == 1.0


def test_more_batches_than_are_kept_are_still_all_counted():
    worker = Worker(Planted({index: 1.0 + index / 1000 for index in range(600)}))
    for index in range(100):
        worker.fetch(index)
    worker.read()
    for index in range(100, 600):
        worker.fetch(index)
    occupancy = worker.read().occupancy
    assert occupancy.count == 500
    assert occupancy.total_s == pytest.approx(
        sum(1 + i / 1000 for i in range(100, 600))
    )
    # of the last 256
    assert occupancy.p50_s == pytest.approx(1 + (344 + 599) / 2000)


def test_the_slowest_samples_are_those_since_the_last_read():
    seconds = {3: 9.0, 4: 8.0, 5: 7.0, 6: 6.0, 7: 5.0, 20: 2.0}
    worker = Worker(Planted(seconds))
    for index in range(10):
        worker.fetch(index)
    assert worker.read().slowest == (
        SlowSample(seconds=9.0, index=3, image='3 3.jpg'),
        SlowSample(seconds=8.0, index=4, image='4 4.jpg'),
        SlowSample(seconds=7.0, index=5, image='5 5.jpg'),
        SlowSample(seconds=6.0, index=6, image='6 6.jpg'),
    )
    assert worker.read() is None
    worker.fetch(20)
    assert worker.read().slowest == (
        SlowSample(seconds=2.0, index=20, image='20 20.jpg'),
    )


def test_samples_with_an_index_that_is_no_number_are_made_but_not_ranked():
    class Pairs:
        def __getitem__(self, index: Any) -> Any:
            return index

    worker = Worker(Pairs())
    assert worker.measured(worker.fetcher, [(640, 1), (640, 2)]) == [(640, 1), (640, 2)]
    figures = worker.read()
    assert (figures.occupancy.count, figures.slowest) == (1, ())


@pytest.mark.parametrize('error', [ValueError, RuntimeError])
def test_an_index_that_refuses_to_be_a_number_is_the_users_own_affair(error):
    class Index:
        def __index__(self) -> int:
            raise error('a meta tensor')

    class Fives:
        def __getitem__(self, index: Any) -> int:
            return 5

    worker = Worker(Fives())
    assert worker.measured(worker.fetcher, [Index()]) == [5]
    figures = worker.read()
    assert (figures.occupancy.count, figures.slowest) == (1, ())


class Named:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self) -> None:
        CLOCK.turn(self.seconds)


class Flip(Named):
    """A transform."""


class WithPipeline:
    def __init__(self) -> None:
        self.transforms = [Flip(0.5)]

    def __getitem__(self, index: int) -> int:
        for transform in self.transforms:
            transform()
        return index


def test_transforms_are_timed_from_the_second_batch_on_and_each_once():
    worker = Worker(WithPipeline())
    worker.fetch(0, 1)
    assert worker.read().transforms == {}
    worker.fetch(2, 3)
    figures = worker.read()
    assert figures.transforms == {'Flip': TransformCost(calls=2, total_s=1.0)}
    assert figures.timed_samples == 2
    worker.fetch(4)
    assert worker.read().transforms == {'Flip': TransformCost(calls=1, total_s=0.5)}


def test_timing_stops_when_it_would_cost_more_than_it_may():
    worker = Worker(WithPipeline())
    worker.fetcher.dataset.transforms = [Flip(1e-6)]  # 1 us, and 2 us to time it
    for index in range(1000):
        worker.fetch(index)
    assert 1 <= worker.read().timed_samples <= 10


def test_a_timed_fetch_that_raises_leaves_nothing_behind():
    class Broken(WithPipeline):
        def __getitem__(self, index: int) -> int:
            if index == 3:
                raise IndexError('gone')
            return super().__getitem__(index)

    before = dict(vars(Flip))
    worker = Worker(Broken())
    worker.fetch(0)
    with pytest.raises(IndexError, match='gone'):
        worker.fetch(3)
    assert dict(vars(Flip)) == before
    worker.fetch(1)
    figures = worker.read()
    assert figures.occupancy.count == 2
    assert figures.transforms == {'Flip': TransformCost(calls=1, total_s=0.5)}


def test_a_failure_of_ours_ends_the_probe_and_never_the_fetch(monkeypatch):
    worker = Worker(WithPipeline())
    worker.fetch(0)

    def fail(*_: Any) -> None:
        raise ValueError('a bug of ours')

    monkeypatch.setattr(worker.probe._timer, 'start', fail)
    assert worker.fetch(1, 2) == [1, 2]
    assert worker.fetch(3) == [3]
    assert worker.probe.is_off
    assert isinstance(worker.fetcher.dataset, WithPipeline)
    assert worker.read().occupancy.count == 1
    assert worker.tally.off_reason is not None
    assert worker.tally.off_reason.endswith('ValueError: a bug of ours')


def test_a_loader_that_the_dataset_runs_itself_is_part_of_the_sample():
    class Nested:
        def __init__(self) -> None:
            self.inner = _MapDatasetFetcher(Planted(), True, list, False)
            self.fetch: Any = None

        def __getitem__(self, index: int) -> Any:
            return self.fetch(self.inner, [index, index])

    dataset = Nested()
    worker = Worker(dataset)
    dataset.fetch = worker.measured
    worker.fetch(0, 1)
    assert worker.read().occupancy == DurationStats(
        count=1, total_s=4.0, mean_s=4.0, p50_s=4.0, p95_s=4.0
    )


def test_samples_of_an_iterable_dataset_are_passed_on_untouched():
    slot = make_private_slot()
    probe = FetchProbe(slot, cpu_between_ends=True, clock=CLOCK, cpu_clock=CPU)
    fetch = probe.wrap(_IterableDatasetFetcher.fetch)
    fetcher = _IterableDatasetFetcher(range(3), True, list, False)
    assert fetch(fetcher, [None, None]) == [0, 1]
    assert fetch(fetcher, [None, None]) == [2]
    with pytest.raises(StopIteration):
        fetch(fetcher, [None, None])
    reader, tally = InsideReader([slot]), InsideTally()
    reader.collect(tally)
    figures = tally.drain()
    assert figures is not None
    assert (figures.worker_batches, figures.slowest) == ((2,), ())


def test_a_dataset_that_makes_whole_batches_is_asked_for_them():
    class Batched:
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [10 * index for index in indices]

    worker = Worker(Batched())
    assert worker.fetch(1, 2) == [10, 20]
    assert worker.read().slowest == ()


def test_more_kinds_of_transforms_than_there_are_rows_are_left_out():
    worker = Worker(WithPipeline())
    kinds = [type(f'Kind{number}', (Named,), {}) for number in range(60)]
    worker.fetcher.dataset.transforms = [kind(1.0) for kind in kinds]
    worker.fetch(0)
    worker.fetch(1)
    assert len(worker.read().transforms) == board.ROWS


def test_the_transforms_of_very_many_workers_are_read_in_turns_and_none_is_lost():
    workers = [Worker(WithPipeline()) for _ in range(100)]
    reader = InsideReader([worker.slot for worker in workers])
    tally, timed = InsideTally(), 0
    for worker in workers:
        worker.fetch(0)
        worker.fetch(1)
    for round_ in itertools.count():
        reader.collect(tally)
        workers[0].fetch(0)
        figures = tally.drain()
        if figures is None or round_ > 10:
            break
        timed += figures.timed_samples
    assert timed >= 100
