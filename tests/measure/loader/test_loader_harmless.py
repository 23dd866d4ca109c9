"""A probe changes nothing of a loader, and no failure of its own reaches it."""

from __future__ import annotations

import copy
import os
import pickle
import random
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from fakes import loader_datasets as planted
from fakes.loader_loop import Loop, open_loops
from fakes.open_files import kept_files
from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.loader.probe import LoaderProbe
from mmgpu_hooks.measure.loader.worker import FetchProbe


@pytest.fixture
def loop() -> Iterator[Any]:
    with open_loops() as build:
        yield build


def _flat(batches: Any) -> list[list[list[float]]]:
    return [[column.tolist() for column in batch] for batch in batches]


def test_the_users_own_init_function_runs_first_and_stays_the_loaders(loop):
    def init(worker_id: int) -> None:
        random.seed(worker_id)
        torch.manual_seed(100 + worker_id)

    options = dict(num_workers=2, worker_init_fn=init)
    one = loop(planted.Random(), **options)
    assert _flat(one.run_epoch()) == _flat(DataLoader(planted.Random(), **options))
    assert one.loader.worker_init_fn is init
    one.iterator = iter(one.loader)
    assert one.iterator._worker_init_fn is init


@pytest.mark.parametrize('workers', [0, 2])
def test_batches_and_random_numbers_are_the_same_as_without(loop, workers: int):
    def shuffled(probed: bool) -> Any:
        random.seed(3)
        torch.manual_seed(3)
        options = dict(batch_size=2, shuffle=True, num_workers=workers)
        if probed:
            return loop(planted.Random(), **options).run_epoch()
        return DataLoader(planted.Random(), **options)

    assert _flat(shuffled(True)) == _flat(shuffled(False))


@pytest.mark.parametrize('workers', [0, 1])
def test_the_datasets_own_error_surfaces_as_it_would_without(loop, workers: int):
    errors = []
    for is_probed in (True, False):
        one = loop(planted.Raising(8), batch_size=2, num_workers=workers)
        if not is_probed:
            one.probe.close()
        with pytest.raises(KeyError) as caught:
            one.run_epoch()
        errors.append(caught)
    with_probe, without = errors
    assert type(with_probe.value) is type(without.value)
    if sys.version_info >= (3, 11):  # earlier, one line of ours is in between
        assert str(with_probe.value) == str(without.value)
        lines = [[str(entry) for entry in error.traceback] for error in errors]
        assert lines[0] == lines[1]


def _kill_and_wait(worker: int) -> None:
    """PyTorch's signal handler ends it.

    To ask for a batch that the worker had sent could be a ConnectionResetError.
    """
    os.kill(worker, signal.SIGKILL)
    time.sleep(60)


def test_a_killed_worker_is_the_loaders_error_and_reading_goes_on(loop):
    one = loop(planted.Costly(1000, sleep_s=0.005), num_workers=2)
    one.iterator = iter(one.loader)
    for _ in range(4):
        next(one.iterator)
    with pytest.raises(RuntimeError, match='DataLoader worker'):
        _kill_and_wait(one.iterator._workers[1].pid)
    # PyTorch would raise for it again at the end of any child, be it in pytest's midst
    signal_handling._remove_worker_pids(id(one.iterator))
    one.iterator._worker_pids_set = False
    window = one.read()
    assert window.occupancy is not None
    assert window.occupancy.count >= 4
    one.iterator._shutdown_workers()
    one.iterator = iter(one.loader)
    assert next(one.iterator) is not None
    one.probe.read()


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
    window = one.read()
    assert window.occupancy is not None
    assert window.occupancy.count == batches
    assert one.probe.unsupported == {}


@pytest.mark.parametrize('workers', [0, 1])
def test_a_failure_of_ours_in_a_worker_is_told_and_training_goes_on(
    loop, workers: int, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: Any) -> None:
        raise ValueError('a bug of ours')

    monkeypatch.setattr(FetchProbe, '_note_batch', fail)  # the workers inherit it
    one = loop(planted.Costly(8), batch_size=2, num_workers=workers)
    assert len(one.run_epoch()) == 4
    one.probe.read()
    assert 'a bug of ours' in (one.probe.inside_failure or '')
    assert one.probe.unsupported == {}


def test_after_a_failure_inside_the_next_workers_are_seen_from_outside(
    loop, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: Any) -> None:
        raise ValueError('a bug of ours')

    one = loop(planted.Costly(8), batch_size=2, num_workers=1)
    with monkeypatch.context() as failing:
        failing.setattr(FetchProbe, '_note_batch', fail)
        one.run_epoch()
    # not read: an epoch shorter than an interval may fail as well
    one.run_epoch()
    assert 'a bug of ours' in (one.probe.inside_failure or '')
    window = one.read()
    assert (window.source, window.worker_batches) == ('outside', ())


def test_workers_that_cannot_be_reached_are_seen_from_outside(
    loop, monkeypatch: pytest.MonkeyPatch
):
    def no_memory(*_: Any) -> None:
        raise OSError('no memory for a board')

    monkeypatch.setattr('mmgpu_hooks.measure.loader.worker.Board', no_memory)
    one = loop(planted.Costly(8), num_workers=1, persistent_workers=True)
    one.run_epoch()
    window = one.read()
    assert (window.source, window.count, window.occupancy) == ('outside', 1, None)
    assert 'no memory' in (one.probe.inside_failure or '')


@pytest.mark.parametrize('workers', [0, 1])
def test_an_iterator_that_was_there_before_us(workers: int):
    loader = DataLoader(planted.Costly(8, sleep_s=0.001), num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    one = Loop(loader)
    one.probe.watch_running(iterator)
    for _ in range(4):
        one.probe.ask()
        next(iterator)
        one.probe.got()
        one.iterations += 1
    window = one.read()
    assert window.iterations == 4
    assert not window.fresh  # what it made ahead is none of ours
    if workers:
        assert (window.source, window.count) == ('outside', 1)
        assert window.occupancy is None
        assert window.ready_mean is not None
    else:  # this process is in reach
        assert window.worker_batches == (4,)
    del iterator
    assert len(one.run_epoch()) == 8
    assert one.read().source == 'inside'
    one.probe.close()


def test_what_somebody_else_put_over_the_creation_stays_and_all_is_closed():
    loader = DataLoader(planted.Costly(8), num_workers=1, persistent_workers=True)
    one = Loop(loader)
    ours = loader._get_iterator
    calls = []

    def theirs() -> Any:
        calls.append('theirs')
        return ours()

    loader._get_iterator = theirs
    one.run_epoch()
    assert kept_files() > 0
    one.probe.close()
    assert kept_files() == 0
    assert loader._get_iterator is theirs
    events = list(one.events)
    one.close()
    loader._iterator = None
    one.iterator = iter(loader)
    assert (calls, one.events) == (['theirs'] * 2, events)
    one.close()


def test_a_creation_attribute_that_is_gone_does_not_keep_files_open():
    loader = DataLoader(planted.Costly(8), num_workers=1, persistent_workers=True)
    one = Loop(loader)
    one.run_epoch()
    del loader._get_iterator
    one.probe.close()
    assert kept_files() == 0
    one.close()


@pytest.mark.parametrize('loader', [[1, 2, 3], iter([1]), object()])
def test_a_loader_of_another_kind_is_left_alone(loader: Any):
    one = Loop(loader)
    one.probe.ask()
    one.probe.got()
    one.probe.read_memory()
    assert one.probe.read() is None
    one.probe.close()


def test_a_creation_that_fails_is_the_loaders_error(loop):
    one = loop(
        planted.Costly(4),
        num_workers=1,
        multiprocessing_context='spawn',
        collate_fn=lambda batch: batch,  # cannot be pickled
    )
    with (
        pytest.warns(UserWarning, match='pickle'),
        pytest.raises((AttributeError, pickle.PicklingError)),
    ):
        iter(one.loader)
    assert one.events == ['begin', 'end']
    assert one.loader.worker_init_fn is None
    assert one.probe.read() is None


def test_listeners_that_fail_are_told_by_the_next_read_and_never_to_the_loader():
    def fail() -> None:
        raise ValueError('a bug of the ledger')

    loader = DataLoader(planted.Costly(4))
    probe = LoaderProbe(loader)
    probe.on_create_begin = fail
    assert len(list(loader)) == 4
    with pytest.raises(SourceError, match='a bug of the ledger'):
        probe.read()
    probe.close()


def test_copies_and_pickles_of_a_watched_loader_hold_nothing_of_ours(loop):
    one = loop(planted.Texts(), batch_size=2)
    iterator = iter(one.loader)
    next(iterator)
    assert b'mmgpu_hooks' not in pickle.dumps(one.loader)
    assert b'mmgpu_hooks' not in pickle.dumps(one.loader.dataset)
    for twin in (
        copy.deepcopy(one.loader),
        pickle.loads(pickle.dumps(one.loader)),
    ):
        events = list(one.events)
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
    if fetcher is not None:
        assert 'fetch' in vars(fetcher)
    one.read()
    assert kept_files() == 2 * workers  # the thread that hands batches over is one
    one.probe.close()
    one.probe.close()
    if fetcher is not None:
        assert 'fetch' not in vars(fetcher)
        assert fetcher.dataset is loader.dataset
    assert len(list(iterator)) == 7
    loader._iterator = None
    assert dict(vars(loader)) == before
    assert kept_files() == 0
    assert one.probe.read() is None
