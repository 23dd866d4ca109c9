"""Samples a GPU's utilisation, memory and clock through NVML, and identifies the GPU.

The one importer of pynvml. A card is found by what names it for certain, and never
guessed: NVML ignores ``CUDA_VISIBLE_DEVICES`` and numbers cards in its own order. What
goes wrong is sorted: a figure is missing for good, or for now, or the card is gone.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import statistics
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, TypedDict, cast

import numpy as np

from mmgpu_hooks.measure.absent import AbsentError, SourceError
from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.schema.text import phrase

_START_HINTS = {
    9: phrase(
        'the NVIDIA driver is not loaded; nvidia-smi should fail in the same way'
    ),
    12: phrase(
        'the NVIDIA driver library (libnvidia-ml) was not found; install the '
        'driver, or start the container with access to it (docker run --gpus all)'
    ),
    18: phrase('the NVIDIA driver was updated under a running kernel module; reboot'),
}

# Return codes of nvml.h; pynvml names only those that its version knows.
_NOT_FOUND = (2, 6, 28)  # invalid argument, not found, GPU not found
# timeout, IRQ, in use, host memory, no data, no resources, not ready
_NOT_NOW = (10, 11, 19, 20, 21, 23, 27)
# driver not started or unloaded, card off the bus or to be reset, driver replaced
_LOST = (1, 9, 15, 16, 18)

_PATIENCE = 3
"""Number of consecutive failed reads after which a GPU value is no longer read."""

_ESSENTIAL = {
    'name',
    'uuid',
    'memory_total_bytes',
    'driver_version',
    'util_pct',
    'mem_used_bytes',
}
"""Names of facts and values that every GPU has, so that a missing one is reported."""

_SM = 'sm_active_pct'
_HELD_BY = 'throttled_pct'

_CPU_WORDS = 64
"""Number of 64-bit words of NVML's CPU affinity mask, enough for 4096 CPUs."""

_SLOW_S = 1.0
"""Seconds between two samples of the GPU's clock, temperature and throttling."""


class CardFacts(TypedDict, total=False):
    """Name, UUID, memory size and driver of a GPU; an unknown value has no key."""

    name: str
    uuid: str
    memory_total_bytes: int
    driver_version: str


class CardPlace(TypedDict, total=False):
    """PCI address of a GPU and the CPUs near it; an unknown value has no key."""

    pci_bus_id: str
    cpus: tuple[int, ...]
    """Numbers of the CPUs near the GPU, by NVML's affinity mask."""


class Sample(TypedDict, total=False):
    """GPU values at one time, such as utilisation, keyed as in the evidence file."""

    util_pct: float
    """Per cent of the driver's last period (1/6 to 1 s) in which a kernel ran."""
    mem_used_bytes: int
    """Bytes of GPU memory in use by all processes, with the driver's own reserve."""
    sm_clock_mhz: float
    """Clock of the GPU's multiprocessors in MHz.

    It and all fields that follow are sampled seldom.
    """
    temperature_c: float
    throttled_pct: frozenset[str]
    """Names (despite `pct`) of reasons that held the GPU's clocks down at sampling."""
    sm_active_pct: float


class TimedSample(NamedTuple):
    """GPU sample, weighted by the seconds since the previous sample."""

    seconds: float
    """Seconds since the previous sample of the GPU."""
    sample: Sample


class SampleSummary(TypedDict, total=False):
    """Means and extremes of a GPU's samples; an unknown value has no key.

    The keys are the names of the evidence record.
    """

    samples: int
    util_pct: float
    zero_pct: float
    sampled_s: float
    mem_used_bytes: int
    sm_clock_mhz: float
    temperature_c: float
    throttled_pct: float
    throttle_reasons_pct: dict[str, float]
    sm_active_pct: float


def describe(error: Exception) -> str:
    """Returns the text of a pynvml error, even if the driver cannot give one."""
    with contextlib.suppress(Exception):  # bytes that are no text, a missing symbol
        if text := ' '.join(str(error).split()):
            return text
    return f'{type(error).__name__} {getattr(error, "value", "")}'.rstrip()


def _within(value: float, most: float, what: str) -> float:
    """Returns the driver's answer as a float; raises if it is below 0 or above a limit.

    Raises:
        ValueError: If the driver cannot mean it: some answer with all bits set.
    """
    if not 0 <= value <= most:
        raise ValueError(f'the driver reported {value} of {most} {what}')
    return float(value)


class Gpu:
    """Reads utilisation, memory and clock of one GPU through its NVML handle.

    One thread reads, and closes. A figure that is refused ends alone; only a lost card
    or driver ends them all.

    Args:
        nvml: The pynvml module, started; :meth:`close` ends it.
        handle: The card.
        clock: Monotonic clock.
    """

    def __init__(self, nvml: Any, handle: Any, clock: Clock = monotonic_s) -> None:
        self._nvml: Any = nvml
        self._handle = handle
        self._clock = clock
        self._missing: dict[str, str] = {}
        """Reasons why the newest GPU sample lacks values, by the value's name."""
        self._refused: set[str] = set()
        """Names of the GPU values that NVML is not asked for any more."""
        self._odd: Counter[str] = Counter()
        self.is_sliced = is_slice = False
        """True if the GPU is a whole card that is cut into MIG slices."""
        with contextlib.suppress(Exception):  # most cards cannot be, and say so here
            self.is_sliced = nvml.nvmlDeviceGetMigMode(handle)[0] == 1
        with contextlib.suppress(Exception):
            is_slice = 'MIG-' in str(nvml.nvmlDeviceGetUUID(handle))
        self._is_mig = self.is_sliced or is_slice
        whole = ['memory_total_bytes', 'mem_used_bytes'] * self.is_sliced
        for figure in whole + [_SM] * self._is_mig:
            self._give_up(figure, 'NVML has it of the whole card, not of a MIG slice')
        get = self._get
        self._often: dict[str, Callable[[], Any]] = {
            'util_pct': lambda: _within(get('UtilizationRates').gpu, 100, '% in use'),
            'mem_used_bytes': self._read_memory,
        }
        # NVML_CLOCK_SM is 1, NVML_TEMPERATURE_GPU is 0; newer drivers have a newer name
        # for the reasons, and this one
        self._seldom: dict[str, Callable[[], Any]] = {
            'sm_clock_mhz': lambda: _within(get('ClockInfo', 1), 10_000, 'MHz'),
            'temperature_c': lambda: _within(get('Temperature', 0), 200, 'C'),
            _HELD_BY: lambda: parse_reasons(get('CurrentClocksThrottleReasons')),
            _SM: self._read_gpm,
        }
        self._slow_due_s = clock()
        self._gpm: list[Any] = []
        """Buffers for two readings of NVML's GPM counters, the newer one last."""
        self._is_gpm_read = False

    @property
    def unsupported(self) -> dict[str, str]:
        """Reasons why expected GPU values are no longer read, by name."""
        return {figure: self._missing[figure] for figure in self._refused & _ESSENTIAL}

    def reasons(self) -> dict[str, str]:
        """Returns the reasons why GPU values are missing now, by name; thread-safe."""
        return self._missing.copy()

    def _get(self, what: str, *which: int) -> Any:
        return getattr(self._nvml, f'nvmlDeviceGet{what}')(self._handle, *which)

    def _give_up(self, figure: str, reason: str) -> None:
        self._missing[figure] = reason
        self._refused.add(figure)

    def _ask_all(self, queries: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        answers = {
            figure: self._ask(figure, query) for figure, query in queries.items()
        }
        return {name: value for name, value in answers.items() if value is not None}

    def _ask(self, figure: str, query: Callable[[], Any]) -> Any:
        """Asks NVML for one GPU value; ``None`` if that fails, with the reason noted.

        Raises:
            SourceError: If the card or the driver was lost.
        """
        if figure in self._refused:
            return None
        self._missing.pop(figure, None)
        try:
            answer = query()
            if isinstance(answer, bytes):  # the abandoned package pynvml gives them
                answer = answer.decode()
        except Exception as error:  # drivers answer garbage too
            text, code = describe(error), getattr(error, 'value', None)
            if code in _LOST:
                lost = phrase(
                    'NVML stopped answering for this GPU: {error}', error=text
                )
                raise SourceError(lost) from error
            under = ' under MIG' if self._is_mig else ''
            self._missing[figure] = f'the driver does not give it{under}: {text}'
            self._odd[figure] += code not in _NOT_NOW
            if self._odd[figure] >= _PATIENCE:
                self._refused.add(figure)
            return None
        self._odd.pop(figure, None)
        return answer

    def device(self) -> CardFacts:
        """Reads the GPU's name, UUID, memory size and driver version.

        Raises:
            SourceError: If the device or the driver was lost.
        """
        get = self._get
        facts = self._ask_all(
            {
                'name': lambda: get('Name'),
                'uuid': lambda: get('UUID'),
                'memory_total_bytes': lambda: int(get('MemoryInfo').total) or None,
                'driver_version': self._nvml.nvmlSystemGetDriverVersion,
            }
        )
        return cast(CardFacts, facts)

    def place(self) -> CardPlace:
        """Reads the GPU's PCI address and the CPUs near it.

        Raises:
            SourceError: If the device or the driver was lost.
        """
        place = self._ask_all(
            {'pci_bus_id': self._read_bus_id, 'cpus': self._read_cpus}
        )
        return cast(CardPlace, place)

    def _read_bus_id(self) -> str:
        text = self._get('PciInfo').busId
        return str(text.decode() if isinstance(text, bytes) else text)

    def _read_cpus(self) -> tuple[int, ...] | None:
        words = self._get('CpuAffinity', _CPU_WORDS)
        bits = sum(int(word) << (64 * number) for number, word in enumerate(words))
        cpus = tuple(cpu for cpu in range(64 * _CPU_WORDS) if bits >> cpu & 1)
        return cpus or None

    def read_sample(self) -> Sample:
        """Samples the GPU's utilisation, memory, clock and throttling now.

        Raises:
            SourceError: If the device or the driver was lost.
        """
        sample, now_s = self._ask_all(self._often), self._clock()
        if now_s >= self._slow_due_s:
            self._slow_due_s = now_s + _SLOW_S
            sample |= self._ask_all(self._seldom)
        return cast(Sample, sample)

    def close(self) -> None:
        """Ends the use of the GPU and NVML; may be called twice, and never raises."""
        nvml, self._nvml = self._nvml, None
        if nvml is None:
            return
        for sample in self._gpm:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlGpmSampleFree(sample)
        stop_nvml(nvml)

    def _read_memory(self) -> int:
        memory = self._get('MemoryInfo')
        return int(_within(int(memory.used), int(memory.total) or -1, 'bytes in use'))

    def _read_gpm(self) -> float | None:
        """Reads the mean per cent of multiprocessors busy since GPM's last reading."""
        nvml = self._nvml
        if not self._gpm:
            if not nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                self._give_up(_SM, 'the GPU or its driver has no GPM counters')
                return None
            self._gpm = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        earlier, now = self._gpm = self._gpm[::-1]
        had_earlier, self._is_gpm_read = self._is_gpm_read, False
        nvml.nvmlGpmSampleGet(self._handle, now)
        self._is_gpm_read = True
        if not had_earlier:
            # so that a short run has a share of two readings, or the reason
            self._slow_due_s = 0.0
            self._missing[_SM] = 'GPM was read once, and a share needs two readings'
            return None
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = 1
        request.sample1, request.sample2 = earlier, now
        metric = request.metrics[0]
        metric.metricId = nvml.NVML_GPM_METRIC_SM_UTIL
        nvml.nvmlGpmMetricsGet(request)
        if metric.nvmlReturn:
            raise nvml.NVMLError(metric.nvmlReturn)
        # the counter may end a little above the whole
        return min(_within(metric.value, 101.0, '% by GPM'), 100.0)


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


def parse_reasons(bits: int) -> frozenset[str]:
    """Returns the names of throttle reasons in NVML's bit mask; empty if none.

    Raises:
        ValueError: If it cannot be such a mask: some drivers answer with all ones.

    Examples:
        >>> sorted(parse_reasons(0x1 | 0x4 | 0x40))
        ['hw_thermal', 'power_cap']
    """
    if not 0 <= bits < 1 << 32:
        raise ValueError(f'the driver reported throttle reasons {bits:#x}')
    names = {name for bit, name in _REASONS.items() if bits & bit}
    if bits & ~(sum(_REASONS) | _HARMLESS):
        names.add('other')
    return frozenset(names)


def start_nvml() -> Any:
    """Starts NVML, the driver's library; each start needs one :func:`stop_nvml`.

    Returns:
        The pynvml module.

    Raises:
        AbsentError: If there is none, or no driver.
    """
    try:
        import pynvml  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise AbsentError(
            phrase(
                'GPU figures need the package nvidia-ml-py, which is not installed: '
                'pip install nvidia-ml-py'
            )
        ) from error
    try:
        pynvml.nvmlInit()
    except Exception as error:  # a broken driver library
        hint = _START_HINTS.get(getattr(error, 'value', -1))
        found = phrase('NVML could not start: {error}', error=describe(error))
        raise AbsentError(hint or found) from error
    return pynvml


def stop_nvml(nvml: Any) -> None:
    """Shuts NVML down; never raises, as the driver may be unloaded already."""
    with contextlib.suppress(Exception):
        nvml.nvmlShutdown()


class Driver(NamedTuple):
    """GPU count and versions of NVIDIA's driver and its CUDA; ``None`` is unknown."""

    cards: int
    """Number of GPUs of this host that the driver lists."""
    version: str | None
    cuda: str | None
    """Newest CUDA version that the driver supports, such as ``12.4``."""


def read_driver() -> Driver:
    """Reads the versions of the NVIDIA driver and its CUDA, and counts the GPUs.

    Raises:
        AbsentError: If there is no driver, or it lists no cards.
    """
    nvml = start_nvml()
    version: str | None = None
    cuda: str | None = None
    try:
        count = int(nvml.nvmlDeviceGetCount())
        with contextlib.suppress(Exception):
            found = nvml.nvmlSystemGetDriverVersion()
            version = found.decode() if isinstance(found, bytes) else str(found)
        with contextlib.suppress(Exception):
            number = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
            cuda = f'{number // 1000}.{number % 1000 // 10}'
    except Exception as error:
        text = phrase('NVML could not list the GPUs: {error}', error=describe(error))
        raise AbsentError(text) from error
    finally:
        stop_nvml(nvml)
    return Driver(count, version, cuda)


def open_gpu(
    *,
    uuid: str | None = None,
    pci_bus_id: str | None = None,
    index: int | None = None,
    clock: Clock = monotonic_s,
) -> Gpu:
    """Opens a GPU by the first of UUID, PCI address and index that the driver knows.

    Args:
        uuid: As NVML writes it (``GPU-...``, ``MIG-...``) or bare, as torch does.
        pci_bus_id: Such as ``00000000:3B:00.0``. A MIG slice has that of its card.
        index: NVML's own, as in ``nvidia-smi``; CUDA counts in another order.
        clock: Monotonic clock.

    Returns:
        The open GPU, to be closed by the caller.

    Raises:
        AbsentError: If there is none.
    """
    nvml = start_nvml()
    try:
        return Gpu(nvml, _find_handle(nvml, uuid, pci_bus_id, index), clock)
    except AbsentError:
        stop_nvml(nvml)
        raise
    except Exception as error:  # drivers answer garbage too
        stop_nvml(nvml)
        text = phrase('NVML could not look up the GPU: {error}', error=describe(error))
        raise AbsentError(text) from error


def _find_handle(
    nvml: Any, uuid: str | None, pci_bus_id: str | None, index: int | None
) -> Any:
    """Finds a GPU's NVML handle by the first of UUID, PCI address, index that works."""
    # CUDA drops the prefix that separates a card from a MIG slice
    prefixes = [''] if (uuid or '')[:4] in ('GPU-', 'MIG-') else ['GPU-', 'MIG-']
    names: list[tuple[str, Any]] = []
    if uuid:
        names += [('UUID', f'{prefix}{uuid}') for prefix in prefixes]
    names += [('PciBusId', pci_bus_id)] if pci_bus_id else []
    names += [('Index', index)] if index is not None else []
    failure: Exception | None = None
    for kind, name in names:
        try:
            return getattr(nvml, f'nvmlDeviceGetHandleBy{kind}')(name)
        except Exception as error:  # noqa: BLE001, drivers answer garbage too
            # another card that is lost may fail a look-up, too
            if getattr(error, 'value', None) not in _NOT_FOUND:
                failure = error
    if failure is not None:
        raise failure
    if not names:
        raise AbsentError(
            phrase('nothing is known that names the GPU that the training uses')
        )
    named = tuple(str(name) for name in (uuid, pci_bus_id, index) if name)
    raise AbsentError(
        phrase(
            'the driver lists other GPUs ({count:d}), not {named:/}',
            count=nvml.nvmlDeviceGetCount(),
            named=named,
        )
    )


_REDUCE: Mapping[str, Callable[[list[Any]], float]] = {
    'mem_used_bytes': max,
    'sm_clock_mhz': statistics.fmean,
    'temperature_c': max,
    _SM: statistics.fmean,
}


def summarize_samples(samples: Sequence[TimedSample]) -> SampleSummary:
    """Summarises GPU samples of a period: utilisation, memory, clock and throttling.

    Args:
        samples: In order. A utilisation stands for the time before it: so does the
            driver's figure.
    """
    values: dict[str, list[Any]] = defaultdict(list)
    for timed in samples:
        for figure, value in timed.sample.items():
            values[figure].append(value)
    reduced = {
        name: reduce(values[name]) for name, reduce in _REDUCE.items() if values[name]
    }
    found = cast(SampleSummary, reduced)
    vital = {'util_pct', 'mem_used_bytes'}
    found['samples'] = sum(not vital.isdisjoint(timed.sample) for timed in samples)
    utils = np.array(values['util_pct'])
    seconds = np.array(
        [timed.seconds for timed in samples if 'util_pct' in timed.sample]
    )
    if seconds.sum() > 0.0:
        found['util_pct'] = float(np.average(utils, weights=seconds))
        found['zero_pct'] = float(100.0 * np.average(utils == 0.0, weights=seconds))
        found['sampled_s'] = float(seconds.sum())
    if reasons := values[_HELD_BY]:
        found['throttled_pct'] = 100.0 * sum(map(bool, reasons)) / len(reasons)
        counts = Counter(itertools.chain.from_iterable(reasons))
        found['throttle_reasons_pct'] = {
            reason: 100.0 * count / len(reasons)
            for reason, count in sorted(counts.items())
        }
    return found


SAMPLER_THREAD = 'mmgpu-gpu-sampler'


class GpuSampler:
    """Thread that samples a GPU's utilisation, memory and clock once per period.

    Loader workers are forked while the thread lives, so the thread and its owner share
    no lock of ours: samples pass through a deque, whose ends are atomic.

    Args:
        read_sample: Samples the GPU; may raise `SourceError`.
        period_s: Seconds between two samples on average, above 0; each waits half to
            one and a half of it, since iterations as regular as the samples would be
            seen at the same few places again and again. Default: 0.2.
        close: Lets the GPU go, called by the thread as it ends: never while the
            driver is in use.
        clock: Monotonic clock.
    """

    def __init__(
        self,
        read_sample: Callable[[], Sample],
        period_s: float = 0.2,
        *,
        close: Callable[[], None] = lambda: None,
        clock: Clock = monotonic_s,
    ) -> None:
        self.failure: str | None = None
        """Reason why GPU sampling ended by itself; ``None`` while it goes on."""
        self._read_sample = read_sample
        self._period_s = period_s
        self._close = close
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=SAMPLER_THREAD, daemon=True
        )
        # two hours of the default period, for a drain that never comes
        self._pending: deque[TimedSample] = deque(maxlen=36_000)

    def start(self) -> None:
        """Starts the thread that samples the GPU; may be called only once."""
        self._thread.start()

    def stop(self, timeout_s: float = 0.5) -> None:
        """Stops sampling the GPU, keeping the samples for `drain`; may be called twice.

        A thread that is stuck in the driver stays behind as a daemon, adds nothing
        more and does not keep the process.

        Args:
            timeout_s: How long to wait for a read that is under way.
        """
        self._stop.set()
        self._thread.join(timeout_s)

    def drain(self) -> SampleSummary:
        """Returns a summary of the GPU samples since the last call, and drops them.

        Time between the last sample and now belongs to the next window.
        """
        # only those here now: a fast sampler must not hold us in the loop
        count = len(self._pending)
        return summarize_samples([self._pending.popleft() for _ in range(count)])

    def _run(self) -> None:
        # not of the generators that training uses
        last_s, draw = self._clock(), random.Random().random
        try:
            while not self._stop.wait(self._period_s * (0.5 + draw())):
                sample = self._read_sample()
                if self._stop.is_set():
                    return
                now_s = self._clock()
                self._pending.append(TimedSample(now_s - last_s, sample))
                last_s = now_s
        except Exception as error:  # noqa: BLE001, the training must go on
            if not self._stop.is_set():
                is_ours = isinstance(error, SourceError)
                kind = '' if is_ours else f'{type(error).__name__}: '
                self.failure = kind + describe(error)
        finally:
            self._close()
