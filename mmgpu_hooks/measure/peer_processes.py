"""Finds the processes of other ranks on this host by what their launcher told them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import psutil

from mmgpu_hooks.measure.clock import Clock, monotonic_s

_RANK, _SIZE, _ADDRESS, _PORT = 'RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT'
_LOOPBACK = '127.0.0.1', 'localhost', '::1'
_BUSY_SHARE = 0.02
"""Smallest share (0 to 1) of a core used by processes that work and not only poll."""


class PeerProcesses:
    """Tells if other ranks of this host work, while nothing else is known of them.

    Args:
        environ: Environment of this process, as its launcher set it.
        clock: Monotonic, in seconds.
    """

    def __init__(self, environ: Mapping[str, str], clock: Clock = monotonic_s) -> None:
        self._environ, self._clock = environ, clock
        self.rank = int(environ.get(_RANK, 0))
        """Index of this rank, by its launcher."""
        self.ranks = int(environ.get(_SIZE, 1))
        """Number of ranks that the launcher starts."""
        self._cpu_s: dict[int, float] = {}
        self._read_s: float | None = None

    def are_idle(self) -> bool | None:
        """Return True if no process of another rank used a core since the last call.

        Returns:
            ``None`` where ranks may be on other hosts.
        """
        here = int(self._environ.get('LOCAL_WORLD_SIZE', 0))
        is_one_host = here == self.ranks or self._environ.get(_ADDRESS) in _LOOPBACK
        if self.ranks <= 1 or not is_one_host:
            return None
        now_s, before, before_s = self._clock(), self._cpu_s, self._read_s
        self._cpu_s, self._read_s = self._read_cpu_s(), now_s
        if before_s is None:
            return False
        used_s = sum(
            max(cpu_s - before.get(pid, 0.0), 0.0) for pid, cpu_s in self._cpu_s.items()
        )
        return used_s <= _BUSY_SHARE * (now_s - before_s)

    def _read_cpu_s(self) -> dict[int, float]:
        """Read the CPU seconds of each process of another rank, by process id."""
        found, port = dict[int, float](), self._environ.get(_PORT)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                told = process.environ()
                is_other = told.get(_RANK, str(self.rank)) != str(self.rank)
                if is_other and told.get(_PORT) == port:
                    times = process.cpu_times()
                    found[process.pid] = times.user + times.system
        return found
