"""Who else uses the card: its processes' utilisation and memory, by pid."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from mmgpu_hooks.telemetry.clock import Clock, wall_unix_s
from mmgpu_hooks.telemetry.gpu.queries import NO_NEWS, Queries
from mmgpu_hooks.telemetry.gpu.table import Table, function

_OWN, _OTHERS, _MEMORY = 'own_util_pct', 'others_util_pct', 'others_mem_bytes'
_NO_FIGURE = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE
_BACK_S = 2.0
"""How far back to ask when our last stamp is no more to be trusted."""
_PATIENCE = 3

Lists = tuple[str, tuple[str, ...]]
_COMPUTE: Lists = (
    'compute processes',
    (
        'nvmlDeviceGetComputeRunningProcesses_v3',
        'nvmlDeviceGetComputeRunningProcesses_v2',
    ),
)
_GRAPHICS: Lists = (
    'graphics processes',
    (
        'nvmlDeviceGetGraphicsRunningProcesses_v3',
        'nvmlDeviceGetGraphicsRunningProcesses_v2',
    ),
)


class ProcessShare:
    """This process's part of the card, and the others'.

    In a container the driver may number processes in another namespace. Then this
    process, which does use the card, is not in its list, and whose a figure is
    cannot be told: all of them are unknown.

    Args:
        queries: Sorts what goes wrong.
        handle: The card.
        pid: This process.
        wall: Wall clock, the one that the driver stamps with.
    """

    BEHIND = dict.fromkeys((_OWN, _OTHERS, _MEMORY), _COMPUTE[0])
    """The query whose miss leaves a figure out."""

    def __init__(
        self,
        queries: Queries,
        handle: Any,
        *,
        pid: int | None = None,
        wall: Clock = wall_unix_s,
    ) -> None:
        nvml = queries.nvml
        self._queries = queries
        self._handle = handle
        self._pid = os.getpid() if pid is None else pid
        self._wall = wall
        self._last_us: int | None = None
        self._running = {
            name: Table(nvml, 'c_nvmlProcessInfo_v2_t', spare=True)
            for name, _ in (_COMPUTE, _GRAPHICS)
        }
        self._shares = Table(nvml, 'c_nvmlProcessUtilizationSample_t', spare=True)

    def read(self) -> dict[str, float]:
        """Return per cent and bytes by the record's names.

        Raises:
            SourceError: If the card or the driver was lost.
        """
        refused = self._queries.refused
        if _MEMORY in refused and _OWN in refused:
            return {}
        memory = self._memory_by_pid()
        if memory is None:
            return {}
        if self._pid not in memory:
            reason = (
                'the driver does not list this process among those on the GPU: in a '
                'container it may number processes in another namespace'
            )
            for figure in (_OWN, _OTHERS, _MEMORY):
                self._queries.miss(figure, reason, patience=_PATIENCE)
            return {}
        for figure in (_OWN, _OTHERS, _MEMORY):
            self._queries.found(figure)
        return {**self._others_memory(memory), **self._utilisation()}

    def _memory_by_pid(self) -> dict[int, int | None] | None:
        compute = self._read_running(_COMPUTE)
        if compute is None:
            reason = self._queries.refused.get(_COMPUTE[0])
            if reason is not None:
                for figure in (_OWN, _OTHERS, _MEMORY):
                    self._queries.refuse(figure, reason)
            return None
        # one that computes and draws is in both lists
        return {**(self._read_running(_GRAPHICS) or {}), **compute}

    def _read_running(self, which: Lists) -> dict[int, int | None] | None:
        label, names = which

        def query() -> list[Any]:
            get_running = function(self._queries.nvml, *names)
            return self._running[label].read(
                lambda count, rows: int(get_running(self._handle, count, rows))
            )

        rows = self._queries.ask(label, query)
        if rows is None:
            return None
        return {
            int(row.pid): None
            if row.usedGpuMemory == _NO_FIGURE
            else int(row.usedGpuMemory)
            for row in rows
        }

    def _others_memory(self, memory: dict[int, int | None]) -> dict[str, float]:
        total = 0
        for pid, used in memory.items():
            if pid == self._pid:
                continue
            if used is None:
                self._queries.miss(
                    _MEMORY, 'the driver does not tell the memory of another process'
                )
                return {}
            total += used
        return {_MEMORY: float(total)}

    def _utilisation(self) -> dict[str, float]:
        now_us = int(self._wall() * 1e6)
        if self._last_us is None or self._last_us > now_us:
            # the start, or the clock was set back and newer samples look older
            self._last_us = now_us - int(_BACK_S * 1e6)
        rows = self._queries.ask(_OWN, self._read_shares)
        if rows is None:
            reason = self._queries.refused.get(_OWN)
            if reason is not None:
                self._queries.refuse(_OTHERS, reason)
            else:
                self._queries.miss(_OTHERS, self._queries.missed[_OWN].reason)
            return {}
        shares: dict[int, list[int]] = {}
        for row in rows:
            share = int(row.smUtil)
            if not 0 <= share <= 100:
                reason = f'the driver reported {share} % for a process'
                for figure in (_OWN, _OTHERS):
                    self._queries.miss(figure, reason)
                return {}
            shares.setdefault(int(row.pid), []).append(share)
        if rows:
            last_us = max(int(row.timeStamp) for row in rows)
            self._last_us = max(self._last_us, min(last_us, now_us))
        # a process has no row for a period in which it did nothing
        periods = max(map(len, shares.values()), default=1)
        own = sum(shares.pop(self._pid, ())) / periods
        others = sum(map(sum, shares.values())) / periods
        return {_OWN: own, _OTHERS: min(100.0, others)}

    def _read_shares(self) -> list[Any]:
        nvml = self._queries.nvml
        get_shares = function(nvml, 'nvmlDeviceGetProcessUtilization')
        last = ctypes.c_ulonglong(self._last_us or 0)
        try:
            return self._shares.read(
                lambda count, rows: int(get_shares(self._handle, rows, count, last))
            )
        except nvml.NVMLError as error:
            if error.value in NO_NEWS:
                return []
            raise
