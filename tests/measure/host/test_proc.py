from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from mmgpu_hooks.measure.proc import (
    read_affinity,
    read_process_cpu_s,
    read_pss_bytes,
    read_schedstat_s,
)

on_linux = pytest.mark.skipif(
    not Path('/proc/self/schedstat').exists(), reason='needs /proc/<pid>/schedstat'
)


@pytest.mark.parametrize(
    ('text', 'times'),
    [
        ('1500000000 250000000 42\n', (1.5, 0.25)),
        ('0 0 0\n', (0.0, 0.0)),
        *((text, None) for text in ('', '12\n', 'cpu 1 2\n', '1.5 2 3\n')),
    ],
)
def test_schedstat_is_cpu_and_run_delay_or_unknown(tmp_path: Path, text: str, times):
    (tmp_path / 'schedstat').write_text(text)
    assert read_schedstat_s(str(tmp_path / 'schedstat')) == times
    assert read_schedstat_s(str(tmp_path / 'gone')) is None


@pytest.mark.skipif(not hasattr(os, 'sched_getaffinity'), reason='no affinity here')
def test_affinity_of_this_process_and_of_none(monkeypatch):
    assert read_affinity() == frozenset(os.sched_getaffinity(0))
    child = subprocess.Popen([sys.executable, '-c', ''])
    child.wait()
    assert read_affinity(child.pid) is None
    monkeypatch.delattr(os, 'sched_getaffinity')
    assert read_affinity() is None


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
    pipes: dict[str, Any] = dict(
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    child = subprocess.Popen([sys.executable, '-c', code], **pipes)
    told_s = float(child.stdout.readline())
    assert told_s >= 0.1
    assert read_process_cpu_s(child.pid) == pytest.approx(told_s, abs=0.01)
    child.communicate('\n')
    assert read_process_cpu_s(child.pid) is None


@on_linux
def test_memory_is_read_of_a_process_that_lives():
    size = read_pss_bytes(os.getpid())
    assert size is not None
    assert 2**20 < size <= psutil.Process().memory_info().rss
    child = subprocess.Popen([sys.executable, '-c', ''])
    child.wait()
    assert read_pss_bytes(child.pid) is None
