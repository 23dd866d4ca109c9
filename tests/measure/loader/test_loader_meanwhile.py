"""What workers did between two marks, and how much they give way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.loader import processes as niceness
from mmgpu_hooks.measure.loader.processes import (
    WorkerProcesses,
    WorkersMeanwhile,
    WorkerTimes,
    fold_workers_meanwhile,
    write_nice,
)


def test_busy_is_on_a_core_or_waiting_for_one():
    before = {1: WorkerTimes(10.0, 20.0), 2: WorkerTimes(0.0, 0.0)}
    after = {1: WorkerTimes(11.0, 24.0), 2: WorkerTimes(0.5, 1.0)}
    assert fold_workers_meanwhile(before, after, 4.0) == WorkersMeanwhile(2, 1.25, 1.5)


def test_a_wait_that_began_earlier_fills_the_time_and_no_more():
    before, after = {1: WorkerTimes(0.0, 0.0)}, {1: WorkerTimes(0.0, 9.0)}
    assert fold_workers_meanwhile(before, after, 2.0).busy == 1.0


def test_cpu_of_workers_that_restart_meanwhile_is_unknown_and_no_strangers():
    before = {1: WorkerTimes(1.0, 1.0), 2: WorkerTimes(1.0, 1.0)}
    after = {2: WorkerTimes(2.0, 2.0), 3: WorkerTimes(9.0, 9.0)}
    assert fold_workers_meanwhile(before, after, 2.0) == WorkersMeanwhile(1, 0.5, None)


def test_no_workers_are_none_busy():
    assert fold_workers_meanwhile({}, {}, 2.0) == WorkersMeanwhile(0, 0.0, 0.0)


def test_what_one_hides_is_unknown_of_all():
    before = {1: WorkerTimes(1.0, None), 2: WorkerTimes(None, 1.0)}
    after = {1: WorkerTimes(2.0, 2.0), 2: WorkerTimes(1.0, 2.0)}
    assert fold_workers_meanwhile(before, after, 2.0) == WorkersMeanwhile(2, None, None)


def make_proc(proc: Path, pid: int) -> Path:
    path = proc / str(pid) / 'task' / str(pid) / 'schedstat'
    path.parent.mkdir(parents=True)
    path.write_text('2000000000 1000000000 3\n')
    return path


def test_a_mark_ends_no_window(tmp_path: Path):
    path = make_proc(tmp_path, 11)
    workers = WorkerProcesses([11], proc=tmp_path, read_cpu_s=lambda _: 2.5)
    path.write_text('3000000000 1000000000 3\n')
    assert workers.mark() == {11: WorkerTimes(2.5, 4.0)}
    assert workers.pids == (11,)
    assert workers.read().run_delay_s == 0.0
    workers.close()


def test_a_worker_that_ended_is_in_no_mark_but_a_hidden_one_is(tmp_path: Path):
    make_proc(tmp_path, 11)
    workers = WorkerProcesses([11, 12], proc=tmp_path, read_cpu_s=lambda _: 1.0)
    workers.close()
    assert workers.mark() == {12: WorkerTimes(1.0, None)}


@pytest.fixture
def sleeper() -> int:
    child = subprocess.Popen(
        [
            sys.executable,
            '-c',
            'import threading, time\n'
            'threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n'
            'print("ready", flush=True); time.sleep(60)',
        ],
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    yield child.pid
    child.kill()
    child.wait()
    child.stdout.close()


def nice_of(pid: int) -> set[int]:
    threads = os.listdir(f'/proc/{pid}/task')
    return {os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in threads}


def test_every_thread_of_a_worker_gives_way(sleeper: int):
    assert len(os.listdir(f'/proc/{sleeper}/task')) == 2
    write_nice([sleeper], 10)
    assert nice_of(sleeper) == {10}


def test_who_is_nicer_already_stays_so(sleeper: int):
    write_nice([sleeper], 15)
    write_nice([sleeper], 10)
    assert nice_of(sleeper) == {15}


def test_a_worker_that_ended_is_left_out(sleeper: int):
    gone = subprocess.Popen([sys.executable, '-c', ''])
    gone.wait()
    write_nice([gone.pid, sleeper], 12)
    assert nice_of(sleeper) == {12}


def test_a_host_that_refuses_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: int) -> None:
        raise PermissionError('not here')

    monkeypatch.setattr(niceness.os, 'setpriority', refuse)
    with pytest.raises(SourceError) as caught:
        write_nice([os.getpid()], 19)
    assert str(caught.value) == (
        "the host refuses nice 19 for the loader's workers: not here"
    )
