"""How long CPU quotas of control groups held tasks back."""

from __future__ import annotations

import contextlib
from pathlib import Path

from mmgpu_hooks.telemetry.host.cgroup import read_cgroup_folders
from mmgpu_hooks.telemetry.host.kept_file import KeptFile

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
    # with the line's own begin, for which a first line needs one too
    start = (b'\n' + text).find(b'\n' + name + b' ')
    if start < 0:
        return None
    return int(text[start + len(name) :].partition(b'\n')[0]) / per_s


class ThrottleMeter:
    """Reads the quotas' stalls of this process's group and all its ancestors.

    A read costs about 1.5 us per group.

    Args:
        proc: Root of the proc file system.
        sys: Root that stands for ``/sys`` in mount points.
    """

    def __init__(self, proc: Path, sys: Path) -> None:
        self._groups: list[tuple[int, KeptFile, float]] = []
        for version, folder in read_cgroup_folders('cpu', proc, sys):
            # what cannot be read of a group says nothing of the others
            with contextlib.suppress(OSError, ValueError):
                self._keep(version, KeptFile(folder / 'cpu.stat'))

    def _keep(self, version: int, file: KeptFile) -> None:
        try:
            throttled_s = parse_throttled_s(file.read(), version)
        except (OSError, ValueError):
            file.close()
            raise
        if throttled_s is None:
            file.close()
        else:
            self._groups.append((version, file, throttled_s))

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
        held_back_s = []
        groups = []
        for version, file, before_s in self._groups:
            now_s = parse_throttled_s(file.read(), version)
            if now_s is None:
                raise ValueError('a control group tells its throttling no more')
            held_back_s.append(now_s - before_s)
            groups.append((version, file, now_s))
        self._groups = groups
        return max(held_back_s) if min(held_back_s, default=-1.0) >= 0.0 else None

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        for _, file, _ in self._groups:
            file.close()
        self._groups = []
