"""What ends a training ends all of it, and is not kept from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from mmgpu_hooks.experiment import process_tree, trial
from mmgpu_hooks.experiment.process_tree import ProcessTree
from mmgpu_hooks.schema import TrialSpec

# a worker, and one more in a session of its own; none of them heeds a polite word
FAMILY = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if not os.fork():
    if not os.fork():
        os.setsid()
        print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def leader() -> Iterator[Any]:
    with subprocess.Popen(
        [sys.executable, '-S', '-c', FAMILY],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as leader:
        assert leader.stdout is not None
        # the last of them has come
        leader.stdout.readline()
        family = psutil.Process(leader.pid).children(recursive=True)
        yield leader
        for process in [leader, *family]:
            process.kill()


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_all_of_it_is_ended_though_it_is_held(leader: Any) -> None:
    family = psutil.Process(leader.pid).children(recursive=True)
    assert len(family) == 2
    tree = ProcessTree(leader)
    tree.hold()
    tree.kill()
    assert leader.returncode == -signal.SIGKILL
    assert all(is_gone(process.pid) for process in family)
    tree.kill()


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_stop_meanwhile_comes_when_nothing_is_left(
    leader: Any, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    members = ProcessTree._members
    heard: list[bool] = []

    def interrupted(*arguments: Any) -> Any:
        os.kill(os.getpid(), number)
        time.sleep(0.01)
        return members(*arguments)

    def stop(number: int, frame: Any) -> None:
        heard.append(is_gone(leader.pid))
        raise KeyboardInterrupt

    monkeypatch.setattr(ProcessTree, '_members', interrupted)
    before = signal.signal(number, stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            ProcessTree(leader).kill()
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, before)
    assert heard == [True]
    assert leader.returncode == -signal.SIGKILL


def test_a_stop_that_is_ignored_stays_so(
    leader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = ProcessTree._members

    def look(*arguments: Any) -> Any:
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        return members(*arguments)

    monkeypatch.setattr(ProcessTree, '_members', look)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ProcessTree(leader).kill()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_it_ends_where_ctrl_c_came_within_poll(
    leader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_tree, '_GONE_WITHIN_S', 0.2)
    # what an exception between `acquire` and `try` leaves behind in `Popen.poll`
    leader._waitpid_lock.acquire()
    began_s = time.monotonic()
    ProcessTree(leader).kill()
    assert time.monotonic() - began_s < 5
    assert is_gone(leader.pid)
    leader._waitpid_lock.release()


def test_a_trial_that_has_just_been_started_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*_: Any) -> Any:
        command = [sys.executable, '-S', '-c', 'import time; time.sleep(600)']
        started.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        )
        signal.raise_signal(signal.SIGINT)
        return started[0]

    monkeypatch.setattr(trial, '_start', start)
    try:
        with pytest.raises(KeyboardInterrupt):
            trial.RunningTrial(TrialSpec('config.py', str(tmp_path / 'trial')))
        assert started[0].returncode == -signal.SIGKILL
    finally:
        started[0].kill()
        started[0].communicate()


def test_a_thread_of_its_own_ends_it_too(leader: Any) -> None:
    thread = threading.Thread(target=ProcessTree(leader).kill)
    thread.start()
    thread.join(20)
    assert leader.returncode == -signal.SIGKILL


def test_a_held_training_that_is_gone_is_closed_without_a_word() -> None:
    closed: list[bool] = []
    with subprocess.Popen(
        [sys.executable, '-S', '-c', 'pass'],
        stdin=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        process.wait()
        running = object.__new__(trial.RunningTrial)
        running._process, running.tree = process, ProcessTree(process)
        running._reader = SimpleNamespace(close=lambda: closed.append(True))
        # it stays in the buffer, and would be sent when that is closed
        running.send(5)
        running.close()
    assert closed == [True]
