"""Tests that a loader stays without workers if they could not load its batches."""

from __future__ import annotations

import multiprocessing
import os
import random
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from mmgpu_hooks.measure.loader import rehearsal
from mmgpu_hooks.measure.loader.switch import LoaderSwitch
from mmgpu_hooks.schema.recorded import TunedSettings

TWO = TunedSettings(num_workers=2)


class Made(Dataset):
    """Data set whose samples a function makes."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def find_obstacle(
    make: Callable[[int], Any], index: Any = (3, 4), **options: Any
) -> str | None:
    """Returns why a loader cannot get workers if a function makes its samples."""
    loader = DataLoader(Made(make), **{'collate_fn': list, **options})
    assert len(loader) == len([*loader])
    return LoaderSwitch(loader).find_first_obstacle(TWO, index)


def start_process(index: int) -> int:
    child = multiprocessing.Process(target=int)
    child.start()
    child.join()
    return index


def raise_in_worker(index: int) -> int:
    if get_worker_info() is not None:
        raise RuntimeError('not here\nand this is why: it is a worker')
    return index


def die_in_worker(index: int) -> int:
    if get_worker_info() is not None:
        os._exit(3)
    return index


def make_graph(index: int) -> torch.Tensor:
    return torch.ones(2, requires_grad=True) * index


@pytest.mark.parametrize(
    ('make', 'said'),
    [
        (lambda index: lambda: index, "Can't pickle"),
        (lambda index: (each for each in [index]), 'cannot pickle'),
        (make_graph, 'non-leaf tensor'),
        (start_process, 'AssertionError: daemonic processes are not allowed'),
        (raise_in_worker, 'RuntimeError: not here'),
        (die_in_worker, 'exited unexpectedly'),
    ],
    ids=['function', 'generator', 'graph', 'own process', 'exception', 'exit'],
)
def test_what_no_worker_can_load_is_said(make, said: str):
    obstacle = find_obstacle(make) or ''
    assert 'a worker could not load a batch' in obstacle
    assert said.lower() in obstacle.lower()
    assert '\n' not in obstacle
    assert multiprocessing.active_children() == []


def test_a_worker_that_stands_still_is_not_waited_for_long(monkeypatch):
    monkeypatch.setattr(rehearsal, '_MOST_S', 0.5)
    monkeypatch.setattr(torch.utils.data._utils, 'MP_STATUS_CHECK_INTERVAL', 0.2)
    lock = threading.Lock()

    def wait(index: int) -> int:
        # as the thread of a pool that was not forked along
        if get_worker_info() is not None:
            with lock:
                return index
        return index

    with lock:
        # not held by what loads here
        obstacle = find_obstacle(wait) or ''
    assert 'timed out after 0.5 seconds' in obstacle
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ('index', 'options'),
    [
        ([3, 4], {'batch_size': 2}),
        (3, {'batch_size': None, 'collate_fn': None}),
        ([3], {'collate_fn': None}),
    ],
)
def test_nothing_but_time_is_lost_where_a_worker_can_load(index, options):
    def draw() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(1))]

    def seed() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    loader = DataLoader(Made(lambda index: torch.full((2,), index)), **options)
    switch, before = LoaderSwitch(loader), dict(vars(loader))
    seed()
    plain = draw()
    seed()
    assert switch.find_first_obstacle(TWO, index) is None
    assert draw() == plain
    assert dict(vars(loader)) == before
    assert multiprocessing.active_children() == []


def test_a_worker_loads_for_trial_once(monkeypatch):
    calls: list[Any] = []

    def rehearse(loader: Any, index: Any) -> str | None:
        calls.append(index)
        return 'it cannot'

    monkeypatch.setattr('mmgpu_hooks.measure.loader.switch.rehearse', rehearse)
    switch = LoaderSwitch(DataLoader(Made(int)))
    assert switch.find_first_obstacle(TunedSettings(num_workers=0), [1]) is None
    assert 'no batch is known' in (switch.find_first_obstacle(TWO, None) or '')
    found = [switch.find_first_obstacle(TWO, [number]) for number in range(3)]
    assert (found, calls) == (['it cannot'] * 3, [[0]])
    with_workers = LoaderSwitch(DataLoader(Made(int), num_workers=1))
    assert with_workers.find_first_obstacle(TWO, [5]) is None
    # back to workers, as it was built with some
    with_workers.settings = TunedSettings(num_workers=0)
    assert with_workers.find_first_obstacle(TWO, None) is None
    assert len(calls) == 1


class Reader:
    """Makes samples from a file that it opens when the first one is asked for."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(range(8)))
        self.path = path
        self.file: BinaryIO | None = None

    def __call__(self, index: int) -> int:
        if self.file is None:
            self.file = self.path.open('rb')
        self.file.seek(index)
        return self.file.read(1)[0]


def test_workers_do_not_share_a_file_that_the_data_set_has_opened(tmp_path):
    reader = Reader(tmp_path / 'samples.bin')
    obstacle = find_obstacle(reader) or ''
    assert f'{reader.path} is open for reading' in obstacle
    assert reader.file is not None
    reader.file.close()
    reader.file = None
    assert find_obstacle(lambda index: index) is None


def test_data_in_shared_memory_are_a_file_like_others():
    with tempfile.NamedTemporaryFile(dir='/dev/shm') as shared:
        with open(shared.name, 'rb'):
            obstacle = find_obstacle(lambda index: index) or ''
        assert f'{shared.name} is open for reading' in obstacle


def test_files_that_are_mapped_or_written_are_no_obstacle(tmp_path):
    np.save(tmp_path / 'samples.npy', np.arange(8))
    mapped = np.load(tmp_path / 'samples.npy', mmap_mode='r')
    with (tmp_path / 'log.txt').open('w'):
        assert find_obstacle(lambda index: int(mapped[index])) is None
