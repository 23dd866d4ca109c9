"""Finds the card we train on by what names it for certain, and never guesses.

NVML ignores ``CUDA_VISIBLE_DEVICES`` and numbers cards in its own order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from mmgpu_hooks.measure.absent import Absent
from mmgpu_hooks.measure.gpu.answers import is_mig, read_text
from mmgpu_hooks.measure.gpu.queries import NOT_FOUND


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


def find_handle(
    nvml: Any,
    uuid: str | None,
    pci_bus_id: str | None,
    index: int | None,
    environ: Mapping[str, str],
) -> Any:
    """Handle of the card, or `Absent`.

    Raises:
        NVMLError: If the driver breaks over it.
        GarbageError: If the driver names a card by no text.
    """
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
            if not spellings or theirs in spellings or is_mig(nvml, handle):
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
        if error.value in NOT_FOUND:
            return None
        raise
