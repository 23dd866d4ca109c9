"""One GPU through NVML: which card it is, sampled in the background.

The one importer of pynvml. A card is found by what names it for certain, and never
guessed: NVML ignores ``CUDA_VISIBLE_DEVICES`` and numbers cards in its own order. What
goes wrong is sorted: a figure is missing for good, or for now, or the card is gone.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

import numpy as np

from mmgpu_hooks.measure.absent import Absent, SourceError
from mmgpu_hooks.measure.clock import Clock, monotonic_s

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

_VITAL = {'util_pct', 'mem_used_bytes'}
"""Once all of these were given up for an odd answer, it is the card."""
ESSENTIAL = _VITAL | {'name', 'uuid', 'memory_total_bytes', 'driver_version'}
"""Figures that every card gives, so that the user is told when one does not."""

# Seconds between two samples of what changes slowly or costs more.
VITALS_S, GPM_S = 1.0, 2.0


class GarbageError(Exception):
    """The driver answered with something that cannot be true."""


class Queries:
    """Asks the driver about one card, and sorts what goes wrong.

    Args:
        under_mig: Whether the card is sliced, which explains refusals.
    """

    def __init__(self, under_mig: bool = False) -> None:
        self.under_mig = under_mig
        self.refused: dict[str, str] = {}
        """Why a figure is ``None`` for the whole run, by its name."""
        self.missing: dict[str, str] = {}
        """Why a figure was not given at its newest sample; it is asked for again."""
        self._odd: Counter[str] = Counter()
        self._vital = set(_VITAL)

    def ask(self, figure: str, query: Callable[[], Any]) -> Any:
        """Return the query's answer, or ``None`` with the reason kept.

        Raises:
            SourceError: If the card or the driver was lost.
        """
        if figure in self.refused:
            return None
        self.missing.pop(figure, None)
        try:
            answer = query()
        except Exception as error:  # noqa: BLE001, drivers answer garbage too
            self._sort(figure, error)
            return None
        self._odd.pop(figure, None)
        return answer

    def refuse(self, figure: str, reason: str) -> None:
        """Give a figure up for the run; the first reason stays."""
        self.refused.setdefault(figure, reason)

    def reasons(self) -> dict[str, str]:
        """Why figures are missing now; may be called from another thread."""
        return {**self.missing.copy(), **self.refused.copy()}

    def _sort(self, figure: str, error: Exception) -> None:
        text = describe(error)
        under = ' under MIG' if self.under_mig else ''
        code = getattr(error, 'value', None)
        if isinstance(error, AttributeError):
            self.refuse(figure, f'the installed nvidia-ml-py cannot ask for it: {text}')
        elif code in NEVER:
            self.refuse(figure, f'the driver does not give it{under}: {text}')
        elif code in _LOST:
            raise SourceError(f'NVML stopped answering for this GPU: {text}') from error
        else:
            self.missing[figure] = f'the driver could not give it: {text}'
            if code not in _NOT_NOW:
                self._note_odd(figure, text)

    def _note_odd(self, figure: str, text: str) -> None:
        self._odd[figure] += 1
        if self._odd[figure] < _PATIENCE:
            return
        self.refuse(figure, self.missing[figure])
        if figure in self._vital:
            self._vital.remove(figure)
            if not self._vital:
                raise SourceError(f'NVML stopped answering for this GPU: {text}')


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


def _read_memory(nvml: Any, handle: Any) -> tuple[int, int]:
    """Total bytes and those in use."""
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    used, total = int(memory.used), int(memory.total)
    if not used <= total > 0:
        raise GarbageError(f'the driver reported {used} of {total} bytes in use')
    return total, used


def _is_slice(nvml: Any, handle: Any) -> bool:
    with contextlib.suppress(nvml.NVMLError, GarbageError):
        return read_text(nvml.nvmlDeviceGetUUID, handle).startswith('MIG-')
    return False


def _is_sliced(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == 1)
    except (nvml.NVMLError, AttributeError):
        return False  # most cards cannot be sliced and say so here


@dataclass(frozen=True)
class GpuSample:
    """One sample of the GPU; a figure that the driver does not give is ``None``."""

    util_pct: float | None = None
    """Share of the driver's last period, 1/6 to 1 s, with a kernel running."""
    mem_used_bytes: int | None = None
    """Device memory in use by anyone, the driver's own reserve included."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Other figures, by the names of the record, where it was time."""
    throttle_reasons: frozenset[str] | None = None
    """What holds the clocks down; ``None`` where it was not asked."""


class Gpu:
    """One GPU, its handle kept open. Made by :func:`open_gpu`.

    One thread reads, and closes. A forked child must leave it alone, except for
    :meth:`close`, which does nothing there.

    Args:
        nvml: The pynvml module, started; :meth:`close` ends it.
        handle: The card.
        clock: Monotonic clock.
    """

    def __init__(self, nvml: Any, handle: Any, clock: Clock = monotonic_s) -> None:
        self._nvml: Any = nvml
        self._handle = handle
        self._pid = os.getpid()
        self._clock = clock
        self.is_sliced = _is_sliced(nvml, handle)
        """Whether it is a whole card that is cut into MIG slices."""
        self._queries = Queries(self.is_sliced or _is_slice(nvml, handle))
        if self.is_sliced:
            for figure in ('memory_total_bytes', 'mem_used_bytes'):
                reason = 'the driver tells it of the whole card, not of the MIG slice'
                self._queries.refuse(figure, reason)
        self._gpm: list[Any] = []
        self._gpm_request: Any = None
        self._has_earlier = False
        self._due_s: dict[str, float] = {}

    @property
    def unsupported(self) -> dict[str, str]:
        """Why a figure that every card should give is ``None`` for the whole run."""
        return {k: v for k, v in self._queries.refused.items() if k in ESSENTIAL}

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
        nvml, handle, ask = self._nvml, self._handle, self._queries.ask
        if nvml is None:
            raise SourceError('the GPU was read after it had been closed')
        util = ask('util_pct', self._read_util)
        memory = ask('mem_used_bytes', lambda: _read_memory(nvml, handle)[1])
        figures: dict[str, float | None] = {}
        reasons = None
        if self._is_due('vitals', VITALS_S):
            for figure, query in _PLAIN.items():
                read = functools.partial(self._read_plain, *query)
                figures[figure] = ask(figure, read)
            reasons = ask('throttled_pct', self._read_throttle_reasons)
        # the counter is read twice in a row first: a figure needs two of them
        if not self._has_earlier or self._is_due('gpm', GPM_S):
            figures[_SM] = ask(_SM, self._ask_gpm)
        known = {name: value for name, value in figures.items() if value is not None}
        return GpuSample(util, memory, known, reasons)

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
        util = self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu
        if not 0 <= util <= 100:
            raise GarbageError(f'the driver reported {util} % utilisation')
        return float(util)

    def _read_plain(self, name: str, which: int, most: int) -> float:
        value = int(getattr(self._nvml, name)(self._handle, which))
        if not 0 <= value <= most:
            raise GarbageError(
                f'the driver reported {value}, more than the {most} possible'
            )
        return float(value)

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
            queries.missing[_SM] = 'GPM was read once, and a share needs two readings'
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

# NVML_CLOCK_SM, NVML_TEMPERATURE_GPU: a query, which one, and the most it may give
_PLAIN: Mapping[str, tuple[str, int, int]] = {
    'sm_clock_mhz': ('nvmlDeviceGetClockInfo', 1, 10_000),
    'temperature_c': ('nvmlDeviceGetTemperature', 0, 200),
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

    Returns:
        The open GPU, to be closed by the caller, or why there is none.
    """
    nvml = start_nvml()
    if isinstance(nvml, Absent):
        return nvml
    try:
        found = _find_handle(nvml, uuid, pci_bus_id, index, environ)
        if not isinstance(found, Absent):
            return Gpu(nvml, found, clock)
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
    failures: list[Exception] = []
    for spelling in spellings:
        handle = _try(nvml.nvmlDeviceGetHandleByUUID, spelling, failures)
        if handle is not None:
            return handle
    if pci_bus_id:
        handle = _try(nvml.nvmlDeviceGetHandleByPciBusId, pci_bus_id, failures)
        if handle is not None:
            theirs = read_text(nvml.nvmlDeviceGetUUID, handle)
            # a MIG slice that NVML does not list still has its card's address
            if not spellings or theirs in spellings or _is_sliced(nvml, handle):
                return handle
            return Absent(
                f'the GPU at {pci_bus_id} is {theirs} for the driver, but the '
                f'training uses {uuid}'
            )
    for failure in failures:
        raise failure
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


def _try(lookup: Callable[[str], Any], name: str, failures: list[Exception]) -> Any:
    """Handle of the device of that name, or ``None`` when there is none.

    Another card that is lost may fail a look-up, too: that is kept for later.
    """
    try:
        return lookup(name)
    except Exception as error:  # noqa: BLE001, drivers answer garbage too
        if getattr(error, 'value', None) not in NOT_FOUND:
            failures.append(error)
        return None


def summarize_samples(samples: Sequence[tuple[float, GpuSample]]) -> dict[str, Any]:
    """Fold samples into the fields of a record; what no sample gave is left out.

    Args:
        samples: Each with the seconds since the one before it, which its utilisation
            stands for: the driver's figure is of the time before.
    """
    found: dict[str, Any] = {
        'samples': sum(
            (one.util_pct, one.mem_used_bytes) != (None, None) for _, one in samples
        )
    }
    known = [(s, one.util_pct) for s, one in samples if one.util_pct is not None]
    seconds, utils = np.array(known, dtype=float).reshape(-1, 2).T
    if seconds.sum() > 0.0:
        mean = np.average(utils, weights=seconds)
        variance = np.average((utils - mean) ** 2, weights=seconds)
        found.update(
            util_pct=float(mean),
            util_std_pct=float(np.sqrt(variance)),
            zero_pct=float(100.0 * np.average(utils == 0.0, weights=seconds)),
            sampled_s=float(seconds.sum()),
        )
    memory = [
        one.mem_used_bytes for _, one in samples if one.mem_used_bytes is not None
    ]
    if memory:
        found['mem_used_bytes'] = max(memory)
    for figure in (*_PLAIN, _SM):
        values = [one.figures[figure] for _, one in samples if figure in one.figures]
        if values:
            is_largest = figure == 'temperature_c'
            found[figure] = max(values) if is_largest else sum(values) / len(values)
    held = [
        one.throttle_reasons for _, one in samples if one.throttle_reasons is not None
    ]
    if held:
        counts = Counter(reason for one in held for reason in one)
        found['throttled_pct'] = 100.0 * sum(map(bool, held)) / len(held)
        found['throttle_reasons_pct'] = {
            reason: 100.0 * count / len(held)
            for reason, count in sorted(counts.items())
        }
    return found


THREAD_NAME = 'mmgpu-gpu-sampler'

_MAX_PENDING = 36_000
"""Samples kept for a drain that never comes: two hours of the default period."""


class GpuSampler:
    """Calls ``read_sample`` every period from a daemon thread.

    Loader workers are forked while the thread lives, so the thread and its owner share
    no lock of ours: samples pass through a deque, whose ends are atomic. In a forked
    child, where the thread does not exist, the sampler does nothing.

    Args:
        read_sample: Samples the GPU; may raise `SourceError`.
        period_s: Seconds between two samples on average, above 0; each waits half to
            one and a half of it, since iterations as regular as the samples would be
            seen at the same few places again and again. Default: 0.2.
        close: Lets the GPU go, called by the thread as it ends: never while the
            driver is in use.
        clock: Monotonic clock.
        wait: Waits for the stop event.
        draw: Random numbers from 0 to 1; not of the generators that training uses.
    """

    def __init__(
        self,
        read_sample: Callable[[], GpuSample],
        period_s: float = 0.2,
        *,
        close: Callable[[], None] = lambda: None,
        clock: Clock = monotonic_s,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
        draw: Callable[[], float] = random.Random().random,
    ) -> None:
        self.failure: str | None = None
        """Why the source stopped giving samples; ``None`` while it works."""
        self._read_sample = read_sample
        self._period_s = period_s
        self._close = close
        self._clock = clock
        self._wait = wait
        self._draw = draw
        self._pid = os.getpid()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pending: deque[tuple[float, GpuSample]] = deque(maxlen=_MAX_PENDING)

    def start(self) -> None:
        """Start sampling, once; does nothing in a forked child."""
        if self._thread is not None or os.getpid() != self._pid:
            return
        self._thread = threading.Thread(
            target=self._run, args=(self._clock(),), name=THREAD_NAME, daemon=True
        )
        self._thread.start()

    def stop(self, timeout_s: float = 0.5) -> bool:
        """Stop sampling; may be called twice, and in a forked child.

        Samples that were taken stay to be drained.

        Args:
            timeout_s: How long to wait for a read that is under way.

        Returns:
            Whether the thread has ended. One that is stuck in the driver stays
            behind as a daemon, adds nothing more and does not keep the process.
        """
        if os.getpid() != self._pid:
            return True  # the event's lock may be held by a thread not copied
        self._stop.set()
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def drain(self) -> dict[str, Any]:
        """Return the samples since the last drain, folded, and forget them.

        Time between the last sample and now belongs to the next window.
        """
        taken = []
        if os.getpid() == self._pid:
            # only those here now: a fast sampler must not hold us in the loop
            taken = [self._pending.popleft() for _ in range(len(self._pending))]
        return summarize_samples(taken)

    def _run(self, last_s: float) -> None:
        try:
            self._sample(last_s)
        finally:
            self._close()

    def _sample(self, last_s: float) -> None:
        stop = self._stop
        while not self._wait(stop, self._period_s * (0.5 + self._draw())):
            try:
                sample = self._read_sample()
            except Exception as error:  # noqa: BLE001, the training must go on
                if not stop.is_set():  # a source closed after the stop is no failure
                    is_ours = isinstance(error, SourceError)
                    kind = '' if is_ours else f'{type(error).__name__}: '
                    self.failure = kind + describe(error)
                return
            now_s = self._clock()
            if stop.is_set():
                return
            self._pending.append((now_s - last_s, sample))
            last_s = now_s
