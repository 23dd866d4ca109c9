"""Torch on CUDA: events, the allocator, the tensors of the model.

CUDA is never initialised by asking, its peak statistics are never reset, and nothing
here synchronises.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Callable, NamedTuple

from mmgpu_hooks.measure.absent import Absent, SourceError
from mmgpu_hooks.measure.patches import Patches


def open_cuda_driver() -> ctypes.CDLL:
    """Load the driver library, which CUDA programs have loaded already.

    Raises:
        OSError: If there is none.
    """
    windows = sys.platform.startswith('win')
    return ctypes.CDLL('nvcuda.dll' if windows else 'libcuda.so.1')


def read_pci_bus_id(
    index: int, open_driver: Callable[[], ctypes.CDLL] = open_cuda_driver
) -> str | None:
    """Ask the driver for the PCI address of a CUDA device.

    Needs a process that uses CUDA already; makes no context and no device
    work. CUDA's own index is what is asked for, so ``CUDA_VISIBLE_DEVICES`` is
    respected.

    Args:
        index: CUDA device index of this process.
        open_driver: Loads the driver library.

    Returns:
        Such as ``0000:3B:00.0``, or ``None`` when the driver does not tell.
    """
    text = ctypes.create_string_buffer(32)
    device = ctypes.c_int()
    try:
        driver = open_driver()
        if driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(index)) != 0:
            return None
        if driver.cuDeviceGetPCIBusId(text, ctypes.c_int(len(text)), device) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return text.value.decode('ascii', errors='replace') or None


class CudaDevice(NamedTuple):
    """The current device of this process, by each name it has."""

    uuid: str | None
    """Bare, without NVML's prefix; older torch does not tell it."""
    pci_bus_id: str | None
    """Such as ``00000000:3B:00.0``."""
    cuda_index: int
    """CUDA's index in this process, not NVML's."""


def cuda_device() -> CudaDevice | None:
    """Name the GPU of this rank.

    Returns:
        Its names, or ``None`` when this process does not use CUDA (yet).
    """
    torch = _torch_with_cuda()
    if isinstance(torch, Absent):
        return None
    index = int(torch.cuda.current_device())
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, 'uuid', None)
    return CudaDevice(
        uuid=None if uuid is None else str(uuid),
        pci_bus_id=parse_pci_bus_id(properties) or read_pci_bus_id(index),
        cuda_index=index,
    )


def parse_pci_bus_id(properties: Any) -> str | None:
    """PCI address out of torch's device properties, where they tell it."""
    try:
        domain = int(properties.pci_domain_id)
        bus, device = int(properties.pci_bus_id), int(properties.pci_device_id)
    except AttributeError:  # older torch does not tell
        return None
    return f'{domain:08X}:{bus:02X}:{device:02X}.0'


class AllocatorFigures(NamedTuple):
    """What the allocator holds, and what failed since the last drain."""

    allocated_bytes: int | None = None
    inactive_bytes: int | None = None
    retries: int | None = None
    ooms: int | None = None


def find_lacking(backend: str, settings: str) -> dict[str, str]:
    """Figures that an allocator leaves at zero, and why.

    Args:
        backend: As ``torch.cuda.get_allocator_backend()`` says.
        settings: Of ``PYTORCH_CUDA_ALLOC_CONF`` or ``PYTORCH_ALLOC_CONF``.

    Examples:
        >>> list(find_lacking('native', 'expandable_segments:True'))
        ['inactive_bytes']
    """
    if backend != 'native':
        reason = f'the allocator {backend} does not count it'
        return dict.fromkeys(('retries', 'ooms', 'inactive_bytes'), reason)
    # pytorch#159564
    if 'expandable_segments:true' in settings.replace(' ', '').lower():
        return {'inactive_bytes': 'expandable segments do not count it'}
    return {}


class CudaMemory:
    """What the CUDA allocator went through since the last drain; resets nothing.

    MMEngine's ``LoggerHook`` resets the allocator's peaks whenever it logs, in
    validation too, so call :meth:`observe` before each of its logs. Where nobody
    resets them, the peaks cover the whole run so far and every window repeats the
    largest.

    The peak is training's alone, if :meth:`begin` is called before it and
    :meth:`begin_validation` and :meth:`end_validation` stand around each validation.
    Nothing but a reset takes validation's own peak out of the allocator's register,
    so what training reached afterwards is known in two cases: the register climbed
    above what validation left in it, or it fell below, because it was reset
    meanwhile. While it stands, training reached at most that much; where training
    had reached as much before, that is its peak, else the peak is unknown. A reset
    is sure to be noticed by one more :meth:`observe` right after it: due only while
    :attr:`is_clouded`.

    Reserved bytes are not told apart: the cache that validation filled stays
    reserved while training goes on.

    Args:
        read_stats: Returns the allocator's statistics, nested as torch does.
        lacking: Why a figure is missing for the whole run, by its name.
    """

    def __init__(
        self,
        read_stats: Callable[[], Mapping[str, Any]],
        lacking: Mapping[str, str] | None = None,
    ) -> None:
        self.lacking = lacking or {}
        self.unknown: dict[str, str] = {}
        """Why the peak last drained is missing; empty when it is not."""
        self._read_stats = read_stats
        self._peak: int | None = None
        self._reserved: int | None = None
        self._in_validation = False
        self._before_validation: int | None = None
        """The register when validation began."""
        self._left: int | None = None
        """The register when training took over, until it climbs above or is reset."""
        self._at_most: int | None = None
        """What training may have reached in this window, unseen."""
        self._figures = AllocatorFigures()
        """Counts are of the whole process."""
        self._drained = AllocatorFigures()

    def begin(self) -> None:
        """Training takes over: what the process reached before is not its own.

        Raises:
            SourceError: If the allocator does not keep these statistics.
        """
        self._left = self._look()
        self._drained = self._figures
        self.drain()

    @property
    def is_clouded(self) -> bool:
        """Whether the register may still hold what training did not reach."""
        return self._left is not None

    def observe(self) -> int:
        """Take the current peaks into account; host work only, no device sync.

        Inside a validation only the reserved bytes count.

        Returns:
            The allocator's peak since anybody last reset it, in bytes.

        Raises:
            SourceError: If the allocator does not keep these statistics.
        """
        register = self._look()
        if self._in_validation:
            return register
        if register == self._left:
            self._at_most = max(self._at_most or 0, register)
        else:
            self._left = None
            self._peak = max(self._peak or 0, register)
        return register

    def _look(self) -> int:
        """Read the statistics, take what stands for itself, return the peak."""
        stats = self._read_stats()
        try:
            register = int(stats['allocated_bytes']['all']['peak'])
            reserved = int(stats['reserved_bytes']['all']['peak'])
        except (KeyError, TypeError) as error:
            raise SourceError(
                f'the CUDA allocator keeps no peak statistics (no {error})'
            ) from error
        self._reserved = max(self._reserved or 0, reserved)
        found = AllocatorFigures(
            allocated_bytes=_current(stats, 'allocated_bytes'),
            inactive_bytes=_current(stats, 'inactive_split_bytes'),
            retries=_whole(stats.get('num_alloc_retries')),
            ooms=_whole(stats.get('num_ooms')),
        )
        self._figures = found._replace(**dict.fromkeys(self.lacking, None))
        return register

    def begin_validation(self) -> None:
        """Observe what training reached; from here on the peak is validation's.

        Raises:
            SourceError: If the allocator does not keep these statistics.
        """
        if not self._in_validation:
            self._before_validation = self.observe()
            self._in_validation = True

    def end_validation(self) -> None:
        """From here on the peak is training's again; nothing outside a validation.

        Raises:
            SourceError: If the allocator does not keep these statistics.
        """
        if self._in_validation:
            # first, so that a failure does not leave us in validation for ever
            self._in_validation = False
            register = self._look()
            # it left the register as it was: nothing of training is hidden by it
            if register != self._before_validation:
                self._left = register

    def drain(self) -> tuple[int | None, int | None]:
        """Return the largest peaks observed, and begin anew.

        Returns:
            Bytes of tensors and bytes reserved; ``None`` when not observed, or,
            with a reason in :attr:`unknown`, when validation hides it.
        """
        peak, at_most, reserved = self._peak, self._at_most, self._reserved
        self._peak = self._at_most = self._reserved = None
        self.unknown.clear()
        if at_most is not None and (peak is None or at_most > peak):
            self.unknown['gpu_mem_peak_bytes'] = (
                f'{at_most} bytes were reached in validation, or before training, and '
                'no more since: the peak of training itself is at most that'
            )
            peak = None
        return peak, reserved

    def drain_window(self) -> AllocatorFigures:
        """Return what the last observation saw, and what failed since the last drain.

        Retries and errors of validations in between are counted too; without
        :meth:`begin`, they are counted from the first drain on.

        Returns:
            All ``None`` when not observed; a count is ``None`` when somebody reset
            it meanwhile.
        """
        now, before = self._figures, self._drained
        self._drained = now
        self._figures = AllocatorFigures(retries=now.retries, ooms=now.ooms)
        return now._replace(
            retries=_growth(before.retries, now.retries),
            ooms=_growth(before.ooms, now.ooms),
        )


def _current(stats: Mapping[str, Any], name: str) -> int | None:
    try:
        return _whole(stats[name]['all']['current'])
    except (KeyError, TypeError):  # other allocators keep fewer figures
        return None


def _whole(value: Any) -> int | None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole else None


def _growth(before: int | None, after: int | None) -> int | None:
    if before is None or after is None or after < before:
        return None
    return after - before


def open_cuda_memory() -> CudaMemory | Absent:
    """Open the allocator statistics of this process's current device.

    Returns:
        The source, begun, or why there is none.

    Raises:
        SourceError: If its allocator does not keep these statistics.
    """
    torch = _torch_with_cuda()
    if isinstance(torch, Absent):
        return torch
    index = int(torch.cuda.current_device())
    names = ('PYTORCH_CUDA_ALLOC_CONF', 'PYTORCH_ALLOC_CONF')
    settings = ','.join(os.environ.get(name, '') for name in names)
    backend = getattr(torch.cuda, 'get_allocator_backend', lambda: 'native')()
    # the flat form of the statistics costs several times as much
    memory = CudaMemory(
        lambda: torch.cuda.memory_stats_as_nested_dict(index),
        find_lacking(backend, settings),
    )
    memory.begin()
    return memory


def _torch_with_cuda() -> Any:
    """Torch if this process uses CUDA, else `Absent`."""
    # a process that trains has imported it: never pull in 3 s to say no
    torch: Any = sys.modules.get('torch')
    if torch is None:
        return Absent('torch is not in use in this process')
    if not torch.cuda.is_initialized():
        if not torch.backends.cuda.is_built():
            return Absent('this build of torch has no CUDA: training runs on the CPU')
        return Absent('CUDA is not in use in this process: training runs on the CPU')
    return torch


_PAIRS = 64
"""Iterations in flight at most; MMEngine's loop leaves one or two."""
_MOST_READ = 2
"""Iterations read in one call, so that a call's cost is bounded."""


class _Pair(NamedTuple):
    begin: Any
    end: Any


class CudaEvents:
    """Idle share between steps, one pair of CUDA events each that nothing waits for.

    An event notes the time when the GPU gets to it. One stands before a step's work,
    one behind that of the hooks after it: until the next step begins the GPU has
    nothing of ours to do. What it idles inside a step, or among those hooks, is not
    seen.

    Costs the main thread one look at the current stream, two records, one query and
    two readings an iteration: 1.0 us of it is ours, and ``make gpu-check`` measures
    what CUDA adds.

    Args:
        new_event: Makes an event that keeps its time, as
            ``torch.cuda.Event(enable_timing=True)`` does.
        current_stream: The stream that the caller's work goes to; a step is timed on
            the one that it began on.
        is_capturing: Whether a CUDA graph is being captured: then nothing may be
            recorded or asked.
        pairs: Iterations in flight at most, above 1; beyond, some are not timed.
    """

    def __init__(
        self,
        new_event: Callable[[], Any],
        current_stream: Callable[[], Any],
        is_capturing: Callable[[], bool] = lambda: False,
        pairs: int = _PAIRS,
    ) -> None:
        self._new_event = new_event
        self._current_stream = current_stream
        self._is_capturing = is_capturing
        self._room = pairs
        self._free: list[_Pair] = []
        self._step: _Pair | None = None
        """The step that began last, where it could be recorded."""
        self._ended = False
        self._stream: Any = None
        """That step's."""
        self._in_flight: deque[tuple[_Pair, _Pair, bool]] = deque()
        """A step and the one that followed it, until the GPU has passed both, and
        whether one stream has all their events: then they pass in turn."""
        self._idle_ms = 0.0
        self._total_ms = 0.0
        self._iterations = 0

    def begin_step(self) -> None:
        """Call right before a step's work is given to the GPU.

        Raises:
            SourceError: If CUDA refuses, as it does after any error of its own.
        """
        try:
            self._begin()
        except Exception as error:
            raise _refusal(error) from error

    def end_step(self) -> None:
        """Call once the hooks behind the step have given theirs: the last call counts.

        Raises:
            SourceError: If CUDA refuses.
        """
        try:
            if self._step is not None and not self._is_capturing():
                self._step.end.record(self._stream)
                self._ended = True
        except Exception as error:
            raise _refusal(error) from error

    def interrupt(self) -> None:
        """Leave out the time since the last step: validation ran in it, or a save."""
        self._drop_step()

    def drain(self) -> tuple[float | None, int]:
        """Return the idle share in per cent and over how many iterations; begin anew.

        What the GPU has not passed yet belongs to the next drain.

        Raises:
            SourceError: If CUDA refuses.
        """
        try:
            if not self._is_capturing():
                self._read_passed(len(self._in_flight))
        except Exception as error:
            raise _refusal(error) from error
        idle, total, count = self._idle_ms, self._total_ms, self._iterations
        self._idle_ms = self._total_ms = 0.0
        self._iterations = 0
        return (100.0 * idle / total if total > 0.0 else None), count

    def _begin(self) -> None:
        if self._is_capturing():
            self._drop_step()
            return
        self._read_passed(_MOST_READ)
        if not self._ended:
            self._drop_step()
        pair = self._take()
        if pair is None:  # all in flight: not timed, rather than waited for
            self._drop_step()
            return
        stream = self._current_stream()
        pair.begin.record(stream)
        before, self._step, self._ended = self._step, pair, False
        if before is not None:
            self._in_flight.append((before, pair, stream == self._stream))
        self._stream = stream

    def _read_passed(self, most: int) -> None:
        for _ in range(most):
            if not self._in_flight:
                return
            before, after, is_ordered = self._in_flight[0]
            # an event may be read only once it has passed
            if not after.begin.query():
                return
            if not is_ordered and not (before.end.query() and before.begin.query()):
                return
            self._in_flight.popleft()
            # kept to half a microsecond: equal times may come out below 0
            self._idle_ms += max(0.0, before.end.elapsed_time(after.begin))
            self._total_ms += before.begin.elapsed_time(after.begin)
            self._iterations += 1
            self._free.append(before)
            followed = self._in_flight and self._in_flight[0][0] is after
            if not followed and after is not self._step:
                self._free.append(after)

    def _take(self) -> _Pair | None:
        if self._free:
            return self._free.pop()
        if self._room == 0:
            return None
        self._room -= 1
        return _Pair(self._new_event(), self._new_event())

    def _drop_step(self) -> None:
        """Forget the last step, whose events the iteration before may still need."""
        step, self._step = self._step, None
        needed = self._in_flight and self._in_flight[-1][1] is step
        if step is not None and not needed:
            self._free.append(step)


def _refusal(error: Exception) -> SourceError:
    text = ' '.join(str(error).split())
    return SourceError(f'CUDA events could not be used: {text}')


def open_cuda_events() -> CudaEvents | Absent:
    """Open events on the current stream of this process's current device.

    Returns:
        The source, or why there is none.
    """
    if cuda_device() is None:
        return Absent("training does not run on CUDA: a GPU's idle time is not known")
    import torch

    return CudaEvents(
        lambda: torch.cuda.Event(enable_timing=True),
        torch.cuda.current_stream,
        torch.cuda.is_current_stream_capturing,
    )


_PATIENCE = 1000
"""Iterations to wait for a call of ``zero_grad`` that custom code may never make."""


class ModelBytes(NamedTuple):
    """By the names of the record."""

    iteration: int
    parameters: int
    parameter_bytes: int
    trainable_bytes: int
    gradient_bytes: int | None
    optimizer_state_bytes: int | None
    buffer_bytes: int
    ema_bytes: int


class ModelBytesWatch:
    """Counts a model once, when its optimizers have stepped for the first time.

    Before that there is no optimizer state, and afterwards no gradient: MMEngine
    drops them within the step. So ``zero_grad`` of each optimizer wrapper is
    watched, as an instance attribute, until its first call that finds a gradient.

    Waiting costs 0.6 us in each call of ``zero_grad`` that finds no gradient, and
    nothing once it is over; a read that waits costs 0.2 us. Counting costs 2.4 us per
    tensor, once: 14 ms for 1000 parameters that AdamW trains and an EMAHook copies
    (6000 tensors with the gradients).

    Args:
        optim_wrapper: MMEngine's ``OptimWrapper`` or ``OptimWrapperDict``, before
            the first iteration.
    """

    def __init__(self, optim_wrapper: Any) -> None:
        self._wrappers = list(_each_wrapper(optim_wrapper))
        self._watches = [_GradientWatch(wrapper) for wrapper in self._wrappers]
        self._since: int | None = None
        self._is_done = False

    def read(
        self,
        model: Any,
        hooks: Iterable[Any],
        iteration: int,
        final: bool = False,
    ) -> ModelBytes | None:
        """Count after an iteration, unless it is too early or has been done.

        Gradients are as they were when the optimizers had stepped. Where custom code
        never calls ``zero_grad`` of the wrapper, they are those found 1000 iterations
        after the first call, or at the end, and ``None`` when there are none
        (DeepSpeed keeps its own).

        Args:
            model: The model, wrapped (DDP, FSDP) or not. A teacher that is part of
                it is counted as frozen parameters.
            hooks: The runner's hooks; the ``ema_model`` of each is counted.
            iteration: Iterations done; calls may leave some out.
            final: There will be no further call: do not wait any longer.

        Returns:
            Fields of the record, once.

        Raises:
            SourceError: If something in the model is not as torch makes it.
        """
        if self._is_done:
            return None
        if self._since is None:
            self._since = iteration
        is_patient = not final and iteration - self._since < _PATIENCE
        if is_patient and any(not watch.is_over for watch in self._watches):
            return None
        self.close()
        failure = next((w.failure for w in self._watches if w.failure), None)
        try:
            if failure is not None:
                raise failure
            return self._count(model, hooks, iteration)
        except Exception as error:
            raise SourceError(
                f'the tensors of the model cannot be counted: '
                f'{type(error).__name__}: {error}'
            ) from error

    def _count(self, model: Any, hooks: Iterable[Any], iteration: int) -> ModelBytes:
        counter = TensorCounter()
        trainable = counter.add(p for p in model.parameters() if p.requires_grad)
        frozen = counter.add(model.parameters())
        numbers = counter.numbers
        gradients = sum(watch.gradient_bytes() for watch in self._watches)
        return ModelBytes(
            iteration=iteration,
            parameters=numbers,
            parameter_bytes=trainable + frozen,
            trainable_bytes=trainable,
            gradient_bytes=gradients or None,
            optimizer_state_bytes=self._count_state(counter),
            buffer_bytes=counter.add(model.buffers()),
            ema_bytes=counter.add(_averaged_tensors(hooks)),
        )

    def _count_state(self, counter: TensorCounter) -> int | None:
        states = [_optimizer_state(wrapper.optimizer) for wrapper in self._wrappers]
        if any(state is None for state in states):
            return None
        return counter.add(_tensors(states))

    def close(self) -> None:
        """Give the wrappers their own method back; a second call does nothing."""
        self._is_done = True
        for watch in self._watches:
            watch.close()


class _GradientWatch:
    """Counts the gradients of one optimizer when they are about to be dropped."""

    def __init__(self, wrapper: Any) -> None:
        self.failure: Exception | None = None
        self._wrapper = wrapper
        self._bytes = 0
        self._is_set = True
        self._patches = Patches()
        original = wrapper.zero_grad

        def zero_grad(*args: Any, **kwargs: Any) -> Any:
            self._look()
            return original(*args, **kwargs)

        self._patches.set(wrapper, 'zero_grad', zero_grad)

    @property
    def is_over(self) -> bool:
        return self._bytes > 0 or self.failure is not None

    def _look(self) -> None:
        # a wrapper around ours may go on calling it
        if not self._is_set:
            return
        try:
            self._bytes = self._count()
        except Exception as error:  # noqa: BLE001  # it would surface in training
            self.failure = error
        if self.is_over:
            self.close()

    def _count(self) -> int:
        groups = self._wrapper.optimizer.param_groups
        parameters = (parameter for group in groups for parameter in group['params'])
        gradients = (parameter.grad for parameter in parameters)
        return TensorCounter().add(grad for grad in gradients if grad is not None)

    def gradient_bytes(self) -> int:
        """Bytes when they were dropped, else those that are there now."""
        return self._bytes or self._count()

    def close(self) -> None:
        self._patches.close()
        self._is_set = False


class TensorCounter:
    """Adds up tensors, each piece of memory once."""

    def __init__(self) -> None:
        self.numbers = 0
        self._seen: dict[tuple[Any, int], int] = {}

    def add(self, tensors: Iterable[Any]) -> int:
        """Bytes of those tensors that were not counted before."""
        total = 0
        for tensor in tensors:
            for part in _parts(tensor):
                size = _size(part)
                place = part.device, part.data_ptr() if size else 0
                added = size - self._seen.get(place, 0)
                if added > 0:
                    self._seen[place] = size
                    self.numbers += added // part.element_size()
                    total += added
        return total


def _parts(tensor: Any) -> tuple[Any, ...]:
    """The dense tensors of this rank that one tensor is made of."""
    to_local = getattr(tensor, 'to_local', None)  # of a DTensor
    local = tensor if to_local is None else to_local()
    if getattr(local, 'is_sparse', False):
        return local._indices(), local._values()
    return (local,)


def _size(tensor: Any) -> int:
    if tensor.device.type == 'meta':  # without memory
        return 0
    size = int(tensor.nelement() * tensor.element_size())
    # an expanded tensor has less memory than elements
    return size if tensor.is_contiguous() else min(size, _storage_size(tensor))


def _storage_size(tensor: Any) -> int:
    return int(tensor.untyped_storage().nbytes())


def _tensors(value: Any) -> Iterator[Any]:
    """Every tensor in nested mappings and lists."""
    if hasattr(value, 'nelement'):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)


def _each_wrapper(optim_wrapper: Any) -> Iterable[Any]:
    """The wrappers of an ``OptimWrapperDict``, or the one there is."""
    wrappers = getattr(optim_wrapper, 'optim_wrappers', None)
    return wrappers.values() if isinstance(wrappers, Mapping) else [optim_wrapper]


def _optimizer_state(optimizer: Any) -> Any:
    # a ZeroRedundancyOptimizer keeps the shard of this rank in an inner one
    return getattr(getattr(optimizer, 'optim', optimizer), 'state', None)


def _averaged_tensors(hooks: Iterable[Any]) -> Iterator[Any]:
    for hook in hooks:
        copy = getattr(hook, 'ema_model', None)
        if copy is not None:
            yield from copy.parameters()
            yield from copy.buffers()
