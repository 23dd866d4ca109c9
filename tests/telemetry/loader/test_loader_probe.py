"""What the probe tells of real loaders with real workers."""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fakes import loader_datasets as planted
from fakes.loader_loop import open_loops


@pytest.fixture
def loop() -> Iterator[Any]:
    with open_loops() as build:
        yield build


def near(seconds: float) -> Any:
    """Within 5 percent or 2 ms."""
    return pytest.approx(seconds, rel=0.05, abs=0.002)


@pytest.mark.parametrize('workers', [0, 2])
def test_cpu_per_batch_is_what_was_planted(loop, workers: int):
    medians = []
    for burn_s in (0.005, 0.02):
        dataset = planted.Costly(24, burn_s=burn_s)
        one = loop(dataset, batch_size=4, num_workers=workers)
        one.run_epoch()
        window = one.read()
        assert window.source == 'inside'
        assert window.batch_cpu is not None
        assert window.batch_cpu.count == 6
        assert sum(window.worker_batches) == 6
        medians.append(window.batch_cpu.p50_s)
    assert medians[1] - medians[0] == near(4 * 0.015)
    # handing a batch over costs CPU as well
    assert medians[1] >= 0.99 * 4 * 0.02


@pytest.mark.parametrize('workers', [0, 2])
def test_occupancy_per_batch_is_what_was_planted(loop, workers: int):
    one = loop(planted.Costly(32, sleep_s=0.01), batch_size=2, num_workers=workers)
    # a sleep ends late on a busy machine: the samples say what they took
    took = [float(batch['took_s'].sum()) for batch in one.run_epoch()]
    window = one.read()
    assert window.occupancy is not None
    assert window.occupancy.count == 16
    assert window.occupancy.p50_s == near(statistics.median(took))
    assert window.occupancy.p50_s > 0.02
    assert window.batch_cpu is not None
    assert window.batch_cpu.p50_s < 0.01


@pytest.mark.parametrize('persistent', [False, True])
def test_workers_that_restart_are_followed(loop, persistent: bool):
    one = loop(
        planted.Costly(12, sleep_s=0.001),
        batch_size=2,
        num_workers=2,
        persistent_workers=persistent,
    )
    for epoch in range(3):
        one.run_epoch()
        window = one.read()
        assert window.source == 'inside'
        assert window.iterations == 6
        assert window.worker_batches == (3, 3)
        assert window.occupancy is not None
        assert window.occupancy.count == 6
        assert window.fresh == (epoch == 0 or not persistent)
    assert one.events == ['begin', 'end'] * (1 if persistent else 3)


def test_batches_of_workers_that_ended_within_an_interval_are_counted(loop):
    one = loop(planted.Costly(12), batch_size=2, num_workers=2)
    for _ in range(3):
        one.run_epoch()
    assert sum(one.read().worker_batches) == 18


def test_living_workers_are_seen_from_outside_too(loop):
    one = loop(planted.Costly(40, burn_s=0.002), num_workers=2, persistent_workers=True)
    one.run_epoch()
    time.sleep(0.05)
    one.probe.read_memory()
    window = one.read()
    assert (window.count, len(window.worker_cpu_s)) == (2, 2)
    assert window.cpu_s >= 0.08
    assert window.cpu_s == pytest.approx(sum(window.worker_cpu_s))
    assert window.blocked_s is not None
    assert 0.05 < window.blocked_s < 2 * window.window_s
    assert window.affinity_cpus == len(os.sched_getaffinity(0))
    assert window.pss_bytes is not None
    assert window.pss_bytes > 1 << 20
    one.probe.read_memory()  # it was looked at a moment ago
    one.run_epoch()
    assert one.read().pss_bytes is None


@pytest.mark.parametrize('workers', [0, 2])
def test_the_slowest_sample_is_named(loop, workers: int):
    dataset = planted.Costly(24, sleep_s=0.001, slow={17: 0.08, 3: 0.04})
    one = loop(dataset, batch_size=2, num_workers=workers)
    one.run_epoch()
    slowest = one.read().slowest
    assert [(s.index, s.image) for s in slowest[:2]] == [
        (17, '17 train/17.jpg'),
        (3, '3 train/3.jpg'),
    ]
    assert slowest[0].seconds >= 0.08


@pytest.mark.parametrize('start_method', ['spawn', 'forkserver'])
def test_workers_that_are_not_forked_are_reached(loop, start_method: str):
    one = loop(
        planted.Costly(12, sleep_s=0.002, slow={7: 0.05}),
        batch_size=2,
        num_workers=1,
        multiprocessing_context=start_method,
        worker_init_fn=functools.partial(_set_threads, count=1),
    )
    assert len(one.run_epoch()) == 6
    window = one.read()
    assert (window.source, window.worker_batches) == ('inside', (6,))
    assert window.slowest[0].image == '7 train/7.jpg'
    assert isinstance(one.loader.worker_init_fn, functools.partial)


def _set_threads(worker_id: int, *, count: int) -> None:
    torch.set_num_threads(count + worker_id)
