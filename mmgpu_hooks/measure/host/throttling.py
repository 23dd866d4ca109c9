"""How long CPU quotas of control groups held tasks back."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.measure.host.cgroup import read_cgroup_folders, states_no_quota
from mmgpu_hooks.measure.host.kept_file import KeptFile

_FIELDS = {1: (b'throttled_time', 1e9), 2: (b'throttled_usec', 1e6)}
"""Name of the field and its units per second, by version of the hierarchy."""

_LOOK_PERIOD_S = 30.0
"""Groups without a quota are looked at so often."""


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
    # with the line's own begin, for which a first line needs one too
    start = (b'\n' + text).find(b'\n' + name + b' ')
    if start < 0:
        return None
    return int(text[start + len(name) :].partition(b'\n')[0]) / per_s


@dataclass
class _Group:
    version: int
    file: KeptFile
    is_free: bool
    throttled_s: float


class ThrottleMeter:
    """Reads the quotas' stalls of this process's group and all its ancestors.

    A read costs about 1.5 us per group, and on hosts with many groups more: version 2
    adds its figures up for it. A group without a quota holds nobody back, so it is
    looked at every 30 seconds, to see whether it was given one.

    Args:
        proc: Root of the proc file system.
        sys: Root that stands for ``/sys`` in mount points.
        clock: Monotonic, in seconds.
    """

    def __init__(self, proc: Path, sys: Path, clock: Clock = monotonic_s) -> None:
        self._clock = clock
        self._looked_s = clock()
        self._groups: list[_Group] = []
        for version, folder in read_cgroup_folders('cpu', proc, sys):
            # what cannot be read of a group says nothing of the others
            with contextlib.suppress(OSError, ValueError):
                is_free = states_no_quota(folder, version)
                self._keep(version, KeptFile(folder / 'cpu.stat'), is_free)

    def _keep(self, version: int, file: KeptFile, is_free: bool) -> None:
        try:
            throttled_s = parse_throttled_s(file.read(), version)
        except (OSError, ValueError):
            file.close()
            raise
        if throttled_s is None:
            file.close()
        else:
            self._groups.append(_Group(version, file, is_free, throttled_s))

    @property
    def is_empty(self) -> bool:
        """Whether no group tells."""
        return not self._groups

    def read(self) -> float | None:
        """Seconds that the tightest of the groups was held back since the last read.

        Added up over the CPUs, so it can be longer than the window was.

        Returns:
            The largest difference of all groups; ``None`` when one fell (the
            process was moved elsewhere).

        Raises:
            OSError: If a group vanished.
            ValueError: If a file makes no sense.
        """
        now_s = self._clock()
        is_due = now_s - self._looked_s >= _LOOK_PERIOD_S
        if is_due:
            self._looked_s = now_s
        held_back_s = [0.0]
        for group in self._groups:
            if is_due or not group.is_free:
                held_back_s.append(self._read_group(group))
        if not self._groups or min(held_back_s) < 0.0:
            return None
        return max(held_back_s)

    def _read_group(self, group: _Group) -> float:
        throttled_s = parse_throttled_s(group.file.read(), group.version)
        if throttled_s is None:
            raise ValueError('a control group tells its throttling no more')
        held_back_s = throttled_s - group.throttled_s
        group.throttled_s = throttled_s
        # one that was given a quota meanwhile is free no longer
        group.is_free = group.is_free and held_back_s == 0.0
        return held_back_s

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        for group in self._groups:
            group.file.close()
        self._groups = []
