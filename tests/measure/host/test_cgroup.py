"""Limits of control groups, over a scripted ``/proc`` and ``/sys``."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmgpu_hooks.measure.cgroup import (
    CgroupLimits,
    CgroupMount,
    parse_cgroup_mounts,
    parse_cgroups,
    read_cgroup_folders,
    read_cgroup_limits,
)

V2 = '31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate'
V1_CPU = '33 32 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct'
V1_MEMORY = '34 32 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory'
NO_LIMIT = 9223372036854771712


def mounted(root: str) -> list[str]:
    """Version 2 that shows a group other than the top one."""
    return [V2.replace(' / /sys', f' {root} /sys')]


def nested(tightest: str) -> str:
    """Groups in each other, one of which has less than the others."""
    limits = {up: 3 if up == tightest else 8 for up in ('', 'pod/', 'pod/job/')}
    return '; '.join(
        f'{up}cpu.max={n} 1; {up}memory.max={n}' for up, n in limits.items()
    )


def lay(folder: Path, groups: str, mounts: list[str], files: str) -> Path:
    """Write ``/proc`` and ``/sys``: files as ``path=text; path=text``."""
    (folder / 'proc' / 'self').mkdir(parents=True)
    (folder / 'proc' / 'self' / 'cgroup').write_text(groups.replace(' ', '\n'))
    other = '22 27 0:21 / /proc rw,relatime - proc proc rw'
    (folder / 'proc' / 'self' / 'mountinfo').write_text('\n'.join((other, *mounts)))
    for file in filter(None, files.split('; ')):
        name, _, text = file.partition('=')
        path = folder / 'sys' / 'fs' / 'cgroup' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{text}\n')
    return folder


@pytest.mark.parametrize(
    ('groups', 'mounts', 'files', 'limits'),
    [
        # the own group; "max" is no limit; past "high" a group is held back
        ('0::/job', [V2], 'job/cpu.max=5 2; job/memory.max=4', (2.5, 4)),
        ('0::/job', [V2], 'job/cpu.max=max 2; job/memory.max=max', (None, None)),
        ('0::/job', [V2], 'job/memory.max=4; job/memory.high=3', (None, 3)),
        # the smallest of all ancestors
        *(
            ('0::/pod/job', [V2], nested(at), (3.0, 3))
            for at in ('', 'pod/', 'pod/job/')
        ),
        # a group beside ours, and containers inside ours, do not count
        (
            '0::/pod/job',
            [V2],
            'pod/job/cpu.max=4 1; pod/other/cpu.max=1 1',
            (4.0, None),
        ),
        ('0::/docker/box', [V2], 'cpu.max=3 1; docker/in/cpu.max=1 1', (3.0, None)),
        # version 1
        (
            '4:cpu,cpuacct:/s/job 3:memory:/s/job',
            [V1_CPU, V1_MEMORY],
            'cpu,cpuacct/s/cpu.cfs_quota_us=4; cpu,cpuacct/s/cpu.cfs_period_us=2; '
            'cpu,cpuacct/s/job/cpu.cfs_quota_us=-1; '
            'cpu,cpuacct/s/job/cpu.cfs_period_us=2; '
            f'memory/memory.limit_in_bytes={NO_LIMIT}; '
            'memory/s/memory.limit_in_bytes=2; memory/s/job/memory.limit_in_bytes=3',
            (2.0, 2),
        ),
        # an ancestor out of sight
        (
            '3:memory:/docker/box',
            [V1_MEMORY],
            f'memory/memory.limit_in_bytes={NO_LIMIT}; '
            'memory/memory.stat=cache 1\nhierarchical_memory_limit 5',
            (None, 5),
        ),
        # both versions
        (
            '4:cpu,cpuacct:/job 0::/job',
            [V1_CPU, V2.replace('/sys/fs/cgroup', '/sys/fs/cgroup/unified')],
            'cpu,cpuacct/job/cpu.cfs_quota_us=4; cpu,cpuacct/job/cpu.cfs_period_us=1; '
            'unified/job/memory.max=7',
            (4.0, 7),
        ),
        # a container whose path is not visible uses the root of its mount
        *(
            ('0::/docker/box', mounted(root), 'cpu.max=3 1; memory.max=7', (3.0, 7))
            for root in ('/docker/box', '/', '/../..', '/docker/elsewhere')
        ),
        # below that root; above the namespace, which stays inside the mount
        (
            '0::/docker/box/job',
            mounted('/docker/box'),
            'cpu.max=3 1; job/cpu.max=1 1',
            (1.0, None),
        ),
        ('0::/../other', [V2], 'cpu.max=3 1; ../other/cpu.max=1 1', (3.0, None)),
        # no sense
        *(
            ('0::/', [V2], f'cpu.max={text}; memory.max=-1', (None, None))
            for text in ('', 'garbage', '0 100000', '100000 0', '100000')
        ),
        ('0::/job', [], '', (None, None)),
    ],
)
def test_the_smallest_limit_counts(tmp_path: Path, groups, mounts, files, limits):
    host = lay(tmp_path, groups, mounts, files)
    found = read_cgroup_limits(host / 'proc', host / 'sys')
    assert found == CgroupLimits(*limits)
    assert read_cgroup_limits(host, host) == CgroupLimits(None, None)


def test_lines_that_the_kernel_writes():
    text = '4:cpu,cpuacct:/a:b\n1:name=systemd:/\n0::/user.slice\n'
    assert parse_cgroups(text) == {
        'cpu': '/a:b',
        'cpuacct': '/a:b',
        'name=systemd': '/',
        '': '/user.slice',
    }
    odd = r'35 32 0:40 /x\040y /mnt/a\040b rw shared:1 master:2 - cgroup cgroup rw,pids'
    assert parse_cgroup_mounts('\n'.join((V2, odd, 'torn line'))) == [
        CgroupMount(2, frozenset(), '/', '/sys/fs/cgroup'),
        CgroupMount(1, frozenset({'rw', 'pids'}), '/x y', '/mnt/a b'),
    ]


def test_a_hierarchy_that_is_mounted_twice_counts_once(tmp_path: Path):
    host = lay(tmp_path, '0::/pod/job', [V2, V2], 'pod/job/cpu.max=max')
    top = host / 'sys' / 'fs' / 'cgroup'
    folders = [(2, top / 'pod' / 'job'), (2, top / 'pod'), (2, top)]
    assert read_cgroup_folders('cpu', host / 'proc', host / 'sys') == folders
