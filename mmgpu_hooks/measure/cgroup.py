"""Reads this process's control groups: CPU and memory limits, and throttled seconds.

Version 1, version 2 and both at once, where systemd and containers mount them; the
limit that counts is the smallest over the process's own group and all its ancestors.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_NO_LIMIT_BYTES = 1 << 60
"""Smallest number of bytes that means "no limit" in control groups of version 1.

The kernel writes the largest page-aligned number.
"""

_THROTTLED = {'throttled_time': 1e9, 'throttled_usec': 1e6}
"""Units per second of each ``cpu.stat`` field that may hold the throttled time."""


class CpuGroup(NamedTuple):
    """CPU quota of a control group, in cores, and the control group's folder."""

    cores: float
    """CPU quota of the control group, in cores."""
    folder: Path


class MemoryGroup(NamedTuple):
    """Memory limit of a control group, in bytes, and the control group's folder."""

    limit_bytes: int
    folder: Path


class GroupFolder(NamedTuple):
    """Folder of a control group, and the version of its hierarchy."""

    version: int
    """Version of the control group's hierarchy: 1 or 2."""
    folder: Path


def find_cpu_groups(proc: Path, sys: Path) -> list[CpuGroup]:
    """Lists this process's control groups, ancestors included, with a CPU quota."""
    return [
        CpuGroup(cores, folder)
        for version, folder in read_cgroup_folders('cpu', proc, sys)
        if (cores := _cpu_cores(folder, version))
    ]


def find_memory_groups(proc: Path, sys: Path) -> list[MemoryGroup]:
    """Lists this process's control groups, ancestors included, with a memory limit.

    Any of them may be full first.
    """
    return [
        MemoryGroup(min(limits), folder)
        for version, folder in read_cgroup_folders('memory', proc, sys)
        if (limits := _memory_limits(folder, version))
    ]


def read_cgroup_folders(controller: str, proc: Path, sys: Path) -> list[GroupFolder]:
    """Finds the folders of this process's control group and of all its ancestors.

    ``/proc/self/cgroup`` names controllers and path; version 2 has no controllers::

        4:cpu,cpuacct:/docker/0f3a
        0::/user.slice/session-2.scope

    Args:
        controller: Such as ``cpu``. Files in a folder show if version 2 has it
            switched on there.
        proc: Root of the proc file system.
        sys: Root of the sys file system, where control groups are mounted.

    Returns:
        Own group first.
    """
    folders = []
    for line in _read(proc / 'self' / 'cgroup').splitlines():
        _, _, group = line.partition(':')
        names, _, path = group.partition(':')
        if names and controller not in names.split(','):
            continue
        version = 1 if names else 2
        for name in (names, controller) if names else ('unified', ''):
            top = sys / 'fs' / 'cgroup' / name
            if top.is_dir():
                folder = _own_folder(top, path)
                folders.append(GroupFolder(version, folder))
                while folder != top:
                    folder = folder.parent
                    folders.append(GroupFolder(version, folder))
                break
    return folders


def _own_folder(top: Path, path: str) -> Path:
    """Finds the folder of a control group, even if a container hides part of the path.

    It may show the end only, or nothing.

    Args:
        top: Where the hierarchy is mounted.
        path: Of the group, from its root.
    """
    parts = [part for part in path.split('/') if part]
    # "/../x" is a group above our cgroup namespace: not visible from here
    while parts and '..' not in parts:
        if (folder := top.joinpath(*parts)).is_dir():
            return folder
        del parts[0]
    return top


def _cpu_cores(folder: Path, version: int) -> float | None:
    """Returns the CPU quota of one control group in cores; ``None`` if it has none."""
    names = ['max'] if version == 2 else ['cfs_quota_us', 'cfs_period_us']
    words = ' '.join(_read(folder / f'cpu.{name}') for name in names).split()
    try:
        quota_us, period_us = map(int, words)
    except ValueError:  # "max", or nothing
        return None
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None


def _memory_limits(folder: Path, version: int) -> list[int]:
    """Returns the memory limits, in bytes, that one control group states."""
    # past "high" the kernel stalls the group until it has given back enough
    names = ('max', 'high') if version == 2 else ('limit_in_bytes',)
    texts = [_read(folder / f'memory.{name}') for name in names]
    numbers = [int(text) for text in texts if text.strip().isdigit()]
    return [number for number in numbers if 0 < number < _NO_LIMIT_BYTES]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding='utf-8', errors='replace')
    except OSError:
        return ''


def read_throttled_s(folder: Path) -> float:
    """Returns the seconds (summed over CPUs) that a quota throttled a control group.

    ``cpu.stat`` counts them since the group was made::

        nr_periods 120
        nr_throttled 31
        throttled_time 2740115021

    Raises:
        OSError: If the group vanished.
        ValueError: If the file makes no sense.
    """
    for line in (folder / 'cpu.stat').read_text().splitlines():
        name, _, value = line.partition(' ')
        if name in _THROTTLED:
            return int(value) / _THROTTLED[name]
    raise ValueError(f'{folder / "cpu.stat"} counts no throttling')
