"""What the probe knows of real loaders with real workers, and that it harms none."""

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
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from fakes import loaders as planted
from fakes.loaders import Loop, open_loops
from mmgpu_hooks.measure.loader.processes import WorkersMemory
from mmgpu_hooks.measure.loader.worker import FetchProbe


@pytest.fixture
def loop() -> Iterator[Any]:
    with open_loops() as build:
        yield build


def near(seconds: float) -> Any:
    """Within 5 percent or 2 ms."""
    return pytest.approx(seconds, rel=0.05, abs=0.002)


@pytest.mark.timing
@pytest.mark.parametrize('workers', [0, 2])
def test_time_and_cpu_per_batch_are_what_was_planted(loop, workers: int):
    medians = []
    for burn_s in (0.005, 0.02):
        dataset = planted.Costly(96, burn_s=burn_s, sleep_s=0.005)
        one = loop(dataset, batch_size=4, num_workers=workers)
        # a sleep ends late on a busy machine: the samples say what they took
        took = [float(batch['took_s'].sum()) for batch in one.run_epoch()]
        window = one.read()
        assert window.occupancy.count == window.batch_cpu.count == 24
        assert window.occupancy.p50_s == near(statistics.median(took))
        medians.append(window.batch_cpu.p50_s)
    assert medians[1] - medians[0] == near(4 * 0.015)
    # handing a batch over costs CPU as well
    assert medians[1] >= 0.99 * 4 * 0.02


@pytest.mark.timing
@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='clocks of threads')
@pytest.mark.parametrize('shape', [(1,), (5_000_000,)])
def test_sending_a_batch_is_no_part_of_the_fetch(loop, shape):
    dataset = planted.Costly(24, burn_s=0.005, shape=shape)
    one = loop(dataset, batch_size=4, num_workers=1, collate_fn=list)
    one.run_epoch()
    window = one.read()
    sent_s = window.batch_cpu.mean_s - window.fetch_cpu_s
    assert window.fetch_cpu_s >= 0.99 * 4 * 0.005
    # MMEngine's way to collate leaves 80 MB to be copied to shared memory
    assert (sent_s > 0.008) if shape[0] > 1 else (0.0 < sent_s < 0.008)
    local = loop(planted.Costly(8, burn_s=0.005), batch_size=4)
    local.run_epoch()
    window = local.read()
    assert window.fetch_cpu_s == pytest.approx(window.batch_cpu.mean_s)


@pytest.mark.parametrize('persistent', [False, True])
def test_workers_that_restart_are_followed(loop, persistent: bool):
    workers = dict(num_workers=2, persistent_workers=persistent)
    one = loop(planted.Costly(12, burn_s=0.005), batch_size=2, **workers)
    for _ in range(2):
        one.run_epoch()
        window = one.read()
        assert (window.count, window.occupancy.count) == (2, 6)
        assert one.probe.read_contents(6).images == 12
    one.run_epoch()
    one.run_epoch()
    window = one.read()  # an interval over two epochs holds both
    assert (window.count, window.occupancy.count) == (2, 12)
    assert window.cpu_s >= 0.95 * 2 * 12 * 0.005
    assert window.affinity_cpus == len(os.sched_getaffinity(0))
    assert one.probe.read_contents(12).images == 24
    assert one.events == ['begin', 'end'] * (1 if persistent else 4)


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('is_held', [False, True])
def test_an_iterator_of_the_users_own_meanwhile_disturbs_nothing(
    loop, workers: int, is_held: bool
):
    one = loop(planted.Costly(60), batch_size=2, num_workers=workers)
    one.iterator = iter(one.loader)
    one.take(4)
    peeks = [iter(one.loader) for _ in range(2)]
    if not is_held:
        peeks.clear()
    one.take(12)
    assert one.read().count >= workers
    assert one.probe.read_contents(16).images == 32
    one.take(4)
    one.read()
    assert one.probe.read_contents(4).images == 8
    assert set(one.probe.read_contents(3)) == {None}  # others were taken
    for peek in peeks:
        getattr(peek, '_shutdown_workers', int)()


def test_a_creation_that_fails_is_the_loaders_error_and_the_probe_goes_on(
    loop, monkeypatch
):
    one = loop(planted.Costly(60), batch_size=2, num_workers=1)
    one.iterator = iter(one.loader)
    one.take(4)

    def fail(*_: Any) -> None:
        raise OSError('no processes left')

    with monkeypatch.context() as patch:
        patch.setattr('multiprocessing.context.ForkProcess.start', fail)
        patch.setattr('multiprocessing.process.BaseProcess.start', fail)
        with pytest.raises(OSError, match='no processes'):
            iter(one.loader)
    assert one.loader.worker_init_fn is None
    one.take(4)
    assert one.read().count == 1
    assert one.probe.read_contents(8).images == 16


def test_of_more_batches_than_the_ring_holds_the_newest_count(loop, monkeypatch):
    monkeypatch.setattr('mmgpu_hooks.measure.loader.counters.RING', 16)
    one = loop(planted.Costly(100), batch_size=2, num_workers=2)
    one.iterator = iter(one.loader)
    one.take(40)
    assert one.read().occupancy.count >= 40
    assert one.probe.read_contents(40).images is None
    one.take(10)
    one.read()
    assert one.probe.read_contents(10).images == 20


def test_memory_is_read_every_five_minutes_and_no_more_where_it_takes_long(
    loop, monkeypatch
):
    one = loop(planted.Costly(40), num_workers=2, persistent_workers=True)
    one.run_epoch()
    probe, now_s = one.probe, [one.probe._clock()]
    monkeypatch.setattr(probe, '_clock', lambda: now_s[0])
    probe.read_memory()
    size = one.read().pss_bytes
    assert size is not None and size > 1 << 20
    assert not probe.is_memory_due
    now_s[0] += 300.0
    monkeypatch.setattr(
        probe.processes, 'read_pss_bytes', lambda clock: WorkersMemory(1024, True)
    )
    probe.read_memory()
    one.run_epoch()
    assert one.read().pss_bytes == 1024
    now_s[0] += 1e6
    assert not probe.is_memory_due


def kill_and_wait(worker: int) -> None:
    """PyTorch's signal handler ends the sleep."""
    os.kill(worker, signal.SIGKILL)
    time.sleep(60)


def test_a_killed_worker_is_the_loaders_error_and_reading_goes_on(loop):
    one = loop(planted.Costly(1000, sleep_s=0.005), num_workers=2)
    one.iterator = iter(one.loader)
    one.take(4)
    with pytest.raises(RuntimeError, match='DataLoader worker'):
        kill_and_wait(one.iterator._workers[1].pid)
    # PyTorch would raise for it again at the end of any child, be it in pytest's midst
    signal_handling._remove_worker_pids(id(one.iterator))
    one.iterator._worker_pids_set = False
    assert one.read().occupancy.count >= 4
    one.iterator._shutdown_workers()
    one.iterator = iter(one.loader)
    one.take(1)
    one.read()


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
def test_every_kind_of_dataset(loop, workers, dataset, options, batches):
    one = loop(dataset, num_workers=workers, **options)
    expected = list(DataLoader(dataset, num_workers=workers, **options))
    assert [str(batch) for batch in one.run_epoch()] == [str(b) for b in expected]
    assert one.read().occupancy.count == batches
    assert one.probe.unsupported == {}


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
    loop, monkeypatch, target: str, failure: Any
):
    monkeypatch.setattr(target, failure)  # the workers inherit it
    one = loop(planted.Costly(8), num_workers=1)
    for _ in range(2):
        assert len(one.run_epoch()) == 8
        window = one.read()
    assert (window.count, window.occupancy) == (1, None)
    reason = one.probe.inside_failure or ''
    assert 'a bug of ours' in reason or 'no memory' in reason
    assert one.probe.unsupported == {}


@pytest.mark.parametrize('has_call', [False, True])
def test_a_stack_that_cannot_be_offered_costs_no_figure(loop, monkeypatch, has_call):
    # a Python built against an old C library does not have it
    monkeypatch.delattr('os.memfd_create')
    if has_call:
        monkeypatch.setattr('os.memfd_create', _fail, raising=False)
    one = loop(planted.Costly(8), num_workers=1)
    assert len(one.run_epoch()) == 8
    assert one.read().occupancy.count == 8
    assert one.probe.inside_failure is None


@pytest.mark.parametrize('workers', [0, 1])
def test_an_iterator_that_was_there_before_us(workers: int):
    loader = DataLoader(planted.Costly(8, sleep_s=0.001), num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    one = Loop(loader)
    one.probe.watch_running(iterator)
    one.waits.follow(iterator)
    one.iterator = iterator
    one.take(4)
    window = one.read()
    if workers:
        assert (window.count, window.occupancy) == (1, None)
    else:  # this process is in reach
        assert window.occupancy.count == 4
    del iterator
    assert len(one.run_epoch()) == 8
    assert one.read().occupancy.count == 8
    one.close()


@pytest.mark.parametrize('change', ['laid over', 'deleted'])
def test_what_others_did_where_iterators_are_made_stays(change: str):
    loader = DataLoader(planted.Costly(8))
    one = Loop(loader)
    ours = loader._get_iterator

    def theirs() -> Any:
        return ours()

    if change == 'deleted':
        del loader._get_iterator
    else:
        loader._get_iterator = theirs
    assert len(one.run_epoch()) == 8
    one.close()
    assert vars(loader).get('_get_iterator') is (
        theirs if change == 'laid over' else None
    )
    events = list(one.events)
    assert len(one.run_epoch()) == 8
    assert one.events == events


@pytest.mark.parametrize('loader', [[1, 2, 3], iter([1]), object()])
def test_a_loader_of_another_kind_is_left_alone(loader: Any):
    one = Loop(loader)
    one.probe.read_memory()
    assert one.probe.read() is None
    assert type(loader).__name__ in one.probe.unsupported['loader workers']
    one.probe.close()


def test_a_failure_of_ours_is_kept_from_the_loader(loop, monkeypatch):
    one, kept = loop(planted.Costly(4)), []

    def run(function: Any, *args: Any) -> None:
        with pytest.raises(ValueError, match='a bug of ours') as raised:
            function(*args)
        kept.append(raised)

    one.probe._run = run
    monkeypatch.setattr(one.probe, '_collect', _fail)
    assert len(one.run_epoch()) == 4
    assert kept
    assert one.events == ['begin', 'end']


def test_copies_and_pickles_of_a_watched_loader_hold_nothing_of_ours(loop):
    one = loop(planted.Texts(), batch_size=2)
    next(iter(one.loader))
    assert b'mmgpu_hooks' not in pickle.dumps(one.loader)
    assert b'mmgpu_hooks' not in pickle.dumps(one.loader.dataset)
    events = list(one.events)
    for twin in (copy.deepcopy(one.loader), pickle.loads(pickle.dumps(one.loader))):
        assert list(twin) == list(DataLoader(planted.Texts(), batch_size=2))
    assert one.events == events


@pytest.mark.parametrize('workers', [0, 1])
def test_a_closed_probe_leaves_everything_as_it_was(workers: int):
    loader = DataLoader(
        planted.Texts(), num_workers=workers, persistent_workers=workers > 0
    )
    before = dict(vars(loader))
    one = Loop(loader)
    iterator = iter(loader)
    next(iterator)
    fetcher = getattr(iterator, '_dataset_fetcher', None)
    assert fetcher is None or 'fetch' in vars(fetcher)
    one.read()
    one.close()
    one.close()
    assert fetcher is None or 'fetch' not in vars(fetcher)
    assert fetcher is None or fetcher.dataset is loader.dataset
    assert len(list(iterator)) == 7
    loader._iterator = None
    assert dict(vars(loader)) == before
    assert one.probe.read() is None
    assert FetchProbe.__name__ not in repr(vars(loader))
