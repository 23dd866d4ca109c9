"""Tests that a live loader changes its number of workers without losing samples."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import multiprocessing
import multiprocessing.popen_fork
import multiprocessing.process
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.dataset.utils import worker_init_fn
from mmengine.runner import Runner, loops
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    SubsetRandomSampler,
)

from mmgpu_hooks.measure.loader.owed import read_state
from mmgpu_hooks.measure.loader.switch import LoaderSwitch
from mmgpu_hooks.schema.recorded import TunedSettings

BATCHES, SIZE = 26, 4
PERSISTENT = pytest.mark.parametrize('persistent', [False, True])


class Numbers(Dataset):
    """Data set whose samples are their index and their worker's seed."""

    def __init__(self, length: int = BATCHES * SIZE - 1) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        # a tensor, which goes through shared memory
        if torch.utils.data.get_worker_info() is None:
            return index, torch.tensor(-1)
        return index, torch.tensor(torch.initial_seed())


class Kept:
    """DataLoader built as by MMEngine, with a `LoaderSwitch` for its workers.

    Args:
        workers: At the start.
    """

    def __init__(
        self,
        workers: int,
        *,
        persistent: bool = False,
        sampler: dict[str, Any] | None = None,
        dataset: Any = None,
    ) -> None:
        config: dict[str, Any] = {
            'dataset': dataset or Numbers(),
            'sampler': sampler or {'type': 'DefaultSampler', 'shuffle': True},
            'batch_size': SIZE,
            'num_workers': workers,
            'persistent_workers': persistent and workers > 0,
            'collate_fn': {'type': list},
        }
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        self.loader = Runner.build_dataloader(config, seed=7)
        self.switch = LoaderSwitch(self.loader)
        self.persistent = persistent

    def new(self, workers: int, **more: Any) -> TunedSettings:
        persistent = self.persistent and workers > 0
        return TunedSettings(num_workers=workers, persistent_workers=persistent, **more)

    def within(self, live: Any, workers: int, **more: Any) -> None:
        assert self.switch.find_obstacle() is None
        new = self.new(workers)
        assert self.switch.find_obstacle_within(live, new) is None
        self.switch.switch_within(live, new, self.switch.take_salt(5), **more)


def indices(batch: Any) -> list[int]:
    return [index for index, _ in batch]


def seeds(batches: list[Any]) -> set[int]:
    return {int(seed) for batch in batches for _, seed in batch}


@functools.cache
def untouched(epoch: int) -> list[list[int]]:
    """Returns the batches of an epoch of MMEngine's default sampler."""
    loader = Kept(0).loader
    loader.sampler.set_epoch(epoch)
    return [list(batch) for batch in loader.batch_sampler]


def children() -> list[Any]:
    return multiprocessing.active_children()


def list_shared(pids: Sequence[int]) -> set[str]:
    """Returns name prefixes of the given processes' shared memory that still exists."""
    held = [Path('/proc/self/maps').read_text(), *os.listdir('/dev/shm')]
    for name in os.listdir('/proc/self/fd'):
        with contextlib.suppress(OSError):
            held.append(os.readlink(f'/proc/self/fd/{name}'))
    found = re.findall(r'torch_(\d+)_\w+', '\n'.join(held))
    return {f'torch_{pid}' for pid in found if int(pid) in pids}


@pytest.fixture(autouse=True)
def worker_pids(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Ids of a test's processes; asserts that no worker or shared batch outlives it."""
    pids, start = [os.getpid()], multiprocessing.process.BaseProcess.start

    def note(process: Any) -> None:
        start(process)
        pids.append(process.pid)

    monkeypatch.setattr(multiprocessing.process.BaseProcess, 'start', note)
    yield pids
    end_s = time.monotonic() + 5
    while (children() or list_shared(pids)) and time.monotonic() < end_s:
        gc.collect()
        time.sleep(0.01)
    assert children() == []
    assert list_shared(pids) == set()


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the 2 s sleep between two passes of MMEngine's endless iterator."""
    monkeypatch.setattr(loops.time, 'sleep', lambda seconds: None)


def take_epoch(kept: Kept, epoch: int, switch: Callable[[int, Any], None]) -> list[Any]:
    kept.loader.sampler.set_epoch(epoch)
    live, taken = iter(kept.loader), []
    for number, batch in enumerate(live):
        taken.append(batch)
        switch(number, live)
    return taken


def end(kept: Kept) -> None:
    live, kept.loader._iterator = kept.loader._iterator, None
    if live is not None:
        live._shutdown_workers()


@PERSISTENT
@pytest.mark.parametrize(('before', 'after'), [(0, 2), (2, 0), (2, 3), (3, 1)])
def test_order_is_kept_when_workers_change_between_epochs(before, after, persistent):
    kept = Kept(before, persistent=persistent)
    for epoch in range(3):
        if epoch == 1:
            kept.switch.switch_between(kept.new(after), kept.switch.take_salt(26))
        taken = take_epoch(kept, epoch, lambda number, live: None)
        assert [*map(indices, taken)] == untouched(epoch)
        workers = before if epoch == 0 else after
        assert len(seeds(taken)) == max(workers, 1)
    end(kept)


@PERSISTENT
@pytest.mark.parametrize('at', [0, 7, BATCHES - 2, BATCHES - 1])
@pytest.mark.parametrize(('before', 'after'), [(0, 2), (2, 0), (2, 3)])
def test_order_is_kept_when_workers_change_within_an_epoch(
    before, after, persistent, at
):
    kept = Kept(before, persistent=persistent)

    def switch(number: int, live: Any) -> None:
        if number == at and kept.switch.settings.num_workers == before:
            kept.within(live, after)

    for epoch in range(2):
        taken = take_epoch(kept, epoch, switch)
        assert [*map(indices, taken)] == untouched(epoch)
    assert len(seeds(taken)) == max(after, 1)
    end(kept)


def test_workers_begin_to_live_on_when_they_are_asked_to_within_an_epoch():
    kept = Kept(2)
    kept.persistent = True
    pids: list[int] = []

    def switch(number: int, live: Any) -> None:
        if number == 5 and not pids:
            kept.within(live, 3)
            pids.extend(worker.pid for worker in kept.loader._iterator._workers)

    for epoch in range(3):
        assert [*map(indices, take_epoch(kept, epoch, switch))] == untouched(epoch)
        assert [worker.pid for worker in kept.loader._iterator._workers] == pids
    end(kept)


def test_a_second_switch_goes_on_where_the_first_one_began():
    kept, last = Kept(2), None

    def switch(number: int, live: Any) -> None:
        nonlocal last
        if number == 3:
            kept.within(live, 3)
            last = kept.switch._find_relay().heir
        if number == 15:
            kept.within(last, 1)

    taken = take_epoch(kept, 0, switch)
    assert [*map(indices, taken)] == untouched(0)
    del last


def test_memory_for_both_pools_is_not_needed_where_the_old_one_is_drained_first():
    kept, most = Kept(2), []

    def switch(number: int, live: Any) -> None:
        most.append(len(children()))
        if number == 4:
            kept.within(live, 3, is_drained_first=True)

    taken = take_epoch(kept, 0, switch)
    assert [*map(indices, taken)] == untouched(0)
    assert max(most) == 3


@pytest.mark.usefixtures('no_pause')
@pytest.mark.parametrize('at', [0, 7, BATCHES - 1, BATCHES + 3])
@pytest.mark.parametrize('sampler', ['InfiniteSampler', 'DefaultSampler'])
@pytest.mark.parametrize(('before', 'after'), [(0, 2), (2, 0), (2, 3)])
def test_order_is_kept_in_an_endless_loop(before, after, sampler, at):
    loaders = [
        Kept(workers, sampler={'type': sampler, 'shuffle': True})
        for workers in (before, 0)
    ]
    kept = loaders[0]
    ours, theirs = (loops._InfiniteDataloaderIterator(each.loader) for each in loaders)
    for number in range(2 * BATCHES + 5):
        assert indices(next(ours)) == indices(next(theirs)), number
        if number == at:
            kept.within(ours._iterator, after, holder=ours)
    # the old iterator, and its workers, are gone
    assert len(children()) == after
    assert '_next_data' not in vars(ours._iterator)
    ours._iterator = None


def read_passes(
    before: int, after: int, sampler: dict[str, Any], *, is_persistent: bool = False
) -> list[list[list[int]]]:
    """Returns the batches of two passes; the number of workers changes in the first."""
    torch.manual_seed(1)
    loader = DataLoader(Numbers(), SIZE, num_workers=before, collate_fn=list, **sampler)
    switch, passes = LoaderSwitch(loader), []
    new = TunedSettings(num_workers=after, persistent_workers=is_persistent)
    for number in range(2):
        live, taken = iter(loader), []
        for batch in live:
            taken.append(indices(batch))
            if len(taken) == 7 and number == 0 and after != before:
                assert switch.find_obstacle_within(live, new) is None
                switch.switch_within(live, new, switch.take_salt(7))
        passes.append(taken)
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()
    return passes


@pytest.mark.parametrize(
    'sampler',
    [{'shuffle': True}, {'sampler': SubsetRandomSampler(range(BATCHES * SIZE - 1))}],
    ids=['random', 'subset'],
)
@PERSISTENT
def test_a_pass_whose_order_pytorch_has_drawn_keeps_it(sampler, persistent):
    plain, _ = read_passes(2, 2, sampler)
    first, second = read_passes(2, 3, sampler, is_persistent=persistent)
    assert first == plain
    # the next order may be another one; each sample comes once
    samples = sorted(index for batch in second for index in batch)
    assert samples == [*range(BATCHES * SIZE - 1)]


def test_seeds_are_others_than_all_before_and_than_other_ranks():
    used: list[int] = []
    for rank in (0, 1):
        kept = Kept(2)
        kept.loader.worker_init_fn = functools.partial(
            worker_init_fn, num_workers=2, rank=rank, seed=7
        )
        kept.switch = LoaderSwitch(kept.loader, ranks=2)
        for workers in (2, 3, 4):
            if workers > 2:
                salt = kept.switch.take_salt(1)
                kept.switch.switch_between(kept.new(workers), salt)
            used += seeds(take_epoch(kept, 0, lambda number, live: None))
    assert len(used) == len(set(used)) == 2 * (2 + 3 + 4)


def test_random_numbers_of_the_training_process_stay_the_same():
    def draw(at: int) -> tuple[list[float], list[float]]:
        kept = Kept(2)

        def switch(number: int, live: Any) -> None:
            if number == at:
                kept.within(live, 3)

        take_epoch(kept, 0, switch)
        return torch.rand(3).tolist(), np.random.rand(3).tolist()

    assert draw(at=7) == draw(at=-1)


class Refusing(DataLoader):
    """User's own subclass of DataLoader."""


class Streamed(IterableDataset):
    """Iterable-style data set, whose samples have no index."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(40))


class Own(Sampler):
    """User's own sampler, without a data set."""

    def __init__(self) -> None:
        """Creates the sampler without a data set."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(40))

    def __len__(self) -> int:
        return 40


ANYWHERE = [
    (lambda: Refusing(Numbers(), 4), 'Refusing, which is no plain DataLoader'),
    (lambda: DataLoader(Streamed(), 4), 'Streamed, deals samples out'),
]


@pytest.mark.parametrize(('make', 'said'), ANYWHERE, ids=['own class', 'streamed'])
def test_a_loader_that_cannot_be_switched_says_why(make, said: str):
    assert said in (LoaderSwitch(make()).find_obstacle() or '')


WITHIN = [
    ({'sampler': Own()}, 'Own, may depend on how far ahead'),
    ({'in_order': False}, 'in_order=False'),
    ({'multiprocessing_context': 'forkserver'}, 'started by forkserver'),
]


@pytest.mark.parametrize(
    ('given', 'said'), WITHIN, ids=['own sampler', 'any order', 'forkserver']
)
def test_a_pass_that_cannot_be_gone_on_with_says_why(given, said: str):
    loader = DataLoader(Numbers(), SIZE, num_workers=1, **given)
    switch = LoaderSwitch(loader)
    assert switch.find_obstacle() is None
    live = None
    if 'multiprocessing_context' not in given:
        live = iter(loader)
    else:
        live = iter(DataLoader(Numbers(), SIZE, num_workers=1))
    new = TunedSettings(num_workers=2)
    assert said in (switch.find_obstacle_within(live, new) or '')
    live._shutdown_workers()


def test_a_timeout_keeps_workers():
    switch = LoaderSwitch(DataLoader(Numbers(), SIZE, num_workers=1, timeout=60))
    assert switch.find_obstacle_to(TunedSettings(num_workers=0)) is not None
    assert switch.find_obstacle_to(TunedSettings(num_workers=2)) is None


def test_a_stopped_worker_stops_the_switch():
    loader = DataLoader(Numbers(), SIZE, num_workers=1)
    live = iter(loader)
    next(live)
    os.kill(live._workers[0].pid, signal.SIGSTOP)
    time.sleep(0.05)
    new = TunedSettings(num_workers=2)
    try:
        said = LoaderSwitch(loader).find_obstacle_within(live, new)
    finally:
        os.kill(live._workers[0].pid, signal.SIGCONT)
    assert 'stands still' in (said or '')
    live._shutdown_workers()


@pytest.fixture
def no_fork(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Function that lets a number of workers start, and then makes starts fail."""
    kind: Any = multiprocessing.popen_fork.Popen
    launch = kind._launch

    def refuse_after(count: int, failures: int = 1) -> None:
        left = [count]

        def limited(popen: Any, process: Any) -> Any:
            left[0] -= 1
            if -failures <= left[0] < 0:
                popen.pid, popen.returncode = None, 1
                raise BlockingIOError(11, 'Resource temporarily unavailable')
            return launch(popen, process)

        monkeypatch.setattr(multiprocessing.popen_fork.Popen, '_launch', limited)

    return refuse_after


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@PERSISTENT
@pytest.mark.parametrize('is_drained_first', [False, True])
@pytest.mark.parametrize('before', [0, 2])
def test_old_workers_go_on_where_new_ones_cannot_start(
    no_fork, before, is_drained_first, persistent
):
    kept = Kept(before, persistent=persistent)
    failures: list[Exception] = []

    def switch(number: int, live: Any) -> None:
        if number != 6:
            return
        no_fork(1)
        more = {'is_drained_first': True, 'on_failure': failures.append}
        try:
            kept.within(live, 3, **(more if is_drained_first else {}))
        except OSError as error:
            failures.append(error)

    taken = take_epoch(kept, 0, switch)
    assert [*map(indices, taken)] == untouched(0)
    assert [type(failure) for failure in failures] == [BlockingIOError]
    assert kept.loader.num_workers == kept.switch.settings.num_workers == before
    end(kept)


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@PERSISTENT
def test_a_pass_goes_on_without_workers_where_no_process_can_be_started(
    no_fork, persistent
):
    kept = Kept(2, persistent=persistent)

    def fail(error: Exception) -> None:
        raise ValueError('a bug of ours')

    def switch(number: int, live: Any) -> None:
        if number == 6:
            no_fork(0, failures=2)
            kept.within(live, 3, is_drained_first=True, on_failure=fail)

    for epoch in range(2):
        taken = take_epoch(kept, epoch, switch if epoch == 0 else lambda *_: None)
        assert [*map(indices, taken)] == untouched(epoch)
    assert kept.loader.num_workers == kept.switch.settings.num_workers == 0


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_settings_are_taken_back_where_the_next_pass_cannot_begin(no_fork):
    kept = Kept(1)
    kept.switch.switch_between(kept.new(3), 1)
    no_fork(1)
    with pytest.raises(BlockingIOError) as raised:
        iter(kept.loader)
    assert kept.switch.take_back(raised.value)
    taken = take_epoch(kept, 0, lambda number, live: None)
    assert [*map(indices, taken)] == untouched(0)
    assert not kept.switch.take_back(raised.value)


def wait_until_ended(pid: int, most_s: float = 30) -> None:
    # not waited for by join(): PyTorch must find it ended itself
    end_s = time.monotonic() + most_s
    while read_state(pid).state not in 'ZX' and time.monotonic() < end_s:
        time.sleep(0.01)


class SlowNumbers(Numbers):
    """Data set of numbers that load slowly, except for the first batch."""

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        if index == SIZE or index >= 2 * SIZE:
            time.sleep(0.7)
        return super().__getitem__(index)


@pytest.mark.parametrize('victim', ['old', 'new'])
def test_a_worker_that_is_killed_ends_the_pass_as_ever(victim: str):
    # it is killed before it can have delivered what it owes
    kept = Kept(
        2,
        dataset=SlowNumbers(),
        sampler={'type': 'DefaultSampler', 'shuffle': False},
    )
    live = iter(kept.loader)
    next(live)
    kept.within(live, 2)
    heir = kept.switch._find_relay().heir
    pool = live if victim == 'old' else heir
    killed = pool._workers[0].pid

    def kill_and_go_on() -> None:
        os.kill(killed, signal.SIGKILL)
        wait_until_ended(killed)
        for _ in live:
            time.sleep(0.01)

    with pytest.raises(RuntimeError, match='DataLoader worker'):
        kill_and_go_on()
    for iterator in (live, heir):
        iterator._shutdown_workers()


def test_ctrl_c_in_the_switch_leaves_the_pass_whole():
    kept = Kept(2)
    make, live = kept.loader._get_iterator, iter(kept.loader)
    taken, made = [next(live)], list[Any]()

    def interrupted() -> Any:
        made.append(make())
        raise KeyboardInterrupt

    kept.loader._get_iterator = interrupted
    with pytest.raises(KeyboardInterrupt):
        kept.within(live, 3)
    made[0]._shutdown_workers()
    # MMEngine ends here; whoever goes on has lost nothing
    taken += live
    assert [*map(indices, taken)] == untouched(0)


def test_threads_and_niceness_are_set_in_the_new_workers(monkeypatch):
    cv2 = pytest.importorskip('cv2')
    found = {}

    class Asked(Numbers):
        def __getitem__(self, index: int) -> tuple[int, int]:
            return cv2.getNumThreads(), os.getpriority(os.PRIO_PROCESS, 0)

    kept = Kept(1, dataset=Asked(8))
    for threads, nice in ((3, 7), (None, None)):
        new = kept.new(1, opencv_num_threads=threads, worker_nice=nice)
        kept.switch.switch_between(new, 1)
        ((found[threads], *_), *_) = kept.loader
    assert found[3] == (3, os.getpriority(os.PRIO_PROCESS, 0) + 7)
    # taken back by new workers: a nice value only rises
    assert found[None] == (cv2.getNumThreads(), os.getpriority(os.PRIO_PROCESS, 0))


@pytest.fixture
def by_file() -> Iterator[None]:
    """Makes PyTorch share tensors by its strategy ``file_system`` during a test."""
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy('file_system')
    yield
    torch.multiprocessing.set_sharing_strategy(before)


WORKERS = pytest.mark.parametrize(('before', 'after'), [(0, 2), (2, 0), (2, 3)])


def take_while_shared(
    pids: Sequence[int], before: int, after: int, most: int | None = None
) -> None:
    """Changes the workers during a pass, and asserts that its batches are unchanged."""
    kept = Kept(before)
    live = iter(kept.loader)
    taken = [next(live) for _ in range(7)]
    kept.within(live, after)
    taken += itertools.islice(live, most)
    # what must be gone at the end is seen while a batch is there
    assert list_shared(pids)
    assert [*map(indices, taken)] == untouched(0)[: len(taken)]


@WORKERS
@pytest.mark.parametrize('most', [2, None])
def test_no_shared_memory_is_left_behind(worker_pids, before, after, most):
    take_while_shared(worker_pids, before, after, most)


@WORKERS
@pytest.mark.usefixtures('by_file')
def test_no_file_of_a_batch_is_left_behind(worker_pids, before, after):
    # of a pass that the loop leaves, PyTorch leaves some until its process ends
    take_while_shared(worker_pids, before, after)


def test_a_save_in_another_thread_goes_on(tmp_path):
    kept, model = Kept(2), torch.nn.Linear(400, 400)
    saved: list[int] = []

    def save() -> None:
        while not saved or len(saved) < 40:
            torch.save(model.state_dict(), tmp_path / 'weights.pth')
            saved.append(1)

    thread = threading.Thread(target=save)
    thread.start()

    def switch(number: int, live: Any) -> None:
        if number == 6:
            kept.within(live, 3)

    taken = take_epoch(kept, 0, switch)
    thread.join()
    assert [*map(indices, taken)] == untouched(0)
    assert torch.load(tmp_path / 'weights.pth').keys() == model.state_dict().keys()
