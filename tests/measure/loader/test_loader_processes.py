"""Tests CPU time, memory and nice values of workers read from the system."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmgpu_hooks.measure.loader import processes
from mmgpu_hooks.measure.loader.processes import (
    WorkerProcesses,
    WorkersActivity,
    WorkerTimes,
    sum_workers_activity,
    write_nice,
)

SLEEP = (
    'import threading, time\n'
    'threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n'
    'print("ready", flush=True); time.sleep(60)'
)


def wanting(cpu_s: float | None, wanting_s: float | None) -> WorkerTimes:
    return WorkerTimes(cpu_s, None, wanting_s)


@pytest.mark.parametrize(
    ('before', 'after', 'expected'),
    [
        (
            {1: wanting(10.0, 20.0), 2: wanting(0.0, 0.0)},
            {1: wanting(11.0, 24.0), 2: wanting(0.5, 1.0)},
            WorkersActivity(2, 1.25, 1.5),
        ),
        # a wait that began earlier fills the time and no more
        ({1: wanting(0.0, 0.0)}, {1: wanting(0.0, 9.0)}, WorkersActivity(1, 1.0, 0.0)),
        # CPU of workers that restart is unknown
        (
            {1: wanting(1.0, 1.0), 2: wanting(1.0, 1.0)},
            {2: wanting(2.0, 2.0), 3: wanting(9.0, 9.0)},
            WorkersActivity(1, 0.25, None),
        ),
        ({}, {}, WorkersActivity(0, 0.0, 0.0)),
        # what one hides is unknown of all
        (
            {1: wanting(1.0, None), 2: wanting(None, 1.0)},
            {1: wanting(2.0, 2.0), 2: wanting(1.0, 2.0)},
            WorkersActivity(2, None, None),
        ),
    ],
)
def test_cpu_and_run_delay_of_workers_between_two_marks_are_summed(
    before, after, expected
):
    assert sum_workers_activity(before, after, 4.0) == expected


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Fake CPU clocks of processes, in seconds by process id."""
    found: dict[int, float] = {}
    monkeypatch.setattr(processes, 'read_process_cpu_s', found.get)
    return found


def write(proc: Path, pid: int, cpu_s: float, run_delay_s: float) -> None:
    (proc / str(pid)).mkdir(exist_ok=True)
    text = f'{int(cpu_s * 1e9)} {int(run_delay_s * 1e9)} 1\n'
    (proc / str(pid) / 'schedstat').write_text(text)


def test_cpu_and_run_delay_of_all_workers_count_ended_threads(
    tmp_path: Path, clocks: dict[int, float]
):
    write(tmp_path, 7, 1.0, 0.5)
    write(tmp_path, 8, 2.0, 0.0)
    clocks[8] = 2.5  # threads that came and went are in it
    workers = WorkerProcesses([7, 8], tmp_path)
    write(tmp_path, 7, 4.0, 1.5)
    write(tmp_path, 8, 2.5, 0.25)
    clocks[8] = 5.0
    assert workers.mark()[7] == WorkerTimes(4.0, 1.5, 5.5)  # and ends no window
    used = workers.read()
    assert (used.count, used.cpu_s, used.run_delay_s) == (2, 5.5, 1.25)
    (tmp_path / '7' / 'schedstat').unlink()  # it ended
    assert workers.read().count == 1
    assert not workers.is_hidden


def test_hidden_workers_are_none(tmp_path: Path, clocks):
    clocks[12] = 1.0
    workers = WorkerProcesses([11, 12], tmp_path)
    assert workers.is_hidden
    assert workers.mark() == {12: WorkerTimes(1.0)}
    assert workers.read().count == 0


def test_memory_of_many_workers_is_that_of_some_of_them(tmp_path: Path, monkeypatch):
    read: list[int] = []

    def read_pss(pid: int) -> int | None:
        read.append(pid)
        return None if pid == 1 else 10

    monkeypatch.setattr(processes, 'read_pss_bytes', read_pss)
    assert WorkerProcesses([2, 3], tmp_path).read_pss_bytes() == (20, False)
    assert WorkerProcesses([1], tmp_path).read_pss_bytes() == (None, False)
    read.clear()
    many = WorkerProcesses(list(range(2, 66)), tmp_path)
    assert many.read_pss_bytes() == (640, False)
    assert len(read) == 4
    ticks = iter((0.0, 0.03))
    assert many.read_pss_bytes(lambda: next(ticks)) == (640, True)


@pytest.fixture
def sleeper() -> Iterator[int]:
    child = subprocess.Popen([sys.executable, '-c', SLEEP], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    yield child.pid
    child.kill()
    child.wait()
    child.stdout.close()


@pytest.mark.skipif(not hasattr(os, 'sched_setaffinity'), reason='platform has none')
def test_affinity_is_that_of_the_most_confined_worker(sleeper: int):
    own = os.sched_getaffinity(0)
    workers = WorkerProcesses([os.getpid(), sleeper])
    assert workers.read().affinity_cpus == len(own)
    os.sched_setaffinity(sleeper, {min(own)})
    assert workers.read().affinity_cpus == 1


def test_every_thread_gives_way_and_one_that_is_nicer_stays_so(sleeper: int):
    gone = subprocess.Popen([sys.executable, '-c', ''])
    gone.wait()
    threads = [int(thread) for thread in os.listdir(f'/proc/{sleeper}/task')]
    assert len(threads) == 2
    for nice in (12, 10):
        write_nice([gone.pid, sleeper], nice)
        assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {12}
