"""Reads PyTorch's CUDA events, the CUDA allocator and the GPU's identifiers.

CUDA is never initialised by asking, its peak statistics are never reset, and nothing
here synchronises.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Callable, NamedTuple, TypedDict

from mmgpu_hooks.measure.absent import AbsentError, SourceError
from mmgpu_hooks.schema.text import phrase


def read_pci_bus_id(index: int) -> str | None:
    """Asks the driver for the PCI address of a CUDA device.

    Needs a process that uses CUDA already; makes no context and no device
    work. CUDA's own index is what is asked for, so ``CUDA_VISIBLE_DEVICES`` is
    respected.

    Args:
        index: CUDA device index of this process.

    Returns:
        Such as ``0000:3B:00.0``, or ``None`` when the driver does not say.
    """
    text, device = ctypes.create_string_buffer(32), ctypes.c_int()
    try:
        driver = ctypes.CDLL('libcuda.so.1')
        failed = driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(index))
        failed = failed or driver.cuDeviceGetPCIBusId(text, len(text), device)
    except (OSError, AttributeError):
        return None
    return None if failed else text.value.decode('ascii', 'replace')


class CudaDevice(TypedDict):
    """UUID and PCI address of a CUDA device; ``None`` if unknown."""

    uuid: str | None
    """UUID of the GPU without NVML's prefix ``GPU-``; torch has it since 2.4."""
    pci_bus_id: str | None


def cuda_device() -> CudaDevice:
    """Reads the UUID and PCI address of the GPU that this rank uses.

    Raises:
        AbsentError: If this process does not use CUDA (yet).
    """
    torch = _torch_with_cuda()
    index = int(torch.cuda.current_device())
    uuid = None
    # one name is enough for the driver
    with contextlib.suppress(Exception):
        uuid = getattr(torch.cuda.get_device_properties(index), 'uuid', None)
    return {
        'uuid': None if uuid is None else str(uuid),
        'pci_bus_id': read_pci_bus_id(index),
    }


def read_cudnn_benchmark() -> bool:
    """True if cuDNN times its algorithms for each new size of input.

    Raises:
        AbsentError: If this process does not use CUDA (yet).
    """
    return bool(_torch_with_cuda().backends.cudnn.benchmark)


def find_lacking(backend: str | None, settings: str) -> dict[str, str]:
    """Finds which statistics a CUDA allocator does not count, and why, by name.

    Args:
        backend: As ``torch.cuda.get_allocator_backend()`` says; ``None`` where it
            fails.
        settings: Of ``PYTORCH_CUDA_ALLOC_CONF`` or ``PYTORCH_ALLOC_CONF``.

    Examples:
        >>> list(find_lacking('native', 'expandable_segments:True'))
        ['inactive_bytes']
    """
    if backend != 'native':
        reason = f'the allocator {backend} does not count it'
        if backend is None:
            reason = 'torch does not say which allocator counts it'
        return dict.fromkeys(('retries', 'inactive_bytes'), reason)
    # pytorch#159564
    if 'expandable_segments:true' in settings.replace(' ', '').lower():
        return {'inactive_bytes': 'expandable segments do not count it'}
    return {}


_STATISTICS = {
    'peak_bytes': ('allocated_bytes', 'all', 'peak'),
    'reserved_bytes': ('reserved_bytes', 'all', 'peak'),
    'allocated_bytes': ('allocated_bytes', 'all', 'current'),
    'inactive_bytes': ('inactive_split_bytes', 'all', 'current'),
    'retries': ('num_alloc_retries',),
}
"""Keys of each recorded value in torch's nested CUDA memory statistics.

Some allocators keep fewer.
"""


class CudaMemoryFigures(TypedDict):
    """CUDA allocator statistics of the time between two reads; unknown is ``None``."""

    peak_bytes: int | None
    """Peak bytes of live CUDA tensors; ``None`` if a validation's peak hides it."""
    reserved_bytes: int | None
    """Peak bytes that the CUDA allocator reserved since torch last reset the peak."""
    allocated_bytes: int | None
    """Bytes of live CUDA tensors when the allocator was last read."""
    inactive_bytes: int | None
    """Unused bytes in CUDA allocator blocks that are partly used by tensors.

    As of the end of the window.
    """
    retries: int | None
    """Number of retried CUDA allocations since the last read, validations included."""


class CudaMemory:
    """Reads CUDA allocator statistics per log interval; never resets torch's peaks.

    MMEngine's ``LoggerHook`` resets the allocator's peaks whenever it logs, in
    validation too, so call :meth:`observe` before each of its logs. Where nothing
    resets them, the peaks cover the whole run so far and every window repeats the
    largest.

    The peak is training's alone, if :meth:`begin` is called before it and
    :meth:`begin_validation` and :meth:`end_validation` stand around each validation:
    a peak that stands as validation left it is unknown for training, until training
    exceeds it or a log has reset it.

    Reserved bytes are of both: the cache that validation filled stays reserved while
    training goes on.

    A statistic that the allocator lacks ends its own figure alone.

    Args:
        read_stats: Returns the allocator's statistics, nested as torch does.
        lacking: Why a figure is missing for the whole run, by its name.
    """

    def __init__(
        self,
        read_stats: Callable[[], Mapping[str, Any]],
        lacking: Mapping[str, str] | None = None,
    ) -> None:
        self.lacking = dict(lacking or {})
        self._read_stats = read_stats
        self._peak: int | None = None
        self._reserved: int | None = None
        self._in_validation = False
        self._before_validation: int | None = None
        self._left: int | None = None
        """CUDA memory peak, in bytes, that was reached outside of training steps."""
        self._hidden = 0
        """CUDA memory peak (bytes) from outside training that may hide training's."""
        self._retries: int | None = None
        """Allocator's count of retried allocations at the last :meth:`drain`."""
        self._stats: Mapping[str, Any] = {}

    def begin(self) -> None:
        """Begins to count CUDA memory for training, ignoring earlier peaks.

        Raises:
            SourceError: If the allocator does not keep these statistics.
        """
        self._left = self._read_peak()
        self.drain()

    def observe(self) -> None:
        """Updates training's CUDA memory peak from the allocator without a device sync.

        Inside a validation only the reserved bytes count.

        Raises:
            SourceError: If the allocator does not keep these statistics.
        """
        peak = self._read_peak()
        if self._in_validation or peak is None:
            return
        if peak == self._left:
            self._hidden = max(self._hidden, peak)
        else:
            self._left = None
            self._peak = max(self._peak or 0, peak)

    def _read_peak(self) -> int | None:
        """Reads the CUDA allocator's statistics; returns its peak allocated bytes."""
        self._stats = self._read_stats()
        peak = self._find('peak_bytes')
        reserved = self._find('reserved_bytes')
        if peak is None and reserved is None:
            raise SourceError(phrase('the CUDA allocator keeps no peak statistics'))
        if reserved is not None:
            self._reserved = max(self._reserved or 0, reserved)
        return peak

    def _find(self, figure: str) -> int | None:
        """Looks up one CUDA memory statistic by name; ``None`` if it is missing."""
        found: Any = self._stats
        for key in _STATISTICS[figure]:
            found = found.get(key) if isinstance(found, Mapping) else None
        if found is None:
            name = '.'.join(_STATISTICS[figure])
            self.lacking.setdefault(figure, f'the CUDA allocator keeps no {name}')
            return None
        return int(found)

    def begin_validation(self) -> None:
        """Stores training's CUDA memory peak before a validation can raise it.

        Raises:
            SourceError: If the allocator does not keep these statistics.
        """
        if not self._in_validation:
            self.observe()
            self._before_validation = self._read_peak()
            self._in_validation = True

    def end_validation(self) -> None:
        """Attributes new CUDA memory peaks to training again, after a validation.

        Raises:
            SourceError: If the allocator does not keep these statistics.
        """
        if self._in_validation:
            # first, so that a failure does not leave us in validation for ever
            self._in_validation = False
            peak = self._read_peak()
            # unless it is as before: then nothing of training is hidden by it, and
            # batches of one size go on to reach just that
            if peak != self._before_validation:
                self._left = peak

    def drain(self) -> CudaMemoryFigures:
        """Returns the CUDA memory statistics since the last call, and restarts them."""
        before, retries = self._retries, None
        count = self._retries = self._find('retries')
        # somebody may have reset it
        if count is not None and before is not None and count >= before:
            retries = count - before
        peak = self._peak if (self._peak or 0) >= self._hidden else None
        allocated = self._find('allocated_bytes')
        inactive = self._find('inactive_bytes')
        found = CudaMemoryFigures(
            peak_bytes=self._unless_lacking('peak_bytes', peak),
            reserved_bytes=self._unless_lacking('reserved_bytes', self._reserved),
            allocated_bytes=self._unless_lacking('allocated_bytes', allocated),
            inactive_bytes=self._unless_lacking('inactive_bytes', inactive),
            retries=self._unless_lacking('retries', retries),
        )
        self._peak, self._reserved, self._hidden = None, None, 0
        return found

    def _unless_lacking(self, figure: str, value: int | None) -> int | None:
        """Returns a statistic's value; ``None`` for one that the CUDA allocator lacks.

        Some allocators leave what they lack at zero.
        """
        return None if figure in self.lacking else value


def open_cuda_memory() -> CudaMemory:
    """Returns a started `CudaMemory` for this process's current CUDA device.

    Returns:
        The source, begun.

    Raises:
        AbsentError: If this process uses no CUDA.
        SourceError: If its allocator does not keep these statistics.
    """
    torch = _torch_with_cuda()
    index = int(torch.cuda.current_device())
    names = ('PYTORCH_CUDA_ALLOC_CONF', 'PYTORCH_ALLOC_CONF')
    settings = ','.join(os.environ.get(name, '') for name in names)
    memory = CudaMemory(
        _choose_statistics(torch, index),
        find_lacking(_read_backend(torch), settings),
    )
    memory.begin()
    return memory


def _read_backend(torch: Any) -> str | None:
    """Returns the CUDA allocator's name; ``None`` if torch does not give it."""
    read = getattr(torch.cuda, 'get_allocator_backend', None)
    if read is None:  # before torch 2.0 there was one
        return 'native'
    # whatever it raises, it is about two figures of five
    with contextlib.suppress(Exception):
        return str(read())
    return None


def _choose_statistics(torch: Any, index: int) -> Callable[[], Mapping[str, Any]]:
    """Chooses the function that reads the CUDA allocator's statistics as nested dicts.

    The flat form takes several times as long, but what stands in for ``torch.cuda``
    may have that alone.
    """
    with contextlib.suppress(Exception):
        if torch.cuda.memory_stats_as_nested_dict(index):
            return lambda: torch.cuda.memory_stats_as_nested_dict(index)
    return lambda: nest_statistics(torch.cuda.memory_stats(index))


def nest_statistics(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Turns ``torch.cuda.memory_stats()`` into nested dicts, its keys split at dots.

    Examples:
        >>> nest_statistics({'reserved_bytes.all.peak': 7})
        {'reserved_bytes': {'all': {'peak': 7}}}
    """
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split('.')
        at = nested
        for part in path:
            at = at.setdefault(part, {})
        at[last] = value
    return nested


def _torch_with_cuda() -> Any:
    """Returns the torch module; raises if this process has not initialised CUDA.

    Raises:
        AbsentError: If this process uses no CUDA.
    """
    # a process that trains has imported it: never pull in 3 s to say no
    torch: Any = sys.modules.get('torch')
    if torch is None:
        raise AbsentError(phrase('torch is not in use in this process'))
    if not torch.cuda.is_initialized():
        if not torch.backends.cuda.is_built():
            raise AbsentError(
                phrase('this build of torch has no CUDA: training runs on the CPU')
            )
        raise AbsentError(
            phrase('CUDA is not in use in this process: training runs on the CPU')
        )
    return torch


_MOST_STEPS = 1024
"""Maximum number of train steps whose CUDA events wait to be read."""


@dataclass
class _Step:
    begin: Any
    end: Any
    stream: Any = None
    is_ended: bool = False


class IdleShare(NamedTuple):
    """Per cent of time between train steps' starts in which the GPU had no work."""

    pct: float | None
    """Idle GPU time in per cent of iteration time; ``None`` if nothing was timed."""
    iterations: int
    """Number of iterations over which CUDA events measured the idle share."""


class _StepSpan(NamedTuple):
    """Milliseconds from one train step's start to the next: GPU idle, and total."""

    idle_ms: float
    whole_ms: float


class CudaEvents:
    """Measures by CUDA events how long the GPU idles between train steps, without sync.

    An event notes the time when the GPU gets to it. One stands before a step's work,
    one behind that of the hooks after it: until the next step begins the GPU has
    nothing of ours to do. What it idles inside a step, or among those hooks, is not
    seen. Events are read in :meth:`drain` alone, once an interval.

    Args:
        new_event: Makes an event that keeps its time, as
            ``torch.cuda.Event(enable_timing=True)`` does.
        current_stream: The stream that the caller's work goes to; a step is timed on
            the one that it began on.
        is_capturing: Whether a CUDA graph is being captured: then nothing may be
            recorded or asked.
        most: Steps that are kept.
    """

    def __init__(
        self,
        new_event: Callable[[], Any],
        current_stream: Callable[[], Any],
        is_capturing: Callable[[], bool] = lambda: False,
        most: int = _MOST_STEPS,
    ) -> None:
        self._new_event = new_event
        self._current_stream = current_stream
        self._is_capturing = is_capturing
        self._most = most
        self._free: list[_Step] = []
        self._steps: deque[_Step | None] = deque()
        """Queue of train steps' CUDA events; ``None`` marks a save or validation."""
        self._step: _Step | None = None
        """Pair of CUDA events (begin, end) of the train step that began last."""

    def begin_step(self) -> None:
        """Records a CUDA event for the start of a train step, right before its work.

        It raises what CUDA does, after any error of its own.
        """
        if self._is_capturing() or len(self._steps) >= self._most:
            self.interrupt()
            return
        free = self._free
        step = free.pop() if free else _Step(self._new_event(), self._new_event())
        step.stream, step.is_ended = self._current_stream(), False
        step.begin.record(step.stream)
        self._steps.append(step)
        self._step = step

    def end_step(self) -> None:
        """Records a CUDA event for a train step's end; a later call replaces it."""
        step = self._step
        if step is not None and not self._is_capturing():
            step.end.record(step.stream)
            step.is_ended = True

    def interrupt(self) -> None:
        """Excludes the time from the last train step to the next from the idle share.

        A validation or a save ran.
        """
        if self._steps and self._steps[-1] is not None:
            self._steps.append(None)
        self._step = None

    def drain(self) -> IdleShare:
        """Returns the GPU's idle share since the last call, and starts a new count.

        What the GPU has not passed yet belongs to the next drain.
        """
        spans = [] if self._is_capturing() else [*self._read_passed()]
        total = sum(span.whole_ms for span in spans)
        idle = sum(span.idle_ms for span in spans)
        return IdleShare(100.0 * idle / total if total > 0.0 else None, len(spans))

    def _read_passed(self) -> Iterator[_StepSpan]:
        """Yields idle and total ms of each train step that the GPU has finished."""
        while len(self._steps) > 1:
            before, after = self._steps[0], self._steps[1]
            if before is not None:
                if after is not None and before.is_ended:
                    # may be read once they have passed; streams do not pass in turn
                    events = (after.begin, before.end, before.begin)
                    if not all(event.query() for event in events):
                        return
                    # kept to half a microsecond: equal times may come out below 0
                    yield _StepSpan(
                        idle_ms=max(0.0, before.end.elapsed_time(after.begin)),
                        whole_ms=before.begin.elapsed_time(after.begin),
                    )
                self._free.append(before)
            self._steps.popleft()


def open_cuda_events() -> CudaEvents:
    """Returns `CudaEvents` for the current stream of this process's CUDA device.

    Raises:
        AbsentError: If this process uses no CUDA.
    """
    torch = _torch_with_cuda()
    return CudaEvents(
        lambda: torch.cuda.Event(enable_timing=True),
        torch.cuda.current_stream,
        # what has no such question (before torch 1.10) captures no graphs
        getattr(torch.cuda, 'is_current_stream_capturing', lambda: False),
    )
