"""Measures the host's free memory, and the bytes that processes hold."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from mmgpu_hooks.measure.cgroup import MemoryGroup, find_memory_groups
from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.measure.host import read_file_system
from mmgpu_hooks.measure.memory import read_group_usage, read_resident
from mmgpu_hooks.measure.proc import read_begin
from mmgpu_hooks.schema.recorded import MemoryBound

_PROC = Path('/proc')
_PSS = re.compile(rb'^(Pss|Pss_Anon): +(\d+) kB$', re.MULTILINE)
_MOST_BYTES = 2**14


class MemoryRoom(NamedTuple):
    """Total and used bytes under the tightest memory limit: host or control group."""

    bound: MemoryBound
    total_bytes: int
    used_bytes: int
    """Bytes of used memory under the limit; reclaimable page cache counts as free."""
    shm_bytes: int | None
    """Bytes of files in shared memory (``/dev/shm``), which count as used memory."""

    @property
    def free_bytes(self) -> int:
        """Bytes of memory below the limit that are not in use."""
        return max(self.total_bytes - self.used_bytes, 0)


class HeldBytes(NamedTuple):
    """Bytes of memory that one process, or several processes together, hold."""

    bytes: int
    """Bytes of the processes' own memory, without pages of files and shared memory."""
    is_pss: bool
    """True if the bytes are PSS: pages that processes share count in part."""
    largest_bytes: int
    """Bytes of memory held by the largest of the processes."""
    processes: int
    """Number of processes whose memory could be read."""


class _Held(NamedTuple):
    bytes: int
    is_pss: bool


class HoldersMeter:
    """Reads the memory limit that is reached first, and bytes held by processes.

    Args:
        proc: Root of the proc file system.
        sys: Root of the sys file system, where control groups are mounted.
        shm: Folder through whose file system loader workers hand over batches.
        clock: Monotonic, in seconds.
    """

    def __init__(
        self,
        proc: Path = _PROC,
        sys: Path = Path('/sys'),
        shm: Path = Path('/dev/shm'),
        clock: Clock = monotonic_s,
    ) -> None:
        self._proc, self._shm, self.clock = proc, shm, clock
        self._groups = find_memory_groups(proc, sys)

    def read_room(self) -> MemoryRoom | None:
        """Reads total and used bytes of the tightest memory limit; takes 60 us.

        Returns:
            ``None`` where neither host nor control group says so.
        """
        rooms = [self._read_host(), *map(_read_group, self._groups)]
        known = [room for room in rooms if room is not None]
        return min(known, key=lambda room: room.free_bytes, default=None)

    def _read_host(self) -> MemoryRoom | None:
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            lines = read_begin(str(self._proc / 'meminfo'), _MOST_BYTES).splitlines()
            sizes = {
                words[0]: 1024 * int(words[1]) for words in map(bytes.split, lines)
            }
            total, free = sizes[b'MemTotal:'], sizes[b'MemAvailable:']
            return MemoryRoom('host', total, max(total - free, 0), self._read_shm())
        return None

    def _read_shm(self) -> int | None:
        found = read_file_system(self._shm)
        if found.total_bytes is None or found.free_bytes is None:
            return None
        return max(found.total_bytes - found.free_bytes, 0)

    def read_processes(self, pids: Iterable[int | str]) -> HeldBytes | None:
        """Sums up the memory bytes of processes, ignoring processes that have ended.

        The kernel walks all pages for it, with its own lock on the process's list of
        mappings and none of Python's: 1 ms, and a few for each GiB.

        Returns:
            ``None`` where none can be read.
        """
        known = [held for held in map(self._read_process, pids) if held is not None]
        if not known:
            return None
        is_pss = all(held.is_pss for held in known)
        sizes = [held.bytes for held in known]
        return HeldBytes(sum(sizes), is_pss, max(sizes), len(sizes))

    def list_started(self, pid: int | str = 'self') -> Iterator[int]:
        """Lists the ids of processes that a process started, directly or indirectly.

        Nothing where the kernel does not say it (``CONFIG_PROC_CHILDREN``).
        """
        with contextlib.suppress(OSError):
            for thread in os.listdir(self._proc / str(pid) / 'task'):
                path = f'{self._proc}/{pid}/task/{thread}/children'
                with contextlib.suppress(OSError, ValueError):
                    for child in map(int, read_begin(path, _MOST_BYTES).split()):
                        yield child
                        yield from self.list_started(child)

    def _read_process(self, pid: int | str) -> _Held | None:
        with contextlib.suppress(OSError):
            text = read_begin(f'{self._proc}/{pid}/smaps_rollup', _MOST_BYTES)
            found = {name: 1024 * int(size) for name, size in _PSS.findall(text)}
            # a kernel before 5.9 does not say what of it is files
            if b'Pss_Anon' in found:
                return _Held(found[b'Pss_Anon'], True)
        own = self.read_own_bytes(pid)
        # one that has ended and was not waited for has none
        return _Held(own, False) if own else None

    def read_own_bytes(self, pid: int | str = 'self') -> int | None:
        """Reads a process's resident bytes without file and shared pages, in 10 us."""
        return read_resident(self._proc, pid).own_bytes


def _read_group(group: MemoryGroup) -> MemoryRoom | None:
    usage = read_group_usage(group.folder)
    if usage is None:
        return None
    cache = (usage.part('inactive_file') or 0) + (usage.part('active_file') or 0)
    used = max(usage.used_bytes - cache, 0)
    return MemoryRoom('group', group.limit_bytes, used, usage.part('shmem'))
