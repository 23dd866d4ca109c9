"""The one importer of pynvml: starts the driver's library and opens our card."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mmgpu_hooks.measure.absent import Absent, SourceError
from mmgpu_hooks.measure.clock import Clock, monotonic_s, wall_unix_s
from mmgpu_hooks.measure.gpu.find import find_handle
from mmgpu_hooks.measure.gpu.gpu import Gpu, GpuSample
from mmgpu_hooks.measure.gpu.queries import describe

__all__ = ['Gpu', 'GpuSample', 'open_gpu', 'start_nvml', 'stop_nvml']

_START_HINTS = {
    9: 'the NVIDIA driver is not loaded; nvidia-smi should fail in the same way',
    12: 'the NVIDIA driver library (libnvidia-ml) was not found; install the '
    'driver, or start the container with access to it (docker run --gpus all)',
    18: 'the NVIDIA driver was updated under a running kernel module; reboot',
}


def open_gpu(
    *,
    uuid: str | None = None,
    pci_bus_id: str | None = None,
    index: int | None = None,
    environ: Mapping[str, str] = os.environ,
    clock: Clock = monotonic_s,
    wall: Clock = wall_unix_s,
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

    Returns:
        The open GPU, to be closed by the caller, or why there is none.
    """
    nvml = start_nvml()
    if isinstance(nvml, Absent):
        return nvml
    try:
        found = find_handle(nvml, uuid, pci_bus_id, index, environ)
        if not isinstance(found, Absent):
            return Gpu(nvml, found, stop_nvml=stop_nvml, clock=clock, wall=wall)
    except SourceError as error:
        found = Absent(error.reason)
    except Exception as error:  # noqa: BLE001, drivers answer garbage too
        found = Absent(f'NVML could not look up the GPU: {describe(error)}')
    stop_nvml(nvml)
    return found


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
    try:
        nvml.nvmlShutdown()
    except Exception:  # noqa: BLE001, nothing is left to let go then
        return
