from __future__ import annotations

import os
from pathlib import Path

import pytest

from mmgpu_hooks.measure.host import CpuMeter, OwnFiles, read_system_cpu_times
from mmgpu_hooks.measure.proc import page_size_bytes

STAT = 'cpu  100 20 300 4000 50 6 7 8 9 10\ncpu0 1 1 1 1 1 1 1 1 1 1\n'


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / 'stat').write_text(STAT)
    for own in ('self', str(os.getpid())):
        (tmp_path / own).mkdir()
        (tmp_path / own / 'schedstat').write_text('97340213 2500000000 2\n')
    (tmp_path / 'self' / 'statm').write_text('278060 1500 10823 1029 0 160771 0\n')
    return tmp_path


def test_files_are_read_anew_each_time(proc: Path):
    files = OwnFiles(proc)
    assert files.read_cpu_times() == read_system_cpu_times(proc)
    assert files.read_run_delay_s() == 2.5
    assert files.read_rss_bytes() == 1500 * page_size_bytes()
    meter = CpuMeter(files.read_cpu_times, lambda: 0.0, files.read_run_delay_s)
    ticks = os.sysconf('SC_CLK_TCK')
    # 3 s more of user, nice and steal, 1 s of idle; guest time is inside user
    new = [100 + ticks, 20 + ticks, 300, 4000 + ticks, 50, 6, 7, 8 + ticks, 9 + 9, 10]
    (proc / 'stat').write_text(f'cpu  {" ".join(map(str, new))}\n')
    (proc / 'self' / 'schedstat').write_text('97340213 4000000000 2\n')
    (proc / 'self' / 'statm').write_text('278060 1700 10823 1029 0 160771 0\n')
    reading = meter.read()
    assert reading.system_cpu_pct == pytest.approx(75.0)
    assert reading.process_run_delay_s == 1.5
    assert files.read_rss_bytes() == 1700 * page_size_bytes()
    # the kernel takes back what it had counted as waiting for storage
    new[4] -= 40
    (proc / 'stat').write_text(f'cpu  {" ".join(map(str, new))}\n')
    assert meter.read().system_cpu_pct is None
    files.close()


@pytest.mark.parametrize('name', ['stat', 'self/schedstat', 'self/statm'])
def test_what_is_not_understood_is_left_to_who_looks_elsewhere(proc: Path, name: str):
    files = OwnFiles(proc)
    (proc / name).write_text('garbage\n')
    assert files.read_cpu_times() == pytest.approx(read_system_cpu_times(proc), abs=1)
    assert files.read_run_delay_s() == 2.5
    assert files.read_rss_bytes() is not None
    files.close()


def test_without_proc_it_looks_elsewhere_too(tmp_path: Path):
    files = OwnFiles(tmp_path)
    assert files.read_cpu_times().idle > 0.0
    assert files.read_run_delay_s() is None
    assert files.read_rss_bytes() is not None
    files.close()


def test_on_this_host_it_tells_of_this_process_and_leaves_nothing_open():
    before = set(os.listdir('/proc/self/fd'))
    files = OwnFiles()
    assert len(set(os.listdir('/proc/self/fd')) - before) == 3
    delay_s, rss_bytes = files.read_run_delay_s(), files.read_rss_bytes()
    assert delay_s is not None and delay_s >= 0.0
    assert rss_bytes is not None and rss_bytes > 1 << 20
    files.close()
    files.close()
    assert set(os.listdir('/proc/self/fd')) == before
