"""Tests the loader probe on real loaders with workers, which it must not harm."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from mmengine.dataset import BaseDataset
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils import signal_handling

from fakes import loaders as planted
from fakes.loaders import Loop, open_loops
from mmgpu_hooks.measure.loader.processes import WorkersMemory
from mmgpu_hooks.measure.loader.switch import LoaderSwitch
from mmgpu_hooks.measure.loader.worker import FetchProbe
from mmgpu_hooks.measure.loop_listener import LoopListener
from mmgpu_hooks.schema.recorded import TunedSettings


@pytest.fixture
def open_loop() -> Iterator[Any]:
    with open_loops() as build:
        yield build


def near(seconds: float) -> Any:
    """Returns an approximate value for comparison: within 5 per cent or 2 ms."""
    return pytest.approx(seconds, rel=0.05, abs=0.002)


@pytest.mark.timing
@pytest.mark.parametrize('workers', [0, 2])
def test_time_and_cpu_per_batch_are_what_was_planted(open_loop, workers: int):
    medians = []
    for burn_s in (0.005, 0.02):
        dataset = planted.Costly(96, burn_s=burn_s, sleep_s=0.005)
        loop = open_loop(dataset, batch_size=4, num_workers=workers)
        # a sleep ends late on a busy machine: the samples say what they took
        took = [float(batch['took_s'].sum()) for batch in loop.run_epoch()]
        window = loop.read()
        assert window.batch_time.count == window.batch_cpu.count == 24
        assert window.batch_time.p50_s == near(statistics.median(took))
        medians.append(window.batch_cpu.p50_s)
    assert medians[1] - medians[0] == near(4 * 0.015)
    # handing a batch over costs CPU as well
    assert medians[1] >= 0.99 * 4 * 0.02


@pytest.mark.timing
@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='clocks of threads')
@pytest.mark.parametrize('shape', [(1,), (5_000_000,)])
def test_sending_a_batch_is_no_part_of_the_fetch(open_loop, shape):
    dataset = planted.Costly(24, burn_s=0.005, shape=shape)
    loop = open_loop(dataset, batch_size=4, num_workers=1, collate_fn=list)
    loop.run_epoch()
    window = loop.read()
    sent_s = window.batch_cpu.mean_s - window.fetch_cpu_s
    assert window.fetch_cpu_s >= 0.99 * 4 * 0.005
    # MMEngine's way to collate leaves 80 MB to be copied to shared memory
    assert (sent_s > 0.008) if shape[0] > 1 else (0.0 < sent_s < 0.008)
    local = open_loop(planted.Costly(8, burn_s=0.005), batch_size=4)
    local.run_epoch()
    window = local.read()
    assert window.fetch_cpu_s == pytest.approx(window.batch_cpu.mean_s)


@pytest.mark.parametrize('persistent', [False, True])
def test_workers_that_restart_are_followed(open_loop, persistent: bool):
    workers = dict(num_workers=2, persistent_workers=persistent)
    loop = open_loop(planted.Costly(12, burn_s=0.005), batch_size=2, **workers)
    for _ in range(2):
        loop.run_epoch()
        window = loop.read()
        assert (window.count, window.batch_time.count) == (2, 6)
        assert loop.probe.read_contents(6).images == 12
    loop.run_epoch()
    loop.run_epoch()
    window = loop.read()  # an interval over two epochs holds both
    assert (window.count, window.batch_time.count) == (2, 12)
    assert window.cpu_s >= 0.95 * 2 * 12 * 0.005
    assert window.affinity_cpus == len(os.sched_getaffinity(0))
    assert loop.probe.read_contents(12).images == 24
    assert loop.events == ['begin', 'end'] * (1 if persistent else 4)


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('is_held', [False, True])
def test_an_iterator_of_the_users_own_meanwhile_disturbs_nothing(
    open_loop, workers: int, is_held: bool
):
    loop = open_loop(planted.Costly(60), batch_size=2, num_workers=workers)
    loop.iterator = iter(loop.loader)
    loop.take(4)
    peeks = [iter(loop.loader) for _ in range(2)]
    if not is_held:
        peeks.clear()
    loop.take(12)
    assert loop.read().count >= workers
    assert loop.probe.read_contents(16).images == 32
    loop.take(4)
    loop.read()
    assert loop.probe.read_contents(4).images == 8
    assert set(loop.probe.read_contents(3)) == {None}  # others were taken
    for peek in peeks:
        getattr(peek, '_shutdown_workers', int)()


def test_a_creation_that_fails_is_the_loaders_error_and_the_probe_goes_on(
    open_loop, monkeypatch
):
    loop = open_loop(planted.Costly(60), batch_size=2, num_workers=1)
    loop.iterator = iter(loop.loader)
    loop.take(4)

    def fail(*_: Any) -> None:
        raise OSError('no processes left')

    with monkeypatch.context() as patch:
        patch.setattr('multiprocessing.context.ForkProcess.start', fail)
        patch.setattr('multiprocessing.process.BaseProcess.start', fail)
        with pytest.raises(OSError, match='no processes'):
            iter(loop.loader)
    assert loop.loader.worker_init_fn is None
    loop.take(4)
    assert loop.read().count == 1
    assert loop.probe.read_contents(8).images == 16


def test_of_more_batches_than_the_ring_holds_the_newest_count(open_loop, monkeypatch):
    monkeypatch.setattr('mmgpu_hooks.measure.loader.counters.RING', 16)
    loop = open_loop(planted.Costly(100), batch_size=2, num_workers=2)
    loop.iterator = iter(loop.loader)
    loop.take(40)
    assert loop.read().batch_time.count >= 40
    assert loop.probe.read_contents(40).images is None
    loop.take(10)
    loop.read()
    assert loop.probe.read_contents(10).images == 20


def test_memory_is_read_every_five_minutes_and_no_more_where_it_takes_long(
    open_loop, monkeypatch
):
    loop = open_loop(planted.Costly(40), num_workers=2, persistent_workers=True)
    loop.run_epoch()
    probe, now_s = loop.probe, [loop.probe._clock()]
    monkeypatch.setattr(probe, '_clock', lambda: now_s[0])
    probe.read_memory()
    size = loop.read().pss_bytes
    assert size is not None and size > 1 << 20
    assert not probe.is_memory_due
    now_s[0] += 300.0
    monkeypatch.setattr(
        probe.processes, 'read_pss_bytes', lambda clock: WorkersMemory(1024, True)
    )
    probe.read_memory()
    loop.run_epoch()
    assert loop.read().pss_bytes == 1024
    now_s[0] += 1e6
    assert not probe.is_memory_due


def kill_and_wait(worker: int) -> None:
    """Kills a worker, and sleeps until PyTorch's signal handler interrupts."""
    os.kill(worker, signal.SIGKILL)
    time.sleep(60)


def test_a_killed_worker_is_the_loaders_error_and_reading_goes_on(open_loop):
    loop = open_loop(planted.Costly(1000, sleep_s=0.005), num_workers=2)
    loop.iterator = iter(loop.loader)
    loop.take(4)
    with pytest.raises(RuntimeError, match='DataLoader worker'):
        kill_and_wait(loop.iterator._workers[1].pid)
    # PyTorch would raise for it again at the end of any child, be it in pytest's midst
    signal_handling._remove_worker_pids(id(loop.iterator))
    loop.iterator._worker_pids_set = False
    assert loop.read().batch_time.count >= 4
    loop.iterator._shutdown_workers()
    loop.iterator = iter(loop.loader)
    loop.take(1)
    loop.read()


@pytest.mark.parametrize('workers', [0, 1])
@pytest.mark.parametrize(
    ('dataset', 'options', 'batches'),
    [
        (planted.Counting(), dict(batch_size=4), 3),
        (planted.Counting(), dict(batch_size=None), 10),
        (planted.Texts(), dict(batch_size=None), 8),
        (planted.Texts(), dict(batch_size=2), 4),
        (planted.Piped(planted.Double()), dict(batch_size=2), 4),
    ],
)
def test_every_kind_of_dataset(open_loop, workers, dataset, options, batches):
    loop = open_loop(dataset, num_workers=workers, **options)
    expected = list(DataLoader(dataset, num_workers=workers, **options))
    assert [str(batch) for batch in loop.run_epoch()] == [str(b) for b in expected]
    assert loop.read().batch_time.count == batches
    assert loop.probe.unsupported == {}


class Listed(BaseDataset):
    """Data set of MMEngine that asks its probe which image is being loaded."""

    def __init__(self) -> None:
        super().__init__(lazy_init=True, serialize_data=False)
        self.data_list = [{'img_path': f'{number}.jpg'} for number in range(4)]
        self._fully_initialized = True
        self.probe: Any = None
        self.seen: list[str | None] = []

    def __getitem__(self, index: int) -> int:
        self.get_data_info(index)
        if get_worker_info() is None:
            self.seen.append(self.probe.find_owed().sample.image)
        return index


@pytest.mark.parametrize('is_endless', [False, True])
@pytest.mark.parametrize('after', [0, 1])
def test_a_method_of_the_data_set_is_replaced_once_in_all_passes(
    open_loop, is_endless: bool, after: int
):
    dataset, own = Listed(), BaseDataset.get_data_info
    loop = open_loop(dataset, batch_size=2)
    dataset.probe = loop.probe
    for _ in range(3):
        # MMEngine's endless loop holds the last iterator while it makes the next one
        loop.iterator = loop.iterator if is_endless else None
        loop.run_epoch()
        assert BaseDataset.get_data_info.__wrapped__ is own
    assert dataset.seen == 3 * ['0.jpg', '1.jpg', '2.jpg', '3.jpg']
    LoaderSwitch(loop.loader).switch_between(TunedSettings(num_workers=after), 1)
    for _ in range(2):
        loop.run_epoch()
    loop.close()
    assert BaseDataset.get_data_info is own


def test_while_workers_take_over_the_old_ones_owe_the_next_batch(open_loop):
    loop = open_loop(planted.Costly(40), batch_size=2, num_workers=2)
    loop.iterator = iter(loop.loader)
    loop.take(1)
    old = {worker.pid for worker in loop.iterator._workers}
    switch = LoaderSwitch(loop.loader)
    switch.switch_within(loop.iterator, TunedSettings(num_workers=3), 1)
    assert loop.probe.find_owed().pid in old
    # what two workers had in hand, and one more
    loop.take(5)
    assert loop.probe.find_owed().pid in set(loop.probe.processes.pids) - old
    assert len(list(loop.iterator)) == 14


def _no_memory(*_: Any) -> None:
    raise OSError('no memory to share')


def _fail(*_: Any) -> None:
    raise ValueError('a bug of ours')


@pytest.mark.parametrize(
    ('target', 'failure'),
    [
        ('mmgpu_hooks.measure.loader.worker.Counters', _no_memory),
        ('mmgpu_hooks.measure.loader.worker.FetchProbe._end', _fail),
    ],
)
def test_after_a_failure_inside_workers_are_seen_from_outside(
    open_loop, monkeypatch, target: str, failure: Any
):
    monkeypatch.setattr(target, failure)  # the workers inherit it
    loop = open_loop(planted.Costly(8), num_workers=1)
    for _ in range(2):
        assert len(loop.run_epoch()) == 8
        window = loop.read()
    assert (window.count, window.batch_time) == (1, None)
    reason = loop.probe.inside_failure or ''
    assert 'a bug of ours' in reason or 'no memory' in reason
    assert loop.probe.unsupported == {}


@pytest.mark.parametrize('has_call', [False, True])
def test_a_stack_that_cannot_be_offered_costs_no_figure(
    open_loop, monkeypatch, has_call
):
    # a Python built against an old C library does not have it
    monkeypatch.delattr('os.memfd_create')
    if has_call:
        monkeypatch.setattr('os.memfd_create', _fail, raising=False)
    loop = open_loop(planted.Costly(8), num_workers=1)
    assert len(loop.run_epoch()) == 8
    assert loop.read().batch_time.count == 8
    assert loop.probe.inside_failure is None


@pytest.mark.parametrize('workers', [0, 1])
def test_an_iterator_that_was_there_before_us(workers: int):
    loader = DataLoader(planted.Costly(8, sleep_s=0.001), num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    loop = Loop(loader)
    loop.probe.watch_running(iterator)
    loop.waits.follow(iterator)
    loop.iterator = iterator
    loop.take(4)
    window = loop.read()
    if workers:
        assert (window.count, window.batch_time) == (1, None)
    else:  # this process is in reach
        assert window.batch_time.count == 4
    del iterator
    assert len(loop.run_epoch()) == 8
    assert loop.read().batch_time.count == 8
    loop.close()


@pytest.mark.parametrize('change', ['laid over', 'deleted'])
def test_what_others_did_where_iterators_are_made_stays(change: str):
    loader = DataLoader(planted.Costly(8))
    loop = Loop(loader)
    ours = loader._get_iterator

    def theirs() -> Any:
        return ours()

    if change == 'deleted':
        del loader._get_iterator
    else:
        loader._get_iterator = theirs
    assert len(loop.run_epoch()) == 8
    loop.close()
    assert vars(loader).get('_get_iterator') is (
        theirs if change == 'laid over' else None
    )
    events = list(loop.events)
    assert len(loop.run_epoch()) == 8
    assert loop.events == events


@pytest.mark.parametrize('loader', [[1, 2, 3], iter([1]), object()])
def test_a_loader_of_another_kind_is_left_alone(loader: Any):
    loop = Loop(loader)
    loop.probe.read_memory()
    assert loop.probe.read() is None
    assert type(loader).__name__ in loop.probe.unsupported['loader workers']
    loop.probe.close()


def test_a_failure_of_ours_is_kept_from_the_loader(open_loop, monkeypatch):
    loop, kept = open_loop(planted.Costly(4)), []

    def run(function: Any, *args: Any) -> None:
        with pytest.raises(ValueError, match='a bug of ours') as raised:
            function(*args)
        kept.append(raised)

    loop.probe._run = run
    monkeypatch.setattr(loop.probe, '_collect', _fail)
    assert len(loop.run_epoch()) == 4
    assert kept
    assert loop.events == ['begin', 'end']


def test_copies_and_pickles_of_a_watched_loader_hold_nothing_of_ours(open_loop):
    loop = open_loop(planted.Texts(), batch_size=2)
    next(iter(loop.loader))
    assert b'mmgpu_hooks' not in pickle.dumps(loop.loader)
    assert b'mmgpu_hooks' not in pickle.dumps(loop.loader.dataset)
    events = list(loop.events)
    for twin in (copy.deepcopy(loop.loader), pickle.loads(pickle.dumps(loop.loader))):
        assert list(twin) == list(DataLoader(planted.Texts(), batch_size=2))
    assert loop.events == events


class Late(LoopListener):
    """Loop listener that records the iterators it is told of."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_iterator_begin(self) -> None:
        self.heard.append('begin')

    def on_iterator_end(self, iterator: Any) -> None:
        self.heard.append('end' if iterator is not None else 'nothing')

    def on_iterator_failure(self, error: Exception) -> bool:
        self.heard.append(str(error))
        return True


def test_a_loader_that_is_handed_over_tells_its_new_listener_alone(open_loop):
    loop, late = open_loop(planted.Costly(4), batch_size=2), Late()
    loop.run_epoch()
    loop.probe.hand_over(late)
    loop.run_epoch()
    assert loop.events == late.heard == ['begin', 'end']


class Refusing(DataLoader):
    """DataLoader whose first iterator cannot be made."""

    refusals = 1

    def _get_iterator(self) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise OSError('no room')
        return super()._get_iterator()


def test_a_loader_tries_once_more_where_its_listener_says_so():
    late = Late()
    loop = Loop(Refusing(planted.Costly(4), batch_size=2))
    loop.probe.hand_over(late)
    assert len(loop.run_epoch()) == 2
    assert late.heard == ['begin', 'nothing', 'no room', 'begin', 'end']
    loop.close()


def test_a_loader_that_is_not_to_try_again_raises_what_it_raised():
    loop = Loop(Refusing(planted.Costly(4), batch_size=2))
    with pytest.raises(OSError, match='no room'):
        loop.run_epoch()
    loop.close()


@pytest.mark.parametrize('workers', [0, 1])
def test_a_closed_probe_leaves_everything_as_it_was(workers: int):
    loader = DataLoader(
        planted.Texts(), num_workers=workers, persistent_workers=workers > 0
    )
    before = dict(vars(loader))
    loop = Loop(loader)
    iterator = iter(loader)
    next(iterator)
    fetcher = getattr(iterator, '_dataset_fetcher', None)
    assert fetcher is None or 'fetch' in vars(fetcher)
    loop.read()
    loop.close()
    loop.close()
    assert fetcher is None or 'fetch' not in vars(fetcher)
    assert fetcher is None or fetcher.dataset is loader.dataset
    assert len(list(iterator)) == 7
    loader._iterator = None
    assert dict(vars(loader)) == before
    assert loop.probe.read() is None
    assert FetchProbe.__name__ not in repr(vars(loader))
