"""Torch on CUDA: which GPU this process uses, and its allocator's peaks.

CUDA is never initialised by asking, and its peak statistics never reset.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

from mmgpu_hooks.telemetry.absent import Absent
from mmgpu_hooks.telemetry.cuda_driver import read_pci_bus_id
from mmgpu_hooks.telemetry.source_error import SourceError


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
    """Largest allocator peaks since the last drain.

    MMEngine's ``LoggerHook`` resets the allocator's peaks whenever it logs, so
    call :meth:`observe` before each of its logs. Where nobody resets them, the
    peaks cover the whole run so far and every window repeats the largest.

    Args:
        read_stats: Returns the allocator's statistics, nested as torch does.
    """

    def __init__(self, read_stats: Callable[[], Mapping[str, Any]]) -> None:
        self._read_stats = read_stats
        self._peak: int | None = None
        self._reserved: int | None = None

    def observe(self) -> None:
        """Take the current peaks into account; host work only, no device sync.

        Raises:
            SourceError: If the allocator does not keep these statistics.
        """
        stats = self._read_stats()
        try:
            peak = int(stats['allocated_bytes']['all']['peak'])
            reserved = int(stats['reserved_bytes']['all']['peak'])
        except (KeyError, TypeError) as error:
            raise SourceError(
                f'the CUDA allocator keeps no peak statistics (no {error})'
            ) from error
        self._peak = max(self._peak or 0, peak)
        self._reserved = max(self._reserved or 0, reserved)

    def drain(self) -> tuple[int | None, int | None]:
        """Return the largest peaks seen, and begin anew.

        Returns:
            Bytes of tensors and bytes reserved; ``None`` when not observed.
        """
        figures = self._peak, self._reserved
        self._peak = self._reserved = None
        return figures


def open_cuda_memory() -> CudaMemory | Absent:
    """Open the allocator statistics of this process's current device.

    Returns:
        The source, or why there is none.
    """
    torch = _torch_with_cuda()
    if isinstance(torch, Absent):
        return torch
    index = int(torch.cuda.current_device())
    # the flat form of the statistics costs several times as much
    return CudaMemory(lambda: torch.cuda.memory_stats_as_nested_dict(index))


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
