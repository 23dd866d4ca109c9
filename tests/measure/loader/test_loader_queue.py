from __future__ import annotations

import multiprocessing
import threading
import time
import weakref
from types import SimpleNamespace

import pytest
from torch.utils.data import DataLoader

from fakes.loader_datasets import Gated, Texts
from mmgpu_hooks.measure.loader.queue import QueueWatch

pytestmark = pytest.mark.timing


def wait_for_ready(iterator, count: int) -> None:
    deadline = time.perf_counter() + 20
    while iterator._data_queue.qsize() < count:
        assert time.perf_counter() < deadline
        time.sleep(0.001)


def note_early(iterator) -> list[int]:
    """Batches that the loader takes from its queue before their turn."""
    early: list[int] = []
    take = iterator._try_get_data

    def noting(*args, **kwargs):
        success, data = take(*args, **kwargs)
        if success and data[0] != iterator._rcvd_idx:
            early.append(data[0])
        return success, data

    iterator._try_get_data = noting
    return early


def test_batches_that_stand_ready_and_that_come_early_are_counted():
    gates = [multiprocessing.Event() for _ in range(6)]
    # worker 0 has the even batches and waits for the first; worker 1 the odd ones
    for index in (1, 3):
        gates[index].set()
    loader = DataLoader(Gated(gates), batch_size=1, num_workers=2, prefetch_factor=2)
    iterator = iter(loader)
    early = note_early(iterator)
    watch = QueueWatch()
    watch.watch(iterator)

    def take() -> int:
        watch.ask()
        batch = next(iterator)
        watch.got()
        return int(batch)

    wait_for_ready(iterator, 2)
    opener = threading.Timer(0.2, gates[0].set)
    opener.start()
    assert [take(), take()] == [0, 1]  # at both asks 1 and 3 are there
    assert watch.drain() == (2, 2.0, 0.0, len(early))
    assert early
    opener.join()

    before = len(early)
    gates[2].set()
    assert [take(), take()] == [2, 3]
    watch.ask()  # nothing stands ready: 4 and 5 are not made
    gates[4].set()
    gates[5].set()
    assert int(next(iterator)) == 4
    watch.got()
    asks, _, ready_zero_pct, out_of_order = watch.drain()
    assert asks == 3
    assert ready_zero_pct == pytest.approx(100 / 3)
    assert out_of_order == len(early) - before
    assert list(iterator) == [5]
    assert watch.drain() == (0, None, None, None)


@pytest.mark.parametrize('persistent', [False, True])
def test_an_ask_that_ends_an_epoch_is_not_counted(persistent: bool):
    loader = DataLoader(
        Texts(), batch_size=2, num_workers=1, persistent_workers=persistent
    )
    watch = QueueWatch()
    watched = None
    for _ in range(2):
        iterator = iter(loader)
        if iterator is not watched:
            watched = iterator
            watch.watch(iterator)
        for _ in iterator:
            watch.got()
            if iterator._rcvd_idx < 4:
                wait_for_ready(iterator, 1)
            watch.ask()  # after the last batch none stands ready
    asks, ready_mean, ready_zero_pct, _ = watch.drain()
    assert asks >= 6
    assert ready_mean is not None
    assert ready_mean >= 1.0
    assert ready_zero_pct == 0.0


def test_the_watch_keeps_no_iterator_alive():
    watch = QueueWatch()
    iterator = iter(DataLoader(Texts(), num_workers=1))
    watch.watch(iterator)
    watch.ask()
    iterator._shutdown_workers()
    alive = weakref.ref(iterator)
    del iterator
    assert alive() is None
    watch.got()
    watch.ask()
    watch.got()
    assert watch.drain() == (0, None, None, None)


def test_a_loader_without_workers_has_no_queue_and_nothing_is_wrong():
    watch = QueueWatch()
    watch.watch(iter(DataLoader(Texts())))
    watch.ask()
    watch.got()
    assert watch.drain() == (0, None, None, None)
    assert watch.unsupported is None


def test_a_queue_that_does_not_tell_its_size_is_unknown_with_a_reason():
    def qsize() -> int:  # macOS
        raise NotImplementedError

    queue = SimpleNamespace(qsize=qsize)
    watch = QueueWatch()
    watch.watch(SimpleNamespace(_data_queue=queue, _task_info={}, _tasks_outstanding=0))
    watch.ask()
    watch.got()
    assert watch.drain() == (0, None, None, None)
    assert watch.unsupported is not None
    assert 'NotImplementedError' in watch.unsupported
