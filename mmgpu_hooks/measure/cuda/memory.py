"""Torch on CUDA: which GPU this process uses, and its allocator's peaks.

CUDA is never initialised by asking, and its peak statistics never reset.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

from msgspec import structs

from mmgpu_hooks.measure.absent import Absent
from mmgpu_hooks.measure.cuda.driver import read_pci_bus_id
from mmgpu_hooks.measure.source_error import SourceError
from mmgpu_hooks.schema import CudaMemoryWindow


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
    """

    def __init__(self, read_stats: Callable[[], Mapping[str, Any]]) -> None:
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
        self._window = CudaMemoryWindow()
        self._counts: _Counts | None = None
        self._counts_drained: _Counts | None = None

    def begin(self) -> None:
        """Training takes over: what the process reached before is not its own.

        Raises:
            SourceError: If the allocator does not keep these statistics.
        """
        self._left = self._look()
        self._counts_drained = self._counts
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
        self._window = CudaMemoryWindow(
            allocated_bytes=_current(stats, 'allocated_bytes'),
            inactive_bytes=_current(stats, 'inactive_split_bytes'),
        )
        self._counts = _Counts(
            retries=_whole(stats.get('num_alloc_retries')),
            ooms=_whole(stats.get('num_ooms')),
        )
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

    def drain_window(self) -> CudaMemoryWindow:
        """Return what the last observation saw, and what failed since the last drain.

        Retries and errors of validations in between are counted too; without
        :meth:`begin`, they are counted from the first drain on.

        Returns:
            All ``None`` when not observed; a count is ``None`` when somebody reset
            it meanwhile.
        """
        window, before, now = self._window, self._counts_drained, self._counts
        self._window, self._counts_drained = CudaMemoryWindow(), now
        if before is None or now is None:
            return window
        return structs.replace(
            window,
            retries=_growth(before.retries, now.retries),
            ooms=_growth(before.ooms, now.ooms),
        )


class _Counts(NamedTuple):
    """Of the whole process, since it started or since somebody reset them."""

    retries: int | None
    ooms: int | None


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
    # the flat form of the statistics costs several times as much
    memory = CudaMemory(lambda: torch.cuda.memory_stats_as_nested_dict(index))
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
