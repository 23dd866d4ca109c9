"""Tests which processes hold memory, read from fake kernel files."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from mmgpu_hooks.hooks.memory_source import MemoryPace
from mmgpu_hooks.measure.holders import HoldersMeter, MemoryRoom
from mmgpu_hooks.measure.manager import find_manager

PAGE = os.sysconf('SC_PAGE_SIZE')
MIB = 2**20
ROLLUP = 'a-b [rollup]\nRss: 900 kB\nPss: 500 kB\nPss_Anon: {} kB\nPss_File: 9 kB\n'


@pytest.fixture
def meter(tmp_path):
    """Memory meter on a fake host of 8000 kB, in a control group of 4000 kB."""
    proc, group = tmp_path / 'proc', tmp_path / 'sys/fs/cgroup/job'
    (proc / 'self').mkdir(parents=True)
    group.mkdir(parents=True)
    (proc / 'meminfo').write_text('MemTotal: 8000 kB\nMemAvailable: 5000 kB\n')
    (proc / 'self/cgroup').write_text('0::/job\n')
    (group / 'memory.max').write_text(str(4000 * 1024))
    (group / 'memory.current').write_text(str(3900 * 1024))
    stat = {'inactive_file': 700, 'active_file': 200, 'shmem': 40}
    lines = (f'{name} {size * 1024}\n' for name, size in stat.items())
    (group / 'memory.stat').write_text(''.join(lines))
    return HoldersMeter(proc, tmp_path / 'sys', tmp_path)


def test_the_bound_with_least_room_counts_without_its_page_cache(meter):
    room = meter.read_room()
    expected = MemoryRoom('group', 4000 * 1024, 3000 * 1024, 40 * 1024)
    assert room == expected
    assert room.free_bytes == 1000 * 1024


def test_of_a_host_without_groups_its_own_memory_counts(meter, tmp_path):
    (tmp_path / 'proc/self/cgroup').unlink()
    alone = HoldersMeter(tmp_path / 'proc', tmp_path / 'sys', tmp_path / 'none')
    room = MemoryRoom('host', 8000 * 1024, 3000 * 1024, None)
    assert alone.read_room() == room
    (tmp_path / 'proc/meminfo').unlink()
    assert alone.read_room() is None


@pytest.mark.parametrize(
    ('rollup', 'expected'),
    [(ROLLUP, (700 * 1024, True)), ('', (40 * PAGE, False)), ('Pss: 5 kB', None)],
    ids=['pss', 'hidden', 'a kernel before 5.9'],
)
def test_processes_count_shared_pages_once(meter, tmp_path, rollup, expected):
    for pid, size in (('7', 300), ('8', 400)):
        (tmp_path / 'proc' / pid).mkdir()
        (tmp_path / 'proc' / pid / 'statm').write_text('99 30 10 0 0 0 0')
        (tmp_path / 'proc' / pid / 'smaps_rollup').write_text(rollup.format(size))
    # one that is gone, and one that nobody waited for
    (tmp_path / 'proc/9').mkdir()
    (tmp_path / 'proc/9/statm').write_text('0 0 0 0 0 0 0')
    held = meter.read_processes([7, 8, 9, 10])
    assert held[:2] == (expected or (40 * PAGE, False))
    assert held.processes == 2 and held.largest_bytes < held.bytes
    assert meter.read_processes([9, 10]) is None


def test_programs_that_a_process_started_are_found_with_theirs():
    ends = ['sh', '-c', 'sleep 60 & echo $!; wait']
    with subprocess.Popen(ends, stdout=subprocess.PIPE, text=True) as shell:
        inner = int(shell.stdout.readline())
        found = set(HoldersMeter().list_started())
        os.kill(inner, signal.SIGKILL)
    assert {shell.pid, inner} <= found or not Path('/proc/self/task').is_dir()


def room(free_share: float) -> MemoryRoom:
    whole = 1000 * MIB
    return MemoryRoom('host', whole, int((1 - free_share) * whole), 0)


@pytest.mark.parametrize(
    ('free', 'expected'),
    [
        ([0.5, 0.4, 0.3], False),
        ([0.3, 0.19, 0.18], True),
        ([0.19, 0.19, 0.19], False),
        ([0.04], True),
    ],
    ids=['room is left', 'full soon', 'little that stays', 'full'],
)
def test_memory_is_low_when_it_is_full_or_soon_will_be(free, expected):
    pace = MemoryPace()
    said = [pace.is_low(2.0 * n, room(share)) for n, share in enumerate(free)]
    assert said[-1] is expected


def count_readings(until_s: float, cost_s: float, **how: bool) -> int:
    pace, count, now_s = MemoryPace(), 0, 0.0
    while now_s < until_s:
        if pace.is_due(now_s, room(0.5), **how):
            count += 1
            pace.note(now_s, room(0.5), cost_s, low=how['low'])
        now_s += pace.pause_s(now_s, room(0.5))
    return count


def test_full_readings_are_rare_and_cost_little_whatever_one_takes():
    calm = {'low': False, 'validates': False}
    assert 60 <= count_readings(3600, 0.001, **calm) <= 70
    # 0.5 s each: 0.2 % of the time at most
    assert count_readings(3600, 0.5, **calm) <= 15
    # a metric's results are weighed every few seconds
    assert count_readings(600, 0.001, low=False, validates=True) >= 80


@pytest.mark.parametrize(
    ('environ', 'group', 'file', 'expected'),
    [
        ({'KUBERNETES_SERVICE_HOST': '10.0.0.1'}, '', '.dockerenv', 'kubernetes'),
        ({}, '0::/', '.dockerenv', 'docker'),
        ({'SLURM_JOB_ID': '7'}, '0::/', 'run/.containerenv', 'podman'),
        ({'SLURM_JOB_ID': '7'}, '0::/system.slice/slurmstepd.scope', '', 'slurm'),
        ({}, '0::/user.slice/session-2.scope', '', 'systemd'),
        ({}, '0::/', '', None),
    ],
)
def test_the_container_or_job_manager_that_set_the_limits_is_named(
    tmp_path, environ, group, file, expected
):
    (tmp_path / 'proc/self').mkdir(parents=True)
    (tmp_path / 'proc/self/cgroup').write_text(group)
    if file:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    assert find_manager(environ, tmp_path) == expected
