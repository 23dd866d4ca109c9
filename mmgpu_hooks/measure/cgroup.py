"""What control groups allow this process, and how long they held it back.

Version 1, version 2 and both at once; the limit that counts is the smallest
over the process's own group and all its ancestors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_NO_LIMIT_BYTES = 1 << 60
"""Version 1 writes "no limit" as the largest page-aligned number."""

_V2 = ''
"""Name of the version 2 hierarchy in ``/proc/self/cgroup``: no controller."""


class CgroupMount(NamedTuple):
    """One mounted cgroup hierarchy, as ``/proc/self/mountinfo`` tells it."""

    version: int
    controllers: frozenset[str]
    """Version 1 only; empty for version 2."""
    root: str
    """Path inside the hierarchy that shows at the mount point."""
    mount_point: str


class CgroupLimits(NamedTuple):
    """``None`` is no limit, or none that this process can see."""

    cpu_cores: float | None
    memory_bytes: int | None


def parse_cgroups(text: str) -> dict[str, str]:
    """Parse ``/proc/self/cgroup``: controller to path of this process's group.

    Version 2 has the empty controller name::

        4:cpu,cpuacct:/docker/0f3a
        0::/user.slice/session-2.scope
    """
    paths = {}
    for line in text.splitlines():
        fields = line.split(':', 2)
        if len(fields) == 3:
            for controller in fields[1].split(','):
                paths[controller] = fields[2]
    return paths


def parse_cgroup_mounts(text: str) -> list[CgroupMount]:
    """Parse the cgroup lines of ``/proc/self/mountinfo``.

    Optional fields end at the lone dash; blanks in paths are octal escapes::

        33 32 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
        31 23 0:28 /kubepods/pod1 /sys/fs/cgroup ro - cgroup2 cgroup rw
    """
    mounts = []
    for line in text.splitlines():
        left, dash, right = line.partition(' - ')
        fields, kind = left.split(' '), right.split(' ')
        if not dash or len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] not in ('cgroup', 'cgroup2'):
            continue
        version = 2 if kind[0] == 'cgroup2' else 1
        options = frozenset(kind[2].split(',')) if version == 1 else frozenset()
        mounts.append(
            CgroupMount(version, options, _unescape(fields[3]), _unescape(fields[4]))
        )
    return mounts


def read_cgroup_limits(proc: Path, sys: Path) -> CgroupLimits:
    """Read the limits of this process's control groups.

    Inside a container ``/proc/self/cgroup`` often names a path that is not
    visible under the mount; the mount's own root is then the process's group.

    Args:
        proc: Root of the proc file system.
        sys: Root that stands for ``/sys`` in mount points.

    Returns:
        The smallest limits found; a missing or unreadable file is no limit.
    """
    cores: list[float] = []
    limits: list[int] = []
    for version, folder in read_cgroup_folders('cpu', proc, sys):
        quota = _cpu_cores(folder, version)
        if quota is not None:
            cores.append(quota)
    for version, folder in read_cgroup_folders('memory', proc, sys):
        limits.extend(_memory_limits(folder, version))
    return CgroupLimits(min(cores, default=None), min(limits, default=None))


def find_memory_groups(proc: Path, sys: Path) -> list[tuple[int, Path]]:
    """Memory limit and folder of each group that has one: any may be full first."""
    return [
        (min(limits), folder)
        for version, folder in read_cgroup_folders('memory', proc, sys)
        if (limits := _memory_limits(folder, version))
    ]


def count_cpuset_cpus(proc: Path, sys: Path) -> int | None:
    """Count the CPUs of this process's cpuset; it takes the arguments of the above."""
    for version, folder in read_cgroup_folders('cpuset', proc, sys):
        name = 'cpuset.cpus.effective' if version == 2 else 'cpuset.effective_cpus'
        try:
            return _count_cpus(_read(folder / name) or '') or None
        except ValueError:
            continue
    return None


def _count_cpus(text: str) -> int:
    """Count those of a list such as ``0-3,8``."""
    ends = [part.split('-') for part in text.split(',')]
    return sum(int(one[-1]) - int(one[0]) + 1 for one in ends)


def read_cgroup_folders(
    controller: str, proc: Path, sys: Path
) -> list[tuple[int, Path]]:
    """Find the folders of this process's group and of all its ancestors.

    Args:
        controller: Such as ``cpu``. Whether version 2 has it switched on in a
            folder, the files in that folder tell.
        proc: Root of the proc file system.
        sys: Root that stands for ``/sys`` in mount points.

    Returns:
        Version of the hierarchy and folder, own group first, each folder once.
    """
    paths = parse_cgroups(_read(proc / 'self' / 'cgroup') or '')
    mounts = parse_cgroup_mounts(_read(proc / 'self' / 'mountinfo') or '')
    folders = []
    for mount in mounts:
        if mount.version == 1 and controller not in mount.controllers:
            continue
        path = paths.get(controller if mount.version == 1 else _V2)
        if path is None:
            continue
        top = _rebase(mount.mount_point, sys)
        folder = _own_folder(top, mount.root, path)
        while True:
            folders.append((mount.version, folder))
            if folder == top:
                break
            folder = folder.parent
    # a hierarchy can be mounted twice
    return list(dict.fromkeys(folders))


def _own_folder(top: Path, root: str, path: str) -> Path:
    """Folder of group ``path`` under a mount that shows ``root`` at ``top``."""
    inside = path
    if root != '/' and (path == root or path.startswith(root + '/')):
        inside = path[len(root) :]
    parts = [part for part in inside.split('/') if part]
    # "/../x" is a group above our cgroup namespace: not visible from here
    folder = top if '..' in parts else top.joinpath(*parts)
    return folder if folder.is_dir() else top


def states_no_quota(folder: Path, version: int) -> bool:
    """Whether a group itself says that its tasks are never held back.

    Args:
        folder: Of the group.
        version: Of the hierarchy, 1 or 2.
    """
    name = 'cpu.max' if version == 2 else 'cpu.cfs_quota_us'
    return (_read(folder / name) or '').split()[:1] in (['max'], ['-1'])


def _cpu_cores(folder: Path, version: int) -> float | None:
    """Quota of one group in cores; the root group has none."""
    if version == 2:
        words = (_read(folder / 'cpu.max') or '').split()
        quota, period = [*words, '', ''][:2]
    else:
        quota = _read(folder / 'cpu.cfs_quota_us') or ''
        period = _read(folder / 'cpu.cfs_period_us') or ''
    quota_us, period_us = _number(quota), _number(period)
    if quota_us is None or period_us is None or quota_us <= 0 or period_us <= 0:
        return None
    return quota_us / period_us


def _memory_limits(folder: Path, version: int) -> list[int]:
    """Limits that one group states, itself and for ancestors out of sight."""
    if version == 2:
        # past "high" the kernel stalls the group until it has given back enough
        texts = [_read(folder / f'memory.{name}') or '' for name in ('max', 'high')]
    else:
        texts = [_read(folder / 'memory.limit_in_bytes') or '']
        for line in (_read(folder / 'memory.stat') or '').splitlines():
            name, _, value = line.partition(' ')
            if name == 'hierarchical_memory_limit':
                texts.append(value)
    numbers = [_number(text) for text in texts]
    return [n for n in numbers if n is not None and 0 < n < _NO_LIMIT_BYTES]


def _rebase(mount_point: str, sys: Path) -> Path:
    """Lay a mount point below the given ``/sys``; others stay as they are."""
    if mount_point == '/sys' or mount_point.startswith('/sys/'):
        return sys.joinpath(*mount_point.split('/')[2:])
    return Path(mount_point)


def _unescape(field: str) -> str:
    return re.sub(r'\\([0-7]{3})', lambda code: chr(int(code[1], 8)), field)


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:  # "max", or nothing
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding='utf-8', errors='replace')
    except OSError:
        return None


_FIELDS = {1: (b'throttled_time', 1e9), 2: (b'throttled_usec', 1e6)}
"""Name of the field and its units per second, by version of the hierarchy."""


def parse_throttled_s(text: bytes, version: int) -> float | None:
    """Parse ``cpu.stat`` of one control group.

    Version 1 counts nanoseconds (``throttled_time``), version 2 microseconds
    (``throttled_usec``)::

        nr_periods 120
        nr_throttled 31
        throttled_time 2740115021

    Args:
        text: The whole file.
        version: Version of the hierarchy, 1 or 2.

    Returns:
        Seconds since the group was made, added up over the CPUs; ``None`` for a
        group that cannot have a quota, such as the root of version 2.

    Raises:
        ValueError: If the field is no number.
    """
    name, per_s = _FIELDS[version]
    for line in text.splitlines():
        field, _, value = line.partition(b' ')
        if field == name:
            return int(value) / per_s
    return None


def read_throttled_s(groups: Iterable[tuple[int, Path]]) -> list[float]:
    """Seconds that each group's quota held it back since it was made.

    Args:
        groups: Version and folder, as :func:`read_cgroup_folders` gives them; those
            that cannot have a quota are left out.

    Raises:
        OSError: If a group vanished.
        ValueError: If a file makes no sense.
    """
    found = (
        parse_throttled_s((folder / 'cpu.stat').read_bytes(), version)
        for version, folder in groups
    )
    return [seconds for seconds in found if seconds is not None]
