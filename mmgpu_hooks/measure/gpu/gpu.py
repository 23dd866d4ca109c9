"""One GPU, looked at again and again: each figure at the pace that it is worth.

Utilisation and memory are read at every look. Every look's other queries are
spread out, since together they would cost more than all else we do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.clock import Clock, monotonic_s, wall_unix_s
from mmgpu_hooks.measure.gpu.answers import (
    checked_memory,
    checked_util,
    is_mig,
    read_text,
)
from mmgpu_hooks.measure.gpu.buffer import LOOK_S, UtilBuffer, UtilSpan
from mmgpu_hooks.measure.gpu.gpm import GpmCounters
from mmgpu_hooks.measure.gpu.lease import DriverLease
from mmgpu_hooks.measure.gpu.processes import OtherProcesses
from mmgpu_hooks.measure.gpu.queries import Missed, Queries
from mmgpu_hooks.measure.gpu.vitals import (
    read_power,
    read_throttle_reasons,
    read_vitals,
)
from mmgpu_hooks.schema import GpuDevice, GpuWindow

_EACH_LOOK = ('util_pct', 'mem_used_bytes')
ESSENTIAL = (
    *_EACH_LOOK,
    'name',
    'uuid',
    'memory_total_bytes',
    'driver_version',
)
"""Figures that every card gives, so that the user is told when one does not."""

_OPTIONAL = (
    UtilBuffer.FIGURE,
    *(name for name in GpuWindow.__struct_fields__ if name not in ESSENTIAL),
)

_FIGURES = (*ESSENTIAL, *_OPTIONAL)
_BEHIND = {**GpmCounters.BEHIND, **OtherProcesses.BEHIND}

# Seconds between two looks at what changes slowly or costs more.
VITALS_S = 1.0
GPM_S = 2.0
PROCESSES_S = 3.0
POWER_S = 5.0


@dataclass(frozen=True)
class GpuSample:
    """One look at the GPU; a figure that the driver does not give is ``None``."""

    util_pct: float | None
    """Share of the driver's last period, 1/6 to 1 s, with a kernel running; polled."""
    mem_used_bytes: int | None
    """Device memory in use by anyone, the driver's own reserve included."""
    spans: tuple[UtilSpan, ...] | None = None
    """What the driver's buffer holds since the last look; ``None`` when polled."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Other figures of :class:`~mmgpu_hooks.schema.GpuWindow`, where it was time."""
    throttle_reasons: frozenset[str] | None = None
    """What holds the clocks down; ``None`` where it was not looked at."""
    next_look_s: float | None = None
    """How long the next look may wait at least, if that is known."""


class Gpu:
    """One GPU, its handle kept open. Made by :func:`open_gpu`.

    Reads come from one background thread. A forked child must leave it alone,
    except for :meth:`close`, which does nothing there.

    Args:
        nvml: The pynvml module, started; :meth:`close` ends it.
        handle: The card.
        clock: Monotonic clock.
        wall: Wall clock, the one that the driver stamps with.
        stop_nvml: Lets the driver go.
    """

    def __init__(
        self,
        nvml: Any,
        handle: Any,
        *,
        stop_nvml: Callable[[Any], None],
        clock: Clock = monotonic_s,
        wall: Clock = wall_unix_s,
    ) -> None:
        self._nvml = nvml
        self._handle = handle
        self._stop_nvml = stop_nvml
        self._clock = clock
        self._lease = DriverLease(self._let_go)
        self._queries = Queries(nvml, _EACH_LOOK, is_mig(nvml, handle))
        self._buffer = UtilBuffer(self._queries, handle, clock=clock, wall=wall)
        self._processes = OtherProcesses(self._queries, handle)
        self._gpm = GpmCounters(self._queries, handle)
        self._due_s: dict[str, float] = {}

    @property
    def unsupported(self) -> dict[str, str]:
        """Why a figure that every card should give is ``None`` for the whole run."""
        return self._refused(ESSENTIAL)

    @property
    def not_offered(self) -> dict[str, str]:
        """Why a figure that only some cards give is ``None`` for the whole run.

        Its keys are fields of ``GpuWindow``, and ``util_buffer``: why utilisation
        is polled.
        """
        return self._refused(_OPTIONAL)

    @property
    def missed(self) -> dict[str, Missed]:
        """Figures that some looks lacked and that are asked for again."""
        return dict(self._queries.missed)

    def reasons(self) -> dict[str, str]:
        """Why a figure is missing now, :attr:`unsupported` ones left out; 3 us.

        Returns:
            What :attr:`not_offered` says, and for each figure that the driver has but
            did not give when it was last asked, ``missed at 3 looks: ...``.
        """
        unsupported = self.unsupported
        figures = (name for name in _FIGURES if name not in unsupported)
        return self._queries.reasons(figures, _BEHIND)

    def device(self) -> GpuDevice:
        """Read what does not change while training.

        Raises:
            SourceError: If the device or the driver was lost.
        """
        nvml, handle, ask = self._nvml, self._handle, self._ask
        memory = ask('memory_total_bytes', lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        total = None if memory is None else int(memory.total)
        return GpuDevice(
            name=ask('name', lambda: read_text(nvml.nvmlDeviceGetName, handle)),
            uuid=ask('uuid', lambda: read_text(nvml.nvmlDeviceGetUUID, handle)),
            memory_total_bytes=total or None,
            driver_version=ask(
                'driver_version', lambda: read_text(nvml.nvmlSystemGetDriverVersion)
            ),
        )

    def read_sample(self) -> GpuSample:
        """Look at the GPU now.

        Raises:
            SourceError: If the device or the driver was lost, or after `close`.
        """
        with self._lease:
            return self._look()

    def close(self) -> None:
        """Let the driver go. May be called twice; never raises, never blocks.

        When another thread is in the driver, that thread lets it go on its way out.
        """
        self._lease.close()

    def _let_go(self) -> None:
        self._gpm.close()
        self._stop_nvml(self._nvml)

    def _look(self) -> GpuSample:
        spans = None if self._lease.is_closing else self._buffer.read()
        util = self._ask('util_pct', self._read_util) if spans is None else None
        memory = self._ask('mem_used_bytes', self._read_memory)
        figures: dict[str, float] = {}
        reasons = None
        if self._is_due('vitals', VITALS_S):
            figures.update(read_vitals(self._queries, self._handle))
            reasons = read_throttle_reasons(self._queries, self._handle)
        if self._is_due('gpm', GPM_S):
            figures.update(self._gpm.read())
        if self._is_due('processes', PROCESSES_S):
            figures.update(self._processes.read())
        if self._is_due('power', POWER_S):
            figures.update(read_power(self._queries, self._handle))
        return GpuSample(
            util_pct=util,
            mem_used_bytes=memory,
            spans=spans,
            figures=figures,
            throttle_reasons=reasons,
            next_look_s=None if spans is None else LOOK_S,
        )

    def _is_due(self, what: str, period_s: float) -> bool:
        now_s = self._clock()
        if now_s < self._due_s.get(what, now_s):
            return False
        self._due_s[what] = now_s + period_s
        return True

    def _read_util(self) -> float:
        return checked_util(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)

    def _read_memory(self) -> int:
        return checked_memory(self._nvml.nvmlDeviceGetMemoryInfo(self._handle))

    def _ask(self, figure: str, query: Callable[[], Any]) -> Any:
        if self._lease.is_closing:
            raise SourceError('the GPU was read after it had been closed')
        return self._queries.ask(figure, query)

    def _refused(self, figures: Iterable[str]) -> dict[str, str]:
        refused = self._queries.refused
        return {figure: refused[figure] for figure in figures if figure in refused}
