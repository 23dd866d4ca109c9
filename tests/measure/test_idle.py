"""Tests how a process that waits is told from one that computes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from mmgpu_hooks.measure.idle import WorkMeter

SECONDS = 1.0


def burn(seconds: float = SECONDS) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))


def poll() -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        time.sleep(0.02)


def burn_in_thread() -> None:
    thread = threading.Thread(target=burn)
    thread.start()
    thread.join()


def read_zeros() -> None:
    with open('/dev/zero', 'rb', buffering=0) as file:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            # as a slow file system gives it
            file.read(2**18)
            time.sleep(0.1)


@pytest.fixture
def burning_child() -> Iterator[Callable[[], None]]:
    code = 'while True: pass'
    with subprocess.Popen([sys.executable, '-c', code]) as child:
        yield poll
        child.kill()


def follow(work: Callable[[], None]) -> list[float]:
    """Returns the idle seconds that another thread measures while a function runs."""
    meter, ended, read = WorkMeter(), threading.Event(), list[float]()

    def look() -> None:
        while not ended.wait(0.1):
            read.append(meter.read_idle_s())

    thread = threading.Thread(target=look, name='mmgpu-test')
    thread.start()
    work()
    ended.set()
    thread.join()
    return read


def test_a_thread_that_waits_is_idle():
    assert follow(poll)[-1] > SECONDS / 2


@pytest.mark.parametrize('work', [burn, burn_in_thread, read_zeros])
def test_one_that_computes_or_reads_is_not(work):
    assert max(follow(work)) < SECONDS / 2


def test_long_idleness_hides_nothing_that_computes_now():
    meter = WorkMeter()
    meter.read_idle_s()
    time.sleep(0.2)
    assert meter.read_idle_s() > 0.1
    # as after an hour of waiting
    start = meter._start
    assert start is not None
    meter._start = start._replace(clock_s=start.clock_s - 3600.0)
    assert meter.read_idle_s() > 3600.0
    burn(0.5)
    assert meter.read_idle_s() == 0.0


def test_one_whose_child_computes_is_not(burning_child):
    assert max(follow(burning_child)) < SECONDS / 2


def test_our_own_threads_do_not_count():
    ended = threading.Event()

    def work() -> None:
        # a quarter of a core: of what never rests the two clocks are read too far apart
        while not ended.wait(0.03):
            burn(0.01)

    own = threading.Thread(target=work, name='mmgpu-busy')
    own.start()
    idle_s = follow(lambda: time.sleep(SECONDS))[-1]
    ended.set()
    own.join()
    assert idle_s > SECONDS / 3
