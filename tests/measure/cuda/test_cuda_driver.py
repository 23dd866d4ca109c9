from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from mmgpu_hooks.measure.cuda import read_pci_bus_id

SOURCE = r"""
#include <stdio.h>
int cuDeviceGet(int *device, int index) { *device = index + 70; return index > 1; }
int cuDeviceGetPCIBusId(char *text, int length, int device) {
    return snprintf(text, length, "0000:%X:00.0", device) >= length;
}
"""


@pytest.fixture(scope='module')
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CUDA driver with the devices 0 and 1."""
    if shutil.which('cc') is None:
        pytest.skip('the fake CUDA driver needs a C compiler, and there is no cc')
    folder = tmp_path_factory.mktemp('cuda')
    (folder / 'cuda.c').write_text(SOURCE)
    library = folder / 'libcuda.so.1'
    command = ['cc', '-shared', '-fPIC', '-o', str(library), str(folder / 'cuda.c')]
    subprocess.run(command, check=True, timeout=60)
    return library


@pytest.mark.parametrize(('index', 'address'), [(1, '0000:47:00.0'), (2, None)])
def test_the_driver_tells_the_address_of_a_cuda_index(driver: Path, index, address):
    assert read_pci_bus_id(index, lambda: ctypes.CDLL(str(driver))) == address


def test_no_driver_or_another_library_is_none():
    def missing() -> ctypes.CDLL:
        raise OSError('libcuda.so.1: cannot open shared object file')

    assert read_pci_bus_id(0, missing) is None
    assert read_pci_bus_id(0, SimpleNamespace) is None  # type: ignore
