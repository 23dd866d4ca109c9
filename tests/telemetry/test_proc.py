from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmgpu_hooks.records import SchedStat
from mmgpu_hooks.telemetry.proc import parse_schedstat, read_affinity, read_schedstat
from mmgpu_hooks.telemetry.source_error import SourceError

on_linux = pytest.mark.skipif(
    not Path('/proc/self/schedstat').exists(), reason='needs /proc/<pid>/schedstat'
)


def plant(proc: Path, pid: int, threads: dict[int, str]) -> None:
    for thread, text in threads.items():
        folder = proc / str(pid) / 'task' / str(thread)
        folder.mkdir(parents=True)
        (folder / 'schedstat').write_text(text)
        if thread == pid:
            (proc / str(pid) / 'schedstat').write_text(text)


def test_schedstat_is_read_in_seconds():
    text = '1500000000 250000000 42\n'
    assert parse_schedstat(text) == SchedStat(cpu_s=1.5, run_delay_s=0.25)


@pytest.mark.parametrize('text', ['', '12\n', 'cpu 1 2\n', '1.5 2 3\n'])
def test_schedstat_of_another_form_is_an_error_that_shows_it(text: str):
    with pytest.raises(SourceError, match='schedstat') as error:
        parse_schedstat(text)
    assert repr(text) in error.value.reason


def test_all_threads_of_a_process_are_added(tmp_path: Path):
    plant(tmp_path, 7, {7: '1000000000 0 1', 9: '2000000000 500000000 1'})
    assert read_schedstat(7, tmp_path) == SchedStat(3.0, 0.5)
    assert read_schedstat(7, tmp_path, all_threads=False) == SchedStat(1.0, 0.0)


def test_a_thread_that_ended_after_the_listing_is_left_out(tmp_path: Path):
    plant(tmp_path, 7, {7: '1000000000 0 1'})
    (tmp_path / '7' / 'task' / '9').mkdir()
    assert read_schedstat(7, tmp_path) == SchedStat(1.0, 0.0)


def test_a_process_that_is_gone_or_hidden_is_none(tmp_path: Path):
    assert read_schedstat(7, tmp_path) is None
    assert read_schedstat(7, tmp_path, all_threads=False) is None
    (tmp_path / '8' / 'task' / '8').mkdir(parents=True)  # no scheduler statistics
    assert read_schedstat(8, tmp_path) is None


@on_linux
def test_a_real_child_is_read_until_it_is_reaped():
    code = 'import time; time.sleep(60)'
    child = subprocess.Popen([sys.executable, '-c', code])
    try:
        deadline = time.perf_counter() + 10
        while (stat := read_schedstat(child.pid)) is None or stat.cpu_s == 0.0:
            assert time.perf_counter() < deadline
    finally:
        child.kill()
        child.wait()
    assert read_schedstat(child.pid) is None


@on_linux
def test_real_cpu_time_agrees_with_the_kernels_own_clock():
    before, start = read_schedstat(os.getpid()), time.process_time()
    while time.process_time() - start < 0.3:
        pass
    spent, after = time.process_time() - start, read_schedstat(os.getpid())
    assert before is not None and after is not None
    assert after.cpu_s - before.cpu_s == pytest.approx(spent, abs=0.05)


@pytest.mark.skipif(not hasattr(os, 'sched_getaffinity'), reason='platform tells none')
def test_affinity_of_this_process_and_of_none():
    assert read_affinity() == frozenset(os.sched_getaffinity(0))
    child = subprocess.Popen([sys.executable, '-c', ''])
    child.wait()
    assert read_affinity(child.pid) is None


def test_affinity_is_none_where_the_platform_does_not_tell(monkeypatch):
    monkeypatch.delattr(os, 'sched_getaffinity', raising=False)
    assert read_affinity() is None
