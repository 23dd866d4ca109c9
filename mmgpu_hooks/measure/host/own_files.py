"""The few files of ``/proc`` that tell of this process and its host, kept open."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mmgpu_hooks.measure.host.cpu import (
    parse_cpu_times,
    read_run_delay_s,
    read_system_cpu_times,
)
from mmgpu_hooks.measure.host.kept_file import KeptFile
from mmgpu_hooks.measure.host.proc import parse_schedstat
from mmgpu_hooks.measure.host.process_memory import (
    parse_resident_pages,
    read_process_rss_bytes,
)
from mmgpu_hooks.measure.host.system_memory import page_size_bytes
from mmgpu_hooks.measure.source_error import SourceError


class OwnFiles:
    """Reads what :class:`CpuMeter` asks for, and memory, without opening a file.

    Opening takes twice as long as reading. A file that could not be opened, or that
    is not understood, is left to the functions that open it each time, which know
    where else to look.

    Args:
        proc: Root of the proc file system.
    """

    def __init__(self, proc: Path = Path('/proc')) -> None:
        self._stat = _keep(proc / 'stat')
        self._schedstat = _keep(proc / 'self' / 'schedstat')
        self._statm = _keep(proc / 'self' / 'statm')
        self._proc = proc
        self._page_bytes = page_size_bytes()
        self._ticks_per_s = os.sysconf('SC_CLK_TCK') if hasattr(os, 'sysconf') else 100

    def read_cpu_times(self) -> Any:
        """As :func:`read_system_cpu_times` does."""
        if self._stat is not None:
            try:
                return parse_cpu_times(self._stat.read_begin(512), self._ticks_per_s)
            except (OSError, ValueError):
                pass
        return read_system_cpu_times(self._proc)

    def read_run_delay_s(self) -> float | None:
        """As :func:`read_run_delay_s` does."""
        if self._schedstat is not None:
            try:
                return parse_schedstat(self._schedstat.read_begin(128))[1] / 1e9
            except (OSError, SourceError):
                pass
        return read_run_delay_s(self._proc)

    def read_rss_bytes(self) -> int | None:
        """As :func:`read_process_rss_bytes` does."""
        if self._statm is not None:
            try:
                text = self._statm.read_begin(128)
                return parse_resident_pages(text) * self._page_bytes
            except (OSError, ValueError, IndexError):
                pass
        return read_process_rss_bytes(self._proc)

    def close(self) -> None:
        """Close every file; a second call does nothing."""
        files = self._stat, self._schedstat, self._statm
        self._stat = self._schedstat = self._statm = None
        for file in files:
            if file is not None:
                file.close()


def _keep(path: Path) -> KeptFile | None:
    try:
        return KeptFile(path)
    except OSError:
        return None
