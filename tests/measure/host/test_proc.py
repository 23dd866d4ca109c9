from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.proc import (
    OpenSchedStat,
    TaskTimes,
    parse_schedstat,
    read_affinity,
    read_process_cpu_s,
    read_pss_bytes,
)

on_linux = pytest.mark.skipif(
    not Path('/proc/self/schedstat').exists(), reason='needs /proc/<pid>/schedstat'
)


def plant(proc: Path, pid: int, threads: dict[int, str]) -> None:
    for thread, text in threads.items():
        folder = proc / str(pid) / 'task' / str(thread)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / 'schedstat').write_text(text)
        if thread == pid:
            (proc / str(pid) / 'schedstat').write_text(text)


def test_schedstat_is_cpu_and_run_delay():
    assert parse_schedstat('1500000000 250000000 42\n') == (1_500_000_000, 250_000_000)


@pytest.mark.parametrize('text', ['', '12\n', 'cpu 1 2\n', '1.5 2 3\n'])
def test_schedstat_of_another_form_is_an_error_that_shows_it(text: str):
    with pytest.raises(SourceError, match='schedstat') as error:
        parse_schedstat(text)
    assert repr(text) in error.value.reason


@pytest.mark.skipif(not hasattr(os, 'sched_getaffinity'), reason='platform tells none')
def test_affinity_of_this_process_and_of_none():
    assert read_affinity() == frozenset(os.sched_getaffinity(0))
    child = subprocess.Popen([sys.executable, '-c', ''])
    child.wait()
    assert read_affinity(child.pid) is None


def test_affinity_is_none_where_the_platform_does_not_tell(monkeypatch):
    monkeypatch.delattr(os, 'sched_getaffinity', raising=False)
    assert read_affinity() is None


def test_threads_kept_open_are_read_again_and_again(tmp_path: Path):
    plant(tmp_path, 7, {7: '1000000000 0 1', 9: '2000000000 500000000 1'})
    stat = OpenSchedStat(7, tmp_path)
    assert stat.read() == TaskTimes(1.0, 0.0, 1.0, 0.0)
    stat.relist()
    assert stat.read() == TaskTimes(1.0, 0.0, 3.0, 0.5)
    plant(tmp_path, 7, {7: '3000000000 250000000 1'})
    assert stat.read() == TaskTimes(3.0, 0.25, 5.0, 0.75)
    stat.close()
    stat.close()
    assert stat.read() is None


def test_without_a_file_to_keep_the_main_thread_alone_is_read(tmp_path: Path):
    plant(tmp_path, 7, {7: '1000000000 0 1', 9: '2000000000 500000000 1'})
    stat = OpenSchedStat(7, tmp_path, 0)
    stat.relist()
    assert stat.read() == TaskTimes(1.0, 0.0, 1.0, 0.0)
    plant(tmp_path, 7, {7: '3000000000 250000000 1'})
    assert stat.read() == TaskTimes(3.0, 0.25, 3.0, 0.25)
    (tmp_path / '7' / 'schedstat').unlink()
    assert stat.read() is None


def test_a_hidden_process_is_never_read(tmp_path: Path):
    stat = OpenSchedStat(7, tmp_path)
    stat.relist()
    assert stat.read() is None


def test_a_kept_file_that_is_not_understood_is_an_error_that_shows_it(tmp_path: Path):
    plant(tmp_path, 7, {7: 'garbage'})
    stat = OpenSchedStat(7, tmp_path)
    with pytest.raises(SourceError, match='garbage'):
        stat.read()
    stat.close()


@on_linux
def test_what_a_thread_counted_stays_when_it_ends():
    busy, done = threading.Event(), threading.Event()

    def work() -> None:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        busy.set()
        done.wait(10)

    stat = OpenSchedStat(os.getpid(), most_files=64)
    before = stat.read()
    thread = threading.Thread(target=work)
    thread.start()
    assert busy.wait(10)
    stat.relist()
    while_alive = stat.read()
    done.set()
    thread.join()
    after = stat.read()
    stat.close()
    assert before is not None and while_alive is not None and after is not None
    assert while_alive.cpu_s - before.cpu_s >= 0.05
    assert after.cpu_s >= while_alive.cpu_s


@on_linux
def test_the_clock_of_another_process_counts_its_threads_that_ended():
    code = (
        'import threading, time\n'
        'def burn():\n'
        '    while time.thread_time() < 0.1: pass\n'
        'thread = threading.Thread(target=burn)\n'
        'thread.start(); thread.join()\n'
        'print(time.process_time(), flush=True); input()\n'
    )
    child = subprocess.Popen(
        [sys.executable, '-c', code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    told_s = float(child.stdout.readline())
    assert told_s >= 0.1
    assert read_process_cpu_s(child.pid) == pytest.approx(told_s, abs=0.01)
    child.communicate('\n')
    assert read_process_cpu_s(child.pid) is None


def test_the_clock_of_another_process_is_unknown_elsewhere(monkeypatch):
    monkeypatch.setattr(sys, 'platform', 'darwin')
    assert read_process_cpu_s(os.getpid()) is None


def test_memory_is_read_in_bytes(tmp_path: Path):
    (tmp_path / '7').mkdir()
    rollup = tmp_path / '7' / 'smaps_rollup'
    rollup.write_text(
        '55d0-7ffd ---p 00000000 00:00 0    [rollup]\n'
        'Rss:            900 kB\nPss:             12 kB\nPss_Anon:         3 kB\n'
    )
    assert read_pss_bytes(7, tmp_path) == 12 * 1024
    rollup.write_text('Rss: 900 kB\n')
    assert read_pss_bytes(7, tmp_path) is None
    assert read_pss_bytes(8, tmp_path) is None
