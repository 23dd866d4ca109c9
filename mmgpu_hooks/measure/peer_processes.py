"""Finds other ranks' processes on this host by ``RANK`` in their environments."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import NamedTuple

import psutil

from mmgpu_hooks.measure.clock import Clock, monotonic_s

_RANK, _SIZE, _ADDRESS, _PORT = 'RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT'
_LOOPBACK = '127.0.0.1', 'localhost', '::1'
_BUSY_SHARE = 0.02
"""Smallest share (0 to 1) of a core used by processes that work and not only poll."""


_BUSY_BYTES = 2**16
"""Bytes read since the last check above which a process loads files, not only polls."""


class _Use(NamedTuple):
    """CPU seconds of a process, and the bytes that it has read."""

    cpu_s: float
    read_bytes: int


class PeerProcesses:
    """Checks if processes of other ranks on this host use a core or read files.

    For the time in which nothing else is known of them.

    Args:
        environ: Environment of this process, as its launcher set it.
        clock: Monotonic, in seconds.
    """

    def __init__(self, environ: Mapping[str, str], clock: Clock = monotonic_s) -> None:
        self._environ, self._clock = environ, clock
        self.rank = int(environ.get(_RANK, 0))
        """Index of this rank, as its launcher set it."""
        self.ranks = int(environ.get(_SIZE, 1))
        """Number of ranks that the launcher starts."""
        self._is_told = _read_own_rank() == environ.get(_RANK)
        """True if the launcher set this rank in an environment others can read."""
        self._use: dict[int, _Use] = {}
        self._read_s: float | None = None

    def are_idle(self) -> bool | None:
        """Returns True if since the last call no other rank used a core or read files.

        Returns:
            ``None`` where ranks may be on other hosts, or do not show which they are.
        """
        here = int(self._environ.get('LOCAL_WORLD_SIZE', 0))
        is_one_host = here == self.ranks or self._environ.get(_ADDRESS) in _LOOPBACK
        if self.ranks <= 1 or not is_one_host or not self._is_told:
            return None
        now_s, before, before_s = self._clock(), self._use, self._read_s
        self._use, self._read_s = self._read_use(), now_s
        if before_s is None or self._use.keys() != before.keys():
            return False
        grown = [
            (use.cpu_s - before[pid].cpu_s, use.read_bytes - before[pid].read_bytes)
            for pid, use in self._use.items()
        ]
        # what imports from a slow disk hardly computes
        is_reading = any(read > _BUSY_BYTES for _, read in grown)
        used_s = sum(used for used, _ in grown)
        return not is_reading and used_s <= _BUSY_SHARE * (now_s - before_s)

    def _read_use(self) -> dict[int, _Use]:
        """Reads CPU seconds and read bytes of other ranks' processes, by process id."""
        found, port = dict[int, _Use](), self._environ.get(_PORT)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                told = process.environ()
                is_other = told.get(_RANK, str(self.rank)) != str(self.rank)
                if is_other and told.get(_PORT) == port:
                    times, io = process.cpu_times(), process.io_counters()
                    cpu_s = times.user + times.system
                    found[process.pid] = _Use(cpu_s, io.read_chars)
        return found


def _read_own_rank() -> str | None:
    """Reads the rank that this process was started with, not one that it set later."""
    with contextlib.suppress(psutil.Error, OSError):
        return psutil.Process().environ().get(_RANK)
    return None
