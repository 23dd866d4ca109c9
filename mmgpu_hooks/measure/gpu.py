"""One GPU through NVML: which card it is, and each figure of it at its own rate.

The one importer of pynvml. A card is found by what names it for certain, and never
guessed: NVML ignores ``CUDA_VISIBLE_DEVICES`` and numbers cards in its own order. What
goes wrong is sorted: a figure is missing for good, or for now, or the card is gone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from mmgpu_hooks.measure.absent import Absent, SourceError
from mmgpu_hooks.measure.clock import Clock, monotonic_s, wall_unix_s
from mmgpu_hooks.measure.gpu_util import (
    GarbageError,
    UtilBuffer,
    UtilSpan,
    checked_util,
)

_START_HINTS = {
    9: 'the NVIDIA driver is not loaded; nvidia-smi should fail in the same way',
    12: 'the NVIDIA driver library (libnvidia-ml) was not found; install the '
    'driver, or start the container with access to it (docker run --gpus all)',
    18: 'the NVIDIA driver was updated under a running kernel module; reboot',
}

# Return codes of nvml.h; pynvml names only those that its version knows.
NOT_FOUND = (2, 6, 28)  # invalid argument, not found, GPU not found
NEVER = (3, 4, 13, 25, 26)  # not supported, no permission, no such function, ...
# timeout, IRQ, in use, host memory, no data, no resources, not ready
_NOT_NOW = (10, 11, 19, 20, 21, 23, 27)
# driver not started or unloaded, card off the bus or to be reset, driver replaced
_LOST = (1, 9, 15, 16, 18)

_PATIENCE = 3
"""Odd answers in a row after which a figure is given up."""

ESSENTIAL = (
    'util_pct',
    'mem_used_bytes',
    'name',
    'uuid',
    'memory_total_bytes',
    'driver_version',
)
"""Figures that every card gives, so that the user is told when one does not."""

SAMPLE_S = 0.5
"""Seconds between two samples while the driver's own buffer works."""

# Seconds between two samples of what changes slowly or costs more.
VITALS_S, GPM_S, PROCESSES_S, POWER_S = 1.0, 2.0, 3.0, 5.0


@dataclass(frozen=True)
class Missed:
    """Samples at which the driver did not give a figure that it has."""

    looks: int
    reason: str
    """The first one."""


class Queries:
    """Asks the driver about one card, and sorts what goes wrong.

    Args:
        nvml: The pynvml module.
        essential: Figures that end the source once all of them were given up for
            an odd answer: then it is the card.
        under_mig: Whether the card is sliced, which explains refusals.
    """

    def __init__(
        self, nvml: Any, essential: Iterable[str] = (), under_mig: bool = False
    ) -> None:
        self.nvml = nvml
        self.under_mig = under_mig
        self.refused: dict[str, str] = {}
        """Why a figure is ``None`` for the whole run, by its name."""
        self.missed: dict[str, Missed] = {}
        """Figures that were not given at some samples, and are asked for again."""
        self._sound = set(essential)
        """Essential figures that were not given up for an odd answer."""
        self._in_a_row: dict[str, int] = {}

    def ask(self, figure: str, query: Callable[[], Any]) -> Any:
        """Return the query's answer, or ``None`` with the reason kept.

        Raises:
            SourceError: If the card or the driver was lost.
        """
        if figure in self.refused:
            return None
        try:
            answer = query()
        except SourceError:
            raise
        except Exception as error:  # noqa: BLE001, drivers answer garbage too
            self._sort(figure, error)
            return None
        self._in_a_row.pop(figure, None)
        return answer

    def refuse(self, figure: str, reason: str) -> None:
        """Give a figure up for the run; the first reason stays."""
        self.refused.setdefault(figure, reason)

    def miss(self, figure: str, reason: str, *, is_odd: bool = False) -> None:
        """Count a sample without the figure; three odd ones in a row end it."""
        before = self.missed.get(figure, Missed(0, reason))
        self.missed[figure] = Missed(before.looks + 1, before.reason)
        in_a_row = self._in_a_row[figure] = self._in_a_row.get(figure, 0) + 1
        if is_odd and in_a_row >= _PATIENCE:
            self.refuse(figure, reason)

    def reasons(self) -> dict[str, str]:
        """Why figures are missing now; may be called from another thread."""
        # copies at once: the thread that asks may be adding to them
        now, missed = self._in_a_row.copy(), self.missed.copy()
        found = self.refused.copy()
        for figure in now.keys() - found.keys():
            if figure in missed:
                looks, reason = missed[figure].looks, missed[figure].reason
                found[figure] = f'missed at {looks} looks: {reason}'
        return found

    def _sort(self, figure: str, error: Exception) -> None:
        text = describe(error)
        under = ' under MIG' if self.under_mig else ''
        code = getattr(error, 'value', None)
        if isinstance(error, GarbageError):
            self.miss(figure, text, is_odd=error.is_odd)
        elif isinstance(error, AttributeError):
            self.refuse(figure, f'the installed nvidia-ml-py cannot ask for it: {text}')
        elif code in NEVER:
            self.refuse(figure, f'the driver does not give it{under}: {text}')
        elif code in _NOT_NOW:
            self.miss(figure, f'the driver could not give it: {text}')
        elif code in _LOST or self._is_last(figure, text):
            raise SourceError(f'NVML stopped answering for this GPU: {text}') from error

    def _is_last(self, figure: str, text: str) -> bool:
        """Count an odd answer; true when no essential figure is left after it."""
        self.miss(figure, f'the driver could not give it: {text}', is_odd=True)
        if figure not in self.refused or figure not in self._sound:
            return False
        self._sound.remove(figure)
        return not self._sound


def describe(error: Exception) -> str:
    """Text of an error of pynvml, which asks the driver for it, which may fail too."""
    try:
        text = ' '.join(str(error).split())
    except Exception:  # noqa: BLE001, bytes that are no text, a missing symbol
        text = ''
    code = getattr(error, 'value', None)
    return text or f'{type(error).__name__} {"" if code is None else code}'.rstrip()


def read_text(query: Callable[..., str | bytes], *args: Any) -> str:
    """Ask for a text.

    Raises:
        GarbageError: If the answer is none.
    """
    try:
        text = query(*args)
        # old pynvml returns bytes
        return text.decode() if isinstance(text, bytes) else text
    except UnicodeError as error:
        raise GarbageError('the driver reported bytes that are no text') from error


def read_memory(nvml: Any, handle: Any) -> tuple[int, int]:
    """Total bytes and those in use.

    Raises:
        GarbageError: If more is in use than there is.
    """
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    used, total = int(memory.used), int(memory.total)
    if not used <= total > 0:
        raise GarbageError(f'the driver reported {used} of {total} bytes in use')
    return total, used


def is_sliced(nvml: Any, handle: Any) -> bool:
    """Whether a card is cut into MIG slices."""
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == 1)
    except (nvml.NVMLError, AttributeError):
        return False  # most cards cannot be sliced and say so here


def _is_mig(nvml: Any, handle: Any) -> bool:
    """Whether the card is a MIG slice, or is sliced."""
    with contextlib.suppress(nvml.NVMLError, GarbageError):
        if read_text(nvml.nvmlDeviceGetUUID, handle).startswith('MIG-'):
            return True
    return is_sliced(nvml, handle)


@dataclass(frozen=True)
class GpuSample:
    """One sample of the GPU; a figure that the driver does not give is ``None``."""

    util_pct: float | None
    """Share of the driver's last period, 1/6 to 1 s, with a kernel running; polled."""
    mem_used_bytes: int | None
    """Device memory in use by anyone, the driver's own reserve included."""
    spans: tuple[UtilSpan, ...] | None = None
    """Utilisation since the last sample out of the driver's buffer, the newest polled
    where the buffer was silent; ``None`` where there is no buffer."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Other figures, by the names of the record, where it was time."""
    throttle_reasons: frozenset[str] | None = None
    """What holds the clocks down; ``None`` where it was not asked."""
    next_look_s: float | None = None
    """How long the next sample may wait at least, if that is known."""


class Gpu:
    """One GPU, its handle kept open. Made by :func:`open_gpu`.

    One thread reads, and closes. A forked child must leave it alone, except for
    :meth:`close`, which does nothing there.

    Args:
        nvml: The pynvml module, started; :meth:`close` ends it.
        handle: The card.
        clock: Monotonic clock.
        wall: Wall clock, the one that the driver stamps with.
        pid_namespace: This process's, as ``/proc/self/ns/pid`` names it; ``None``
            where it is unknown.
    """

    def __init__(
        self,
        nvml: Any,
        handle: Any,
        *,
        clock: Clock = monotonic_s,
        wall: Clock = wall_unix_s,
        pid_namespace: str | None = None,
    ) -> None:
        self._nvml: Any = nvml
        self._handle = handle
        self._pid = os.getpid()
        self._clock = clock
        self._namespace = pid_namespace
        self._queries = Queries(
            nvml, ('util_pct', 'mem_used_bytes'), _is_mig(nvml, handle)
        )
        self._buffer = UtilBuffer(self._queries, handle, clock=clock, wall=wall)
        self._gpm: list[Any] = []
        self._gpm_request: Any = None
        self._has_earlier = False
        self._due_s: dict[str, float] = {}

    @property
    def unsupported(self) -> dict[str, str]:
        """Why a figure that every card should give is ``None`` for the whole run."""
        return {k: v for k, v in self._queries.refused.items() if k in ESSENTIAL}

    @property
    def not_offered(self) -> dict[str, str]:
        """Why a figure that only some cards give is ``None`` for the whole run.

        Its keys are fields of the record, and ``util_buffer``: why utilisation is
        polled.
        """
        return {k: v for k, v in self._queries.refused.items() if k not in ESSENTIAL}

    @property
    def missed(self) -> dict[str, Missed]:
        """Figures that some samples lacked and that are asked for again."""
        return dict(self._queries.missed)

    def reasons(self) -> dict[str, str]:
        """Why a figure is missing now, :attr:`unsupported` ones left out."""
        unsupported = self.unsupported
        found = self._queries.reasons()
        return {name: found[name] for name in found if name not in unsupported}

    def device(self) -> dict[str, Any]:
        """Read what does not change while training, by the names of the record.

        Raises:
            SourceError: If the device or the driver was lost.
        """
        nvml, handle, ask = self._nvml, self._handle, self._queries.ask
        memory = ask('memory_total_bytes', lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        return {
            'name': ask('name', lambda: read_text(nvml.nvmlDeviceGetName, handle)),
            'uuid': ask('uuid', lambda: read_text(nvml.nvmlDeviceGetUUID, handle)),
            'memory_total_bytes': None if memory is None else int(memory.total) or None,
            'driver_version': ask(
                'driver_version', lambda: read_text(nvml.nvmlSystemGetDriverVersion)
            ),
        }

    def read_sample(self) -> GpuSample:
        """Sample the GPU now.

        Raises:
            SourceError: If the device or the driver was lost, or after `close`.
        """
        if self._nvml is None:
            raise SourceError('the GPU was read after it had been closed')
        ask = self._queries.ask
        spans, util = self._buffer.read(), None
        silent_s = self._buffer.silent_s
        if spans is None or silent_s:
            util = ask('util_pct', self._read_util)
        if spans is not None and util is not None:
            spans = (*spans, UtilSpan(silent_s, util))
            self._buffer.is_quiet_when_idle |= util == 0.0
        memory = ask('mem_used_bytes', lambda: read_memory(self._nvml, self._handle)[1])
        figures: dict[str, float] = {}
        reasons = None
        if self._is_due('vitals', VITALS_S):
            figures.update(self._read_plain(_VITALS))
            reasons = ask('throttled_pct', self._read_throttle_reasons)
        if self._is_due('gpm', GPM_S):
            figures.update(self._read_gpm())
        if self._is_due('processes', PROCESSES_S):
            figures.update(self._read_others())
        if self._is_due('power', POWER_S):
            figures.update(self._read_plain(_POWER))
        is_kept = bool(spans) and not silent_s
        return GpuSample(
            util, memory, spans, figures, reasons, SAMPLE_S if is_kept else None
        )

    def close(self) -> None:
        """Let the driver go. May be called twice; never raises."""
        nvml, self._nvml = self._nvml, None
        if nvml is None or os.getpid() != self._pid:
            return
        for sample in self._gpm:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlGpmSampleFree(sample)
        stop_nvml(nvml)

    def _is_due(self, what: str, period_s: float) -> bool:
        now_s = self._clock()
        if now_s < self._due_s.get(what, now_s):
            return False
        self._due_s[what] = now_s + period_s
        return True

    def _read_util(self) -> float:
        return checked_util(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)

    def _read_plain(self, table: Mapping[str, _Plain]) -> dict[str, float]:
        figures = {}
        for figure, (name, argument, most, per_unit) in table.items():

            def query(name: str = name, rest: Any = argument, most: int = most) -> int:
                value = int(getattr(self._nvml, name)(self._handle, *rest))
                if not 0 <= value <= most:
                    raise GarbageError(
                        f'the driver reported {value}, more than the {most} possible'
                    )
                return value

            value = self._queries.ask(figure, query)
            if value is not None:
                figures[figure] = value / per_unit
        return figures

    def _read_throttle_reasons(self) -> frozenset[str]:
        nvml = self._nvml
        # drivers before 535 know the old name only
        try:
            bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle)
        except (nvml.NVMLError, AttributeError) as error:
            if getattr(error, 'value', 13) != 13:
                raise
            bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
        return parse_throttle_reasons(int(bits))

    def _read_others(self) -> dict[str, float]:
        """Memory of other processes on the card, where the driver may show them all."""
        found = self._queries.ask('others_mem_bytes', self._sum_others)
        return {} if found is None else {'others_mem_bytes': float(found)}

    def _sum_others(self) -> int | None:
        if self._namespace is not None and self._namespace != _HOST_PIDS:
            self._queries.refuse(
                'others_mem_bytes',
                'this process has a PID namespace of its own (a container): the driver '
                'may hide other processes, or number them differently',
            )
            return None
        nvml, memory = self._nvml, {}
        # one that computes and draws is in both lists
        for list_name in ('Graphics', 'Compute'):
            read = getattr(nvml, f'nvmlDeviceGet{list_name}RunningProcesses')
            memory.update({row.pid: row.usedGpuMemory for row in read(self._handle)})
        if self._pid not in memory:
            reason = 'the driver does not list this process among those on the GPU'
            raise GarbageError(reason, is_odd=True)
        others = [used for pid, used in memory.items() if pid != self._pid]
        if None in others:
            raise GarbageError('the driver hides the memory of another process')
        return int(sum(others))

    def _read_gpm(self) -> dict[str, float]:
        """SM activity: a mean between two samples of the hardware's counter."""
        found = self._queries.ask('sm_active_pct', self._ask_gpm)
        return {} if found is None else {'sm_active_pct': found}

    def _ask_gpm(self) -> float | None:
        nvml, queries = self._nvml, self._queries
        if self._gpm_request is None:
            if queries.under_mig:
                queries.refuse(_SM, 'GPM counts the whole card, not a MIG slice')
                return None
            if not nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                queries.refuse(_SM, 'the GPU or its driver has no GPM counters')
                return None
            while len(self._gpm) < 2:
                self._gpm.append(nvml.nvmlGpmSampleAlloc())
            request = nvml.c_nvmlGpmMetricsGet_t()
            request.version = nvml.NVML_GPM_METRICS_GET_VERSION
            request.numMetrics = 1
            self._gpm_request = request
        request, (earlier, now) = self._gpm_request, self._gpm
        had_earlier, self._has_earlier = self._has_earlier, False
        nvml.nvmlGpmSampleGet(self._handle, now)
        self._gpm, self._has_earlier = [now, earlier], True
        if not had_earlier:
            return None
        request.sample1, request.sample2 = earlier, now
        metric = request.metrics[0]
        metric.metricId, metric.nvmlReturn = _SM_UTIL, 0
        nvml.nvmlGpmMetricsGet(request)
        code, value = int(metric.nvmlReturn), float(metric.value)
        if code in NEVER:
            queries.refuse(_SM, f'GPM does not count it: NVML error {code}')
            return None
        # the counter may end a little above the whole
        if code or not 0.0 <= value <= 101.0:
            raise GarbageError(f'GPM reported {value}, NVML error {code}')
        return min(value, 100.0)


_SM, _SM_UTIL = 'sm_active_pct', 2  # NVML_GPM_METRIC_SM_UTIL
_HOST_PIDS = 'pid:[4026531836]'
"""The first PID namespace of a kernel (PROC_PID_INIT_INO)."""

_Plain = tuple[str, tuple[int, ...], int, float]
"""A query, its arguments, the most that it may give, and its units per ours."""
_VITALS: Mapping[str, _Plain] = {
    # NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU
    'sm_clock_mhz': ('nvmlDeviceGetClockInfo', (1,), 10_000, 1.0),
    'mem_clock_mhz': ('nvmlDeviceGetClockInfo', (2,), 100_000, 1.0),
    'temperature_c': ('nvmlDeviceGetTemperature', (0,), 200, 1.0),
}
# the slowest of the plain queries, in milliwatts
_POWER: Mapping[str, _Plain] = {
    'power_w': ('nvmlDeviceGetPowerUsage', (), 10_000_000, 1e3)
}

# nvmlClocksEventReason*; idleness (1) and the user's own clock setting (2) hold
# nothing down that anybody wants up
_REASONS = {
    0x004: 'power_cap',
    0x008: 'hw_slowdown',
    0x010: 'sync_boost',
    0x020: 'thermal',
    0x040: 'hw_thermal',
    0x080: 'power_brake',
    0x100: 'display_clocks',
    0x200: 'board_limit',
    0x400: 'reliability',
}
_HARMLESS = 0x003


def parse_throttle_reasons(bits: int) -> frozenset[str]:
    """Names of the reasons in NVML's bit mask; empty when nothing holds down.

    Raises:
        GarbageError: If it cannot be such a mask: some drivers answer with all ones.

    Examples:
        >>> sorted(parse_throttle_reasons(0x1 | 0x4 | 0x40))
        ['hw_thermal', 'power_cap']
    """
    if not 0 <= bits < 1 << 32:
        raise GarbageError(f'the driver reported throttle reasons {bits:#x}')
    names = {name for bit, name in _REASONS.items() if bits & bit}
    if bits & ~(sum(_REASONS) | _HARMLESS):
        names.add('other')
    return frozenset(names)


def start_nvml() -> Any:
    """Start the driver's library; each start needs a :func:`stop_nvml`.

    Returns:
        The pynvml module, or `Absent`.
    """
    try:
        import pynvml  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return Absent(
            'GPU figures need the package nvidia-ml-py, which is not installed: '
            'pip install nvidia-ml-py'
        )
    try:
        pynvml.nvmlInit()
    except Exception as error:  # noqa: BLE001, a broken driver library
        hint = _START_HINTS.get(getattr(error, 'value', -1))
        return Absent(hint or f'NVML could not start: {describe(error)}')
    return pynvml


def stop_nvml(nvml: Any) -> None:
    """Let the library go; never raises, since the driver may have gone first."""
    with contextlib.suppress(Exception):
        nvml.nvmlShutdown()


def open_gpu(
    *,
    uuid: str | None = None,
    pci_bus_id: str | None = None,
    index: int | None = None,
    environ: Mapping[str, str] = os.environ,
    clock: Clock = monotonic_s,
    wall: Clock = wall_unix_s,
    pid_namespace: str | None = None,
) -> Gpu | Absent:
    """Open the GPU that this rank trains on.

    Args:
        uuid: As NVML writes it (``GPU-...``, ``MIG-...``) or bare, as torch does.
        pci_bus_id: Such as ``00000000:3B:00.0``; used where the UUID is not known
            to the driver.
        index: CUDA's index; used only where nothing else is known and it cannot
            mean another card.
        environ: Environment, for ``CUDA_VISIBLE_DEVICES``.
        clock: Monotonic clock.
        wall: Wall clock, the one that the driver stamps its samples with.
        pid_namespace: This process's; ``None`` asks ``/proc``.

    Returns:
        The open GPU, to be closed by the caller, or why there is none.
    """
    nvml = start_nvml()
    if isinstance(nvml, Absent):
        return nvml
    if pid_namespace is None:
        with contextlib.suppress(OSError):
            pid_namespace = os.readlink('/proc/self/ns/pid')
    try:
        found = _find_handle(nvml, uuid, pci_bus_id, index, environ)
        if not isinstance(found, Absent):
            return Gpu(nvml, found, clock=clock, wall=wall, pid_namespace=pid_namespace)
    except SourceError as error:
        found = Absent(error.reason)
    except Exception as error:  # noqa: BLE001, drivers answer garbage too
        found = Absent(f'NVML could not look up the GPU: {describe(error)}')
    stop_nvml(nvml)
    return found


def parse_uuid(uuid: str) -> list[str]:
    """Spellings under which the driver may know a UUID, best first.

    CUDA drops the prefix that separates a card from a MIG slice, so a bare UUID
    may be either::

        8a56cbd2-0f3e-4b1c-9d67-1f2e3d4c5b6a
    """
    uuid = uuid.strip()
    if uuid[:4].upper() in ('GPU-', 'MIG-'):
        return [uuid[:4].upper() + uuid[4:]]
    digits = uuid.replace('-', '').lower()
    bare = '-'.join(
        (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    )
    return [f'GPU-{bare}', f'MIG-{bare}']


def _find_handle(
    nvml: Any,
    uuid: str | None,
    pci_bus_id: str | None,
    index: int | None,
    environ: Mapping[str, str],
) -> Any:
    """Handle of the card, or `Absent`."""
    spellings = parse_uuid(uuid) if uuid else []
    for spelling in spellings:
        handle = _try(nvml, nvml.nvmlDeviceGetHandleByUUID, spelling)
        if handle is not None:
            return handle
    if pci_bus_id:
        handle = _try(nvml, nvml.nvmlDeviceGetHandleByPciBusId, pci_bus_id)
        if handle is not None:
            theirs = read_text(nvml.nvmlDeviceGetUUID, handle)
            # a MIG slice that NVML does not list still has its card's address
            if not spellings or theirs in spellings or _is_mig(nvml, handle):
                return handle
            return Absent(
                f'the GPU at {pci_bus_id} is {theirs} for the driver, but the '
                f'training uses {uuid}'
            )
    count = nvml.nvmlDeviceGetCount()
    if uuid or pci_bus_id:
        named = ' or '.join(name for name in (uuid, pci_bus_id) if name)
        return Absent(f'the driver lists {count} GPU(s), but not {named}')
    if index is None:
        return Absent('nothing is known that names the GPU that the training uses')
    certain = (
        environ.get('CUDA_DEVICE_ORDER') == 'PCI_BUS_ID'
        and 'CUDA_VISIBLE_DEVICES' not in environ
    )
    if 0 <= index < count and (count == 1 or certain):
        return nvml.nvmlDeviceGetHandleByIndex(index)
    return Absent(
        f'CUDA index {index} may be any of {count} GPU(s): CUDA and the driver '
        'number them differently; a newer torch knows the UUID'
    )


def _try(nvml: Any, lookup: Callable[[str], Any], name: str) -> Any:
    """Handle of the device of that name, or ``None`` when there is none."""
    try:
        return lookup(name)
    except nvml.NVMLError as error:
        if error.value in NOT_FOUND:
            return None
        raise
