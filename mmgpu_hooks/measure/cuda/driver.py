"""The CUDA driver library, for the one figure that older torch does not tell."""

from __future__ import annotations

import ctypes
import sys
from typing import Callable


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
