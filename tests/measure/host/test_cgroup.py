"""Tests limits of control groups, read from a fake ``/proc`` and ``/sys``."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmgpu_hooks.measure.cgroup import (
    find_cpu_groups,
    find_memory_groups,
    read_throttled_s,
)

NO_LIMIT = 9223372036854771712


def nested(tightest: str) -> str:
    """Returns files of nested control groups; one of them has the lowest limits."""
    limits = {up: 3 if up == tightest else 8 for up in ('', 'pod/', 'pod/job/')}
    return '; '.join(
        f'{up}cpu.max={n} 1; {up}memory.max={n}' for up, n in limits.items()
    )


def lay(folder: Path, groups: str, files: str) -> tuple[Path, Path]:
    """Writes a fake ``/proc`` and ``/sys`` from a text ``path=text; path=text``."""
    (folder / 'proc' / 'self').mkdir(parents=True)
    (folder / 'proc' / 'self' / 'cgroup').write_text(groups.replace(' ', '\n'))
    for file in filter(None, files.split('; ')):
        name, _, text = file.partition('=')
        path = folder / 'sys' / 'fs' / 'cgroup' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{text}\n')
    return folder / 'proc', folder / 'sys'


@pytest.mark.parametrize(
    ('groups', 'files', 'limits'),
    [
        # the own group; "max" is no limit; past "high" a group is held back
        ('0::/job', 'job/cpu.max=5 2; job/memory.max=4', (2.5, 4)),
        ('0::/job', 'job/cpu.max=max 2; job/memory.max=max', (None, None)),
        ('0::/job', 'job/memory.max=4; job/memory.high=3', (None, 3)),
        # the smallest of all ancestors
        *(('0::/pod/job', nested(at), (3.0, 3)) for at in ('', 'pod/', 'pod/job/')),
        # a group beside ours, and containers inside ours, do not count
        ('0::/pod/job', 'pod/job/cpu.max=4 1; pod/other/cpu.max=1 1', (4.0, None)),
        ('0::/docker/box', 'cpu.max=3 1; docker/in/cpu.max=1 1', (3.0, None)),
        # version 1, whose folders have the names of the controllers, or of one of them
        *(
            (
                '4:cpu,cpuacct:/s/job 3:memory:/s/job',
                f'{cpu}/s/cpu.cfs_quota_us=4; {cpu}/s/cpu.cfs_period_us=2; '
                f'{cpu}/s/job/cpu.cfs_quota_us=-1; {cpu}/s/job/cpu.cfs_period_us=2; '
                f'memory/memory.limit_in_bytes={NO_LIMIT}; '
                'memory/s/memory.limit_in_bytes=2; '
                'memory/s/job/memory.limit_in_bytes=3',
                (2.0, 2),
            )
            for cpu in ('cpu,cpuacct', 'cpu')
        ),
        # both versions
        (
            '4:cpu,cpuacct:/job 0::/job',
            'cpu,cpuacct/job/cpu.cfs_quota_us=4; cpu,cpuacct/job/cpu.cfs_period_us=1; '
            'unified/job/memory.max=7',
            (4.0, 7),
        ),
        # a container sees the end of its path, or nothing of it
        ('0::/docker/box/job', 'cpu.max=3 1; job/cpu.max=1 1', (1.0, None)),
        ('0::/docker/box', 'cpu.max=3 1; memory.max=7', (3.0, 7)),
        # what is above the namespace stays inside the mount
        ('0::/../other', 'cpu.max=3 1; ../other/cpu.max=1 1', (3.0, None)),
        # no sense
        *(
            ('0::/', f'cpu.max={text}; memory.max=-1', (None, None))
            for text in ('', 'garbage', '0 100000', '100000 0', '100000')
        ),
        ('0::/job', '', (None, None)),
    ],
)
def test_the_smallest_limit_counts(tmp_path: Path, groups, files, limits):
    roots = lay(tmp_path, groups, files)
    cores = [group.cores for group in find_cpu_groups(*roots)]
    sizes = [group.limit_bytes for group in find_memory_groups(*roots)]
    assert (min(cores, default=None), min(sizes, default=None)) == limits
    assert find_cpu_groups(tmp_path, tmp_path) == []


@pytest.mark.parametrize(
    ('text', 'seconds'),
    [
        ('nr_periods 4\nnr_throttled 2\nthrottled_time 2740115021\n', 2.740115021),
        ('usage_usec 9\nnr_throttled 2\nthrottled_usec 2740115\n', 2.740115),
    ],
)
def test_each_version_counts_in_its_own_unit(tmp_path: Path, text: str, seconds):
    (tmp_path / 'cpu.stat').write_text(text)
    assert read_throttled_s(tmp_path) == seconds
