"""Who else uses the card: the memory of its processes, by pid."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from mmgpu_hooks.measure.gpu.queries import Queries
from mmgpu_hooks.measure.gpu.table import Table, function

_MEMORY = 'others_mem_bytes'
_NO_FIGURE = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE
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


class OtherProcesses:
    """Memory that other processes hold on the card.

    In a container the driver may number processes in another namespace. Then this
    process, which does use the card, is not in its list, and so the figure is unknown.

    Args:
        queries: Sorts what goes wrong.
        handle: The card.
        pid: This process.
    """

    BEHIND: ClassVar[dict[str, str]] = {_MEMORY: _COMPUTE[0]}
    """The query whose miss leaves a figure out."""

    def __init__(
        self,
        queries: Queries,
        handle: Any,
        *,
        pid: int | None = None,
    ) -> None:
        nvml = queries.nvml
        self._queries = queries
        self._handle = handle
        self._pid = os.getpid() if pid is None else pid
        self._running = {
            name: Table(nvml, 'c_nvmlProcessInfo_v2_t', spare=True)
            for name, _ in (_COMPUTE, _GRAPHICS)
        }

    def read(self) -> dict[str, float]:
        """Return bytes by the record's name.

        Raises:
            SourceError: If the card or the driver was lost.
        """
        if _MEMORY in self._queries.refused:
            return {}
        memory = self._memory_by_pid()
        if memory is None:
            return {}
        if self._pid not in memory:
            reason = (
                'the driver does not list this process among those on the GPU: in a '
                'container it may number processes in another namespace'
            )
            self._queries.miss(_MEMORY, reason, patience=_PATIENCE)
            return {}
        self._queries.found(_MEMORY)
        return self._others_memory(memory)

    def _memory_by_pid(self) -> dict[int, int | None] | None:
        compute = self._read_running(_COMPUTE)
        if compute is None:
            reason = self._queries.refused.get(_COMPUTE[0])
            if reason is not None:
                self._queries.refuse(_MEMORY, reason)
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
