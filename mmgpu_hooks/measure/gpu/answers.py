"""Single answers of the driver, checked: what cannot be true is no answer."""

from __future__ import annotations

from typing import Any, Callable

from mmgpu_hooks.measure.gpu.queries import GarbageError


def checked_util(util: int) -> float:
    """Per cent as the driver gave it.

    Raises:
        GarbageError: If it is none.
    """
    if not 0 <= util <= 100:
        raise GarbageError(f'the driver reported {util} % utilisation')
    return float(util)


def checked_memory(memory: Any) -> int:
    """Bytes in use out of NVML's memory structure.

    Raises:
        GarbageError: If there is more in use than there is.
    """
    used, total = int(memory.used), int(memory.total)
    if not used <= total > 0:
        raise GarbageError(f'the driver reported {used} of {total} bytes in use')
    return used


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


def is_mig(nvml: Any, handle: Any) -> bool:
    """Whether the card is a MIG slice, or is sliced."""
    try:
        if read_text(nvml.nvmlDeviceGetUUID, handle).startswith('MIG-'):
            return True
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == 1)
    except (nvml.NVMLError, GarbageError, AttributeError):
        return False  # most cards cannot be sliced and say so here
