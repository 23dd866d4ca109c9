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
from torch.utils.data import DataLoader

from fakes import loader_datasets as planted
from fakes.loader_loop import open_loops
from mmgpu_hooks.measure.absent import SourceError

pytestmark = pytest.mark.timing


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


def test_an_interval_over_two_epochs_holds_both(loop):
    one = loop(planted.Costly(12, burn_s=0.01), batch_size=2, num_workers=2)
    one.run_epoch()
    since = time.monotonic()
    one.read()
    one.run_epoch()
    one.run_epoch()
    window = one.read()
    assert window.iterations == sum(window.worker_batches) == 12
    assert 0 < window.window_s <= time.monotonic() - since
    assert window.window_s >= 2 * 12 * 0.01 / 2
    # the first epoch's workers have ended
    assert window.count == 2
    assert window.cpu_s >= 0.95 * 2 * 12 * 0.01
    assert window.cpu_s == pytest.approx(sum(window.worker_cpu_s))
    assert window.fresh
    # a first batch is not asked of the iterator that is yet to be made
    assert window.asks == 2 * 5


def take(one: Any, batches: int) -> None:
    """Go on with the iterator that there is."""
    for _ in range(batches):
        one.probe.ask()
        next(one.iterator)
        one.probe.got()
        one.iterations += 1


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('is_held', [False, True])
@pytest.mark.parametrize('is_read_between', [False, True])
def test_a_look_at_a_batch_by_somebody_else_does_not_end_the_probe(
    loop, workers: int, is_held: bool, is_read_between: bool
):
    one = loop(planted.Costly(60, sleep_s=0.001), batch_size=2, num_workers=workers)
    one.iterator = iter(one.loader)
    take(one, 4)
    peeks = []
    for _ in range(2):
        peek = iter(one.loader)
        next(peek)
        if is_held:
            peeks[:] = [peek]
        del peek
    before = one.read() if is_read_between else None
    take(one, 12)
    window = one.read()
    assert window.iterations == (12 if is_read_between else 16)
    assert before is None or before.iterations == 4
    assert window.source == 'inside'
    # four stood ready at the read before
    assert sum(window.worker_batches) >= 12 - 4
    take(one, 12)
    window = one.read()
    assert (window.count, window.iterations) == (workers, 12)
    assert not window.fresh
    assert sum(window.worker_batches) >= (12 - 2 * 4 if workers else 12)
    if workers:
        assert window.asks == 12
    assert 'loader workers' not in one.probe.unsupported


def test_a_look_that_fails_does_not_end_the_probe(loop, monkeypatch):
    one = loop(planted.Costly(60), batch_size=2, num_workers=1)
    one.iterator = iter(one.loader)
    take(one, 4)

    def fail(*_: Any) -> None:
        raise OSError('no processes left')

    with monkeypatch.context() as patch:
        patch.setattr('multiprocessing.context.ForkProcess.start', fail)
        patch.setattr('multiprocessing.process.BaseProcess.start', fail)
        with pytest.raises(OSError, match='no processes'):
            iter(one.loader)
    take(one, 4)
    window = one.read()
    assert (window.count, window.iterations, window.asks) == (1, 8, 8)
    take(one, 4)
    window = one.read()
    assert (window.count, window.iterations, window.asks) == (1, 4, 4)


def test_an_epoch_that_is_broken_off_is_followed_by_the_next(loop):
    one = loop(planted.Costly(60), batch_size=2, num_workers=1)
    for _ in range(3):
        one.iterator = iter(one.loader)
        take(one, 4)
    one.read()
    take(one, 4)
    window = one.read()
    assert (window.count, window.iterations, window.asks) == (1, 4, 4)


def test_batches_from_an_iterator_that_was_never_seen_are_a_reason(loop):
    one = loop(planted.Costly(60), batch_size=2, num_workers=1)
    hidden = DataLoader(planted.Costly(60), num_workers=1)
    peek = iter(one.loader)
    one.iterator = iter(hidden)
    take(one, 3)
    assert one.probe.read() is None
    assert 'not seen' in one.probe.unsupported['loader workers']
    peek._shutdown_workers()
    # and the next that is seen is followed
    one.iterator = iter(one.loader)
    take(one, 3)
    assert one.read().count == 1


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
    assert sum(window.worker_run_delay_s) == pytest.approx(window.run_delay_s)
    assert window.worker_affinity_cpus == (window.affinity_cpus,) * 2
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


def test_a_failing_look_at_memory_is_told_by_the_next_read(
    loop, monkeypatch: pytest.MonkeyPatch
):
    one = loop(planted.Costly(8), num_workers=1, persistent_workers=True)
    one.run_epoch()
    one.read()

    def fail(*_: Any) -> None:
        raise ValueError('no such memory')

    monkeypatch.setattr('mmgpu_hooks.measure.loader.processes.read_pss_bytes', fail)
    one.probe.read_memory()
    with pytest.raises(SourceError, match='no such memory'):
        one.probe.read()
