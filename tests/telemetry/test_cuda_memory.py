from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from mmgpu_hooks.telemetry.absent import Absent
from mmgpu_hooks.telemetry.cuda_memory import (
    CudaDevice,
    CudaMemory,
    cuda_device,
    open_cuda_memory,
    parse_pci_bus_id,
)
from mmgpu_hooks.telemetry.source_error import SourceError


def stats(peak: int, reserved: int) -> dict[str, Any]:
    return {
        'allocated_bytes': {'all': {'peak': peak, 'current': 1}},
        'reserved_bytes': {'all': {'peak': reserved, 'current': 1}},
    }


def test_the_largest_peak_survives_a_reset_by_others():
    readings = iter([stats(10, 20), stats(30, 40), stats(5, 40), stats(7, 8)])
    memory = CudaMemory(lambda: next(readings))
    assert memory.drain() == (None, None)
    for _ in range(3):
        memory.observe()
    assert memory.drain() == (30, 40)
    memory.observe()
    assert memory.drain() == (7, 8)
    assert memory.drain() == (None, None)


@pytest.mark.parametrize(
    'odd', [{}, {'allocated_bytes': {}}, {'allocated_bytes': None}]
)
def test_an_allocator_without_statistics_is_an_error(odd: dict[str, Any]):
    with pytest.raises(SourceError, match='no peak statistics'):
        CudaMemory(lambda: odd).observe()


def test_the_pci_address_is_written_as_nvml_does():
    properties = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    assert parse_pci_bus_id(properties) == '00000000:3B:00.0'
    assert parse_pci_bus_id(SimpleNamespace(name='old torch')) is None


class FakeCuda:
    """``torch.cuda`` in use, on the device with index 1."""

    def __init__(self, **properties: object) -> None:
        self._properties = SimpleNamespace(**properties)

    def is_initialized(self) -> bool:
        return True

    def current_device(self) -> int:
        return 1

    def get_device_properties(self, index: int) -> object:
        assert index == 1
        return self._properties

    def memory_stats_as_nested_dict(self, index: int) -> dict[str, Any]:
        assert index == 1
        return stats(3, 4)


def use(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda) -> None:
    monkeypatch.setitem(sys.modules, 'torch', SimpleNamespace(cuda=cuda))


def test_the_current_device_with_all_its_names(monkeypatch):
    use(monkeypatch, FakeCuda(uuid=7, pci_domain_id=0, pci_bus_id=175, pci_device_id=0))
    assert cuda_device() == CudaDevice('7', '00000000:AF:00.0', 1)


def test_older_torch_tells_neither_uuid_nor_address(monkeypatch):
    use(monkeypatch, FakeCuda())
    module = 'mmgpu_hooks.telemetry.cuda_memory.read_pci_bus_id'
    monkeypatch.setattr(module, lambda index: f'0000:0{index}:00.0')
    assert cuda_device() == CudaDevice(None, '0000:01:00.0', 1)


def test_the_current_devices_memory_is_read(monkeypatch):
    use(monkeypatch, FakeCuda())
    memory = open_cuda_memory()
    assert isinstance(memory, CudaMemory)
    memory.observe()
    assert memory.drain() == (3, 4)


def test_without_torch_nothing_is_imported():
    code = (
        'import sys\n'
        'from mmgpu_hooks.telemetry.cuda_memory import cuda_device, open_cuda_memory\n'
        "print(cuda_device(), open_cuda_memory().reason, 'torch' in sys.modules)\n"
    )
    output = subprocess.check_output([sys.executable, '-c', code], text=True)
    assert output == 'None torch is not in use in this process False\n'


def test_cuda_that_is_not_in_use_is_left_alone():
    torch = pytest.importorskip('torch', exc_type=ImportError)
    if torch.cuda.is_initialized():
        pytest.skip('CUDA is in use in this process')
    assert cuda_device() is None
    absent = open_cuda_memory()
    assert isinstance(absent, Absent)
    assert 'training runs on the CPU' in absent.reason
    assert not torch.cuda.is_initialized()


@pytest.fixture
def torch_on_cuda() -> Any:
    torch = pytest.importorskip('torch', exc_type=ImportError)
    if not torch.cuda.is_available():
        pytest.skip('needs a CUDA device, and torch finds none')
    torch.cuda.init()
    return torch


@pytest.mark.gpu
def test_real_peaks_are_seen_and_never_reset(torch_on_cuda: Any):
    torch = torch_on_cuda
    memory = open_cuda_memory()
    assert isinstance(memory, CudaMemory)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    block = torch.empty(64 << 20, dtype=torch.uint8, device='cuda')
    del block
    memory.observe()
    assert torch.cuda.max_memory_allocated() == before + (64 << 20)
    torch.cuda.reset_peak_memory_stats()
    memory.observe()
    peak, reserved = memory.drain()
    assert peak == before + (64 << 20)
    assert reserved is not None and reserved >= peak


@pytest.mark.gpu
def test_the_real_device_is_the_one_that_nvml_opens(torch_on_cuda: Any):
    from mmgpu_hooks.telemetry.cuda_driver import read_pci_bus_id
    from mmgpu_hooks.telemetry.nvml import Gpu, open_gpu

    device = cuda_device()
    assert device is not None
    by_uuid = open_gpu(uuid=device.uuid)
    by_address = open_gpu(pci_bus_id=read_pci_bus_id(device.cuda_index))
    assert isinstance(by_uuid, Gpu) and isinstance(by_address, Gpu)
    try:
        assert by_uuid.device() == by_address.device()
        name = torch_on_cuda.cuda.get_device_name(device.cuda_index)
        assert by_uuid.device().name == name
    finally:
        by_uuid.close()
        by_address.close()
