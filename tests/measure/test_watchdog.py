"""Tests the watchdog by a fake clock, and what it reads of processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from mmgpu_hooks.measure.loader.call_stack import ask_stack
from mmgpu_hooks.measure.loader.owed import ProcessState, find_mount, read_state
from mmgpu_hooks.measure.watchdog import Running, Watchdog

PERIOD_S = 1.0
STEP = Running('step', 7.0, usual_s=0.1)


class Training:
    """Fake training with a watchdog of 60 s on a fake clock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.running = STEP
        self.alarms: list[float] = []
        self.freed: list[float] = []
        self.watchdog = Watchdog(
            60.0,
            lambda: self.running,
            lambda _, seconds: self.alarms.append(seconds),
            lambda _, seconds: self.freed.append(seconds),
            clock=lambda: self.now_s,
        )

    def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds / PERIOD_S)):
            self.now_s += PERIOD_S
            self.watchdog.check()


def test_a_standstill_is_said_once_and_again_after_10_and_60_minutes():
    training = Training()
    training.pass_s(60)
    assert training.alarms == []
    training.pass_s(2)
    assert training.alarms == [60]
    training.pass_s(8000)
    assert training.alarms == [60, 660, 3660]
    training.running = STEP._replace(beat=8.0)
    training.pass_s(2)
    assert training.freed == [pytest.approx(8061)]


def test_the_time_that_an_alarm_takes_belongs_to_the_standstill():
    training = Training()

    def alarm(running: Running, seconds: float) -> None:
        training.alarms.append(seconds)
        training.now_s += 9

    training.watchdog.on_stuck = alarm
    training.pass_s(71)
    training.running = STEP._replace(beat=8.0)
    training.pass_s(1)
    assert training.freed == [pytest.approx(79)]


@pytest.mark.parametrize(
    ('usual_s', 'is_proven', 'patience_s'),
    [
        (0.1, False, 60),
        (3.0, False, 60),
        (10.0, False, 200),
        (10.0, True, 60),
        (40.0, True, 80),
        (None, False, 600),
        (None, True, 60),
    ],
)
def test_the_patience_follows_what_is_usual_or_proven(usual_s, is_proven, patience_s):
    training = Training()
    asked: list[int] = []

    def is_it(_: object) -> bool:
        asked.append(1)
        return is_proven

    training.running = STEP._replace(usual_s=usual_s)
    training.watchdog.is_proven = is_it
    training.pass_s(patience_s)
    assert training.alarms == []
    training.pass_s(2)
    assert training.alarms == [patience_s]
    assert len(asked) == 1


@pytest.mark.parametrize(
    ('usual_s', 'busy_s', 'patience_s'),
    [
        (None, 0, 60),
        (None, 100, 160),
        (None, 1000, 600),
        (0.1, 0, 60),
        (10.0, 0, 60),
        (50.0, 0, 100),
        (300.0, 700, 1300),
    ],
)
def test_what_uses_no_core_needs_less_patience(usual_s, busy_s, patience_s):
    training = Training()
    training.running = STEP._replace(usual_s=usual_s)
    training.watchdog.read_idle_s = lambda _: max(training.now_s - busy_s, 0.0)
    training.pass_s(patience_s - 2)
    assert training.alarms == []
    training.pass_s(4)
    assert training.alarms == [pytest.approx(patience_s, abs=1)]
    training.pass_s(700)
    assert len(training.alarms) == 2


def test_time_in_which_it_did_not_run_itself_does_not_count():
    training = Training()
    training.pass_s(30)
    training.now_s += 5000  # SIGSTOP, or a host that slept
    training.pass_s(29)
    assert training.alarms == []
    training.pass_s(5)
    assert training.alarms == [60]


MUTE = """
import os, re, sys, time
from pathlib import Path
from mmgpu_hooks.measure.watchdog import Running, Watchdog
path = Path(sys.argv[1])
dog = Watchdog(0.2, lambda: None, print, print, stack_path=path)
dog.start()
time.sleep(0.5)
if os.fork() == 0:
    sys.exit()  # as Python ends, and not at once as a worker does
os.wait()
assert not path.stat().st_size
re.match('(a+)+b', 'a' * 25)  # a second and more, without letting others run
time.sleep(0.5)
assert not path.stat().st_size, 'it went on'
dog.stop()
assert not path.exists()
"""


def test_c_code_that_holds_the_lock_leaves_its_stack(tmp_path):
    path, seen = tmp_path / 'x.stack', ''
    with subprocess.Popen([sys.executable, '-c', MUTE, str(path)]) as child:
        while child.poll() is None:
            with contextlib.suppress(OSError):
                seen += path.read_text()
            time.sleep(0.02)
    assert child.returncode == 0
    assert ' in match' in seen


def test_a_debugger_is_no_standstill():
    training = Training()
    code = compile('training.pass_s(1000)', '/usr/lib/python3.11/pdb.py', 'exec')
    exec(code, {'training': training})
    assert training.alarms == []
    training.pass_s(62)
    assert training.alarms == [60]


def test_a_process_that_offers_no_stack_is_not_asked():
    with subprocess.Popen(['sleep', '60']) as child:
        # the signal would kill it
        assert ask_stack(child.pid, 3) == ()
        assert child.poll() is None
        child.kill()
    assert read_state(child.pid) == ProcessState('X')


def test_the_innermost_mount_holds_a_file(monkeypatch):
    types = ('/', 'rootfs'), ('/', 'ext4'), ('/mnt/my data', 'nfs4'), ('/mnt/my', 'nfs')
    mounts = [SimpleNamespace(mountpoint=point, fstype=kind) for point, kind in types]
    monkeypatch.setattr('psutil.disk_partitions', lambda **_: mounts)
    assert find_mount('/mnt/my data/a.jpg') == 'nfs4'
    assert find_mount('/mnt/mydata') == 'ext4'
    assert find_mount('/') == 'ext4'


@pytest.mark.parametrize(('wchan', 'call'), [('nfs4_wait', 'nfs4_wait'), ('0', 'read')])
def test_the_kernels_wait_is_known(tmp_path, wchan, call):
    folder = tmp_path / '7'
    folder.mkdir()
    (folder / 'stat').write_text('7 (python) D' + ' 0' * 30)
    number = {'x86_64': 0, 'aarch64': 63}[os.uname().machine]
    (folder / 'syscall').write_text(f'{number} 0x3 0x0')
    (folder / 'wchan').write_text(wchan)
    found = read_state(7, tmp_path)
    assert (found.state, found.call) == ('D', call)
