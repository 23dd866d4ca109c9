"""The one importer of pynvml: the driver's view of the GPU we train on.

NVML ignores ``CUDA_VISIBLE_DEVICES`` and numbers cards in its own order, so
the card is found by what names it for certain, and never guessed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

from mmgpu_hooks.records import GpuDevice
from mmgpu_hooks.telemetry.absent import Absent
from mmgpu_hooks.telemetry.source_error import SourceError

# Return codes of nvml.h; pynvml names only those that its version knows.
_NOT_FOUND = (2, 6, 28)  # invalid argument, not found, GPU not found
_NEVER = (3, 4, 13, 25, 26)  # not supported, no permission, no such function, ...
_NOT_NOW = (10, 19, 21, 27)  # timeout, in use, no data, not ready

_START_HINTS = {
    9: 'the NVIDIA driver is not loaded; nvidia-smi should fail in the same way',
    12: 'the NVIDIA driver library (libnvidia-ml) was not found; install the '
    'driver, or start the container with access to it (docker run --gpus all)',
    18: 'the NVIDIA driver was updated under a running kernel module; reboot',
}


@dataclass(frozen=True)
class GpuSample:
    """One look at the GPU; a figure that the driver does not give is ``None``."""

    util_pct: float | None
    """Share of the driver's last period, 1/6 to 1 s, with a kernel running."""
    mem_used_bytes: int | None
    """Device memory in use by anyone, the driver's own reserve included."""


class Gpu:
    """One GPU, its handle kept open. Made by :func:`open_gpu`.

    Reads may come from a background thread. A forked child must leave it alone,
    except for :meth:`close`, which does nothing there.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.unsupported: dict[str, str] = {}
        """Why a figure is ``None``, by field name; the first reason stays."""
        self._nvml = nvml
        self._handle = handle
        self._pid = os.getpid()
        self._open = True
        self._never: set[str] = set()
        self._mig = _is_mig(nvml, handle)

    def device(self) -> GpuDevice:
        """Read what does not change while training.

        Raises:
            SourceError: If the device or the driver was lost.
        """
        nvml, handle = self._nvml, self._handle
        memory = self._query(
            'memory_total_bytes', lambda: nvml.nvmlDeviceGetMemoryInfo(handle)
        )
        total = None if memory is None else int(memory.total)
        return GpuDevice(
            name=self._query('name', lambda: _text(nvml.nvmlDeviceGetName(handle))),
            uuid=self._query('uuid', lambda: _text(nvml.nvmlDeviceGetUUID(handle))),
            memory_total_bytes=total or None,
            driver_version=self._query(
                'driver_version', lambda: _text(nvml.nvmlSystemGetDriverVersion())
            ),
        )

    def read_sample(self) -> GpuSample:
        """Look at the GPU now.

        Raises:
            SourceError: If the device or the driver was lost, or after `close`.
        """
        nvml, handle = self._nvml, self._handle
        util = self._query(
            'util_pct', lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        )
        if util is not None and not 0 <= util <= 100:
            self._note('util_pct', f'the driver reported {util} % utilisation')
            util = None
        memory = self._query(
            'mem_used_bytes', lambda: nvml.nvmlDeviceGetMemoryInfo(handle)
        )
        used = None if memory is None else int(memory.used)
        if used is not None and not used <= memory.total > 0:
            self._note(
                'mem_used_bytes',
                f'the driver reported {used} of {memory.total} bytes in use',
            )
            used = None
        return GpuSample(None if util is None else float(util), used)

    def close(self) -> None:
        """Let the driver go. May be called twice; never raises."""
        if not self._open or os.getpid() != self._pid:
            return
        self._open = False
        _shut_down(self._nvml)

    def _query(self, figure: str, query: Callable[[], Any]) -> Any:
        if not self._open:
            raise SourceError('the GPU was read after it had been closed')
        if figure in self._never:
            return None
        try:
            return query()
        except self._nvml.NVMLError as error:
            if error.value in _NEVER:
                self._never.add(figure)
                under = ' under MIG' if self._mig else ''
                self._note(figure, f'the driver does not give it{under}: {error}')
            elif error.value in _NOT_NOW:
                self._note(figure, f'the driver could not give it: {error}')
            else:
                raise SourceError(
                    f'NVML stopped answering for this GPU: {error}'
                ) from error
            return None

    def _note(self, figure: str, reason: str) -> None:
        self.unsupported.setdefault(figure, reason)


def open_gpu(
    *,
    uuid: str | None = None,
    pci_bus_id: str | None = None,
    index: int | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Gpu | Absent:
    """Open the GPU that this rank trains on.

    Args:
        uuid: As NVML writes it (``GPU-...``, ``MIG-...``) or bare, as torch does.
        pci_bus_id: Such as ``00000000:3B:00.0``; used where the UUID is not known
            to the driver.
        index: CUDA's index; used only where nothing else is known and it cannot
            mean another card.
        environ: Environment, for ``CUDA_VISIBLE_DEVICES``.

    Returns:
        The open GPU, to be closed by the caller, or why there is none.
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
    except pynvml.NVMLError as error:
        return Absent(_START_HINTS.get(error.value, f'NVML could not start: {error}'))
    try:
        found = _find(pynvml, uuid, pci_bus_id, index, environ)
        if not isinstance(found, Absent):
            return Gpu(pynvml, found)
    except pynvml.NVMLError as error:
        found = Absent(f'NVML could not look up the GPU: {error}')
    _shut_down(pynvml)
    return found


def parse_uuid(uuid: str) -> list[str]:
    """Spellings under which the driver may know a UUID.

    CUDA drops the prefix that tells a card from a MIG slice, so a bare UUID
    may be either::

        8a56cbd2-0f3e-4b1c-9d67-1f2e3d4c5b6a

    Returns:
        Candidates, best first.
    """
    uuid = uuid.strip()
    if uuid[:4].upper() in ('GPU-', 'MIG-'):
        return [uuid[:4].upper() + uuid[4:]]
    digits = uuid.replace('-', '').lower()
    bare = '-'.join(
        (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    )
    return [f'GPU-{bare}', f'MIG-{bare}']


def _find(
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
            theirs = _text(nvml.nvmlDeviceGetUUID(handle))
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
        return Absent('nothing is known that tells which GPU the training uses')
    certain = (
        environ.get('CUDA_DEVICE_ORDER') == 'PCI_BUS_ID'
        and 'CUDA_VISIBLE_DEVICES' not in environ
    )
    if 0 <= index < count and (count == 1 or certain):
        return nvml.nvmlDeviceGetHandleByIndex(index)
    return Absent(
        f'CUDA index {index} may be any of {count} GPU(s): CUDA and the driver '
        'number them differently; a newer torch tells the UUID'
    )


def _try(nvml: Any, lookup: Callable[[str], Any], name: str) -> Any:
    """Handle of the device of that name, or ``None`` when there is none."""
    try:
        return lookup(name)
    except nvml.NVMLError as error:
        if error.value in _NOT_FOUND:
            return None
        raise


def _is_mig(nvml: Any, handle: Any) -> bool:
    try:
        if _text(nvml.nvmlDeviceGetUUID(handle)).startswith('MIG-'):
            return True
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == 1)
    except nvml.NVMLError:  # most cards cannot be sliced and say so here
        return False


def _shut_down(nvml: Any) -> None:
    # the driver may have gone first: nothing is left to let go then
    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    """Old pynvml returns bytes."""
    return value.decode(errors='replace') if isinstance(value, bytes) else value
