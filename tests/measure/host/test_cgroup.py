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
GIB = 1 << 30


class Host:
    """A scripted ``/proc`` and ``/sys``."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / 'proc'
        self.sys = folder / 'sys'
        (self.proc / 'self').mkdir(parents=True)
        self.sys.mkdir()

    def groups(self, *lines: str) -> None:
        (self.proc / 'self' / 'cgroup').write_text('\n'.join(lines) + '\n')

    def mounts(self, *lines: str) -> None:
        other = '22 27 0:21 / /proc rw,relatime - proc proc rw'
        (self.proc / 'self' / 'mountinfo').write_text('\n'.join((other, *lines)))

    def group(self, path: str, **files: object) -> None:
        folder = self.sys / 'fs' / 'cgroup' / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (folder / name.replace('__', '.')).write_text(f'{value}\n')

    def limits(self) -> CgroupLimits:
        return read_cgroup_limits(self.proc, self.sys)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_groups_keep_colons_in_the_path():
    text = '4:cpu,cpuacct:/a:b\n1:name=systemd:/\n0::/user.slice\n'
    assert parse_cgroups(text) == {
        'cpu': '/a:b',
        'cpuacct': '/a:b',
        'name=systemd': '/',
        '': '/user.slice',
    }


def test_mounts_with_and_without_optional_fields_and_with_blanks():
    odd = r'35 32 0:40 /x\040y /mnt/a\040b rw shared:1 master:2 - cgroup cgroup rw,pids'
    assert parse_cgroup_mounts('\n'.join((V2, odd, 'torn line'))) == [
        CgroupMount(2, frozenset(), '/', '/sys/fs/cgroup'),
        CgroupMount(1, frozenset({'rw', 'pids'}), '/x y', '/mnt/a b'),
    ]


def test_v2_limits_of_the_own_group(host: Host):
    host.groups('0::/job')
    host.mounts(V2)
    host.group('job', cpu__max='250000 100000', memory__max=4 * GIB)
    assert host.limits() == CgroupLimits(2.5, 4 * GIB)


def test_v2_max_is_no_limit(host: Host):
    host.groups('0::/job')
    host.mounts(V2)
    host.group('job', cpu__max='max 100000', memory__max='max')
    assert host.limits() == CgroupLimits(None, None)


@pytest.mark.parametrize('tightest', ['', 'pod', 'pod/box', 'pod/box/job'])
def test_v2_the_smallest_of_all_ancestors_counts(host: Host, tightest: str):
    host.groups('0::/pod/box/job')
    host.mounts(V2)
    for path in ('', 'pod', 'pod/box', 'pod/box/job'):
        tight = path == tightest
        host.group(
            path,
            cpu__max='150000 100000' if tight else '800000 100000',
            memory__max=GIB if tight else 8 * GIB,
        )
    assert host.limits() == CgroupLimits(1.5, GIB)


def test_a_group_beside_ours_does_not_count(host: Host):
    host.groups('0::/pod/job')
    host.mounts(V2)
    host.group('pod/job', cpu__max='400000 100000')
    host.group('pod/other', cpu__max='100000 100000')
    assert host.limits() == CgroupLimits(4.0, None)


def test_v1_quota_and_memory_in_their_own_mounts(host: Host):
    host.groups('4:cpu,cpuacct:/slurm/job', '3:memory:/slurm/job')
    host.mounts(V1_CPU, V1_MEMORY)
    host.group('cpu,cpuacct', cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    host.group('cpu,cpuacct/slurm', cpu__cfs_quota_us=50000, cpu__cfs_period_us=25000)
    host.group('cpu,cpuacct/slurm/job', cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    host.group('memory', memory__limit_in_bytes=NO_LIMIT)
    host.group('memory/slurm', memory__limit_in_bytes=2 * GIB)
    host.group('memory/slurm/job', memory__limit_in_bytes=3 * GIB)
    assert host.limits() == CgroupLimits(2.0, 2 * GIB)


def test_v1_without_any_limit(host: Host):
    host.groups('4:cpu,cpuacct:/', '3:memory:/')
    host.mounts(V1_CPU, V1_MEMORY)
    host.group('cpu,cpuacct', cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    host.group('memory', memory__limit_in_bytes=NO_LIMIT)
    assert host.limits() == CgroupLimits(None, None)


def test_v1_memory_of_ancestors_out_of_sight(host: Host):
    host.groups('3:memory:/docker/box')
    host.mounts(V1_MEMORY)
    stat = f'cache 1\nhierarchical_memory_limit {5 * GIB}\nrss 2'
    host.group('memory', memory__limit_in_bytes=NO_LIMIT, memory__stat=stat)
    assert host.limits() == CgroupLimits(None, 5 * GIB)


@pytest.mark.parametrize('root', ['/docker/box', '/', '/../..', '/docker/elsewhere'])
def test_container_whose_path_is_not_visible_uses_the_mounts_root(
    host: Host, root: str
):
    host.groups('0::/docker/box')
    host.mounts(V2.replace(' / /sys', f' {root} /sys'))
    host.group('', cpu__max='300000 100000', memory__max=GIB)
    assert host.limits() == CgroupLimits(3.0, GIB)


def test_groups_of_containers_inside_ours_do_not_count(host: Host):
    host.groups('0::/docker/box')
    host.mounts(V2)
    host.group('', cpu__max='300000 100000')
    host.group('docker/inner', cpu__max='100000 100000')
    host.group('docker', cpu__max='200000 100000')
    assert host.limits() == CgroupLimits(3.0, None)


def test_a_group_below_the_containers_root_is_found(host: Host):
    host.groups('0::/docker/box/job')
    host.mounts(V2.replace(' / /sys', ' /docker/box /sys'))
    host.group('', cpu__max='300000 100000')
    host.group('job', cpu__max='100000 100000')
    assert host.limits() == CgroupLimits(1.0, None)


def test_a_path_above_the_namespace_stays_inside_the_mount(host: Host):
    host.groups('0::/../other')
    host.mounts(V2)
    host.group('', cpu__max='300000 100000')
    (host.sys / 'fs' / 'other').mkdir()
    (host.sys / 'fs' / 'other' / 'cpu.max').write_text('100000 100000')
    assert host.limits() == CgroupLimits(3.0, None)


def test_hybrid_reads_both_versions(host: Host):
    host.groups('4:cpu,cpuacct:/job', '0::/job')
    host.mounts(V1_CPU, V2.replace('/sys/fs/cgroup', '/sys/fs/cgroup/unified'))
    host.group('cpu,cpuacct/job', cpu__cfs_quota_us=400000, cpu__cfs_period_us=100000)
    host.group('unified/job', memory__max=GIB)
    assert host.limits() == CgroupLimits(4.0, GIB)


def test_no_cgroups_at_all(host: Host):
    assert host.limits() == CgroupLimits(None, None)
    host.groups('0::/job')
    assert host.limits() == CgroupLimits(None, None)


@pytest.mark.parametrize('text', ['', 'garbage', '0 100000', '100000 0', '100000'])
def test_a_quota_that_makes_no_sense_is_no_limit(host: Host, text: str):
    host.groups('0::/')
    host.mounts(V2)
    host.group('', cpu__max=text, memory__max='-1')
    assert host.limits() == CgroupLimits(None, None)


def test_v2_a_group_is_held_back_above_its_high_mark(host: Host):
    host.groups('0::/job')
    host.mounts(V2)
    host.group('job', memory__max=4 * GIB, memory__high=3 * GIB)
    assert host.limits() == CgroupLimits(None, 3 * GIB)


def test_a_hierarchy_that_is_mounted_twice_counts_once(host: Host):
    host.groups('0::/pod/job')
    host.mounts(V2, V2)
    host.group('pod/job')
    top = host.sys / 'fs' / 'cgroup'
    folders = [(2, top / 'pod' / 'job'), (2, top / 'pod'), (2, top)]
    assert read_cgroup_folders('cpu', host.proc, host.sys) == folders
