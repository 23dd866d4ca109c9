from __future__ import annotations

import sys

import pytest

from fakes.nvml import FakeGpu, FakeNvml
from mmgpu_hooks.measure.absent import Absent, SourceError
from mmgpu_hooks.measure.gpu import Gpu, GpuSample, open_gpu

FIRST = FakeGpu(name='First', util=(0, 80, 0, 95), memory=(1000, 400))
SECOND = FakeGpu(
    uuid='GPU-00000000-1111-2222-3333-444444444444',
    name='Second',
    bus='00000000:AF:00.0',
    util=(7,),
)
SLICE = FakeGpu(
    uuid='MIG-99999999-1111-2222-3333-444444444444',
    name='Slice',
    bus='',
    util=(),
    memory=(200, 50),
)


def opened(**names: object) -> Gpu:
    gpu = open_gpu(**names)  # type: ignore[arg-type]
    assert isinstance(gpu, Gpu), gpu
    return gpu


def refused(**names: object) -> str:
    absent = open_gpu(**names)  # type: ignore[arg-type]
    assert isinstance(absent, Absent)
    return absent.reason


def name_of(**names: object) -> str | None:
    gpu = opened(**names)
    try:
        return gpu.device()['name']
    finally:
        gpu.close()


def test_device_and_samples(fake_nvml: FakeNvml):
    fake_nvml.set(FIRST)
    gpu = opened(uuid=FIRST.uuid)
    assert gpu.device() == {
        'name': 'First',
        'uuid': FIRST.uuid,
        'memory_total_bytes': 1000,
        'driver_version': '550.90.07',
    }
    assert [gpu.read_sample() for _ in range(5)] == [
        GpuSample(util, 400) for util in (0.0, 80.0, 0.0, 95.0, 0.0)
    ]
    assert gpu.unsupported == {}
    gpu.close()
    gpu.close()
    with pytest.raises(SourceError, match='closed'):
        gpu.read_sample()


@pytest.mark.parametrize(
    'uuid',
    [
        SECOND.uuid,
        SECOND.uuid[4:],  # as torch writes it
        SECOND.uuid[4:].replace('-', ''),
        'gpu-' + SECOND.uuid[4:],
        f' {SECOND.uuid}\n',
    ],
)
def test_a_card_is_found_by_any_spelling_of_its_uuid(fake_nvml: FakeNvml, uuid: str):
    fake_nvml.set(FIRST, SECOND)
    assert name_of(uuid=uuid, index=0) == 'Second'


def test_two_cards_in_the_other_order_keep_their_names(fake_nvml: FakeNvml):
    for gpus in ((FIRST, SECOND), (SECOND, FIRST)):
        fake_nvml.set(*gpus)
        assert name_of(uuid=FIRST.uuid[4:], index=0) == 'First'
        assert name_of(uuid=SECOND.uuid[4:], index=0) == 'Second'
        for bus in (SECOND.bus, '0000:af:00.0'):
            assert name_of(pci_bus_id=bus, index=0) == 'Second'


def test_slices_and_cards_in_one_box_are_told_apart(fake_nvml: FakeNvml):
    fake_nvml.set(SLICE, FIRST, FakeGpu(uuid='GPU-2', name='Sliced', bus='', mig=1))
    assert name_of(uuid=SLICE.uuid[4:], index=0) == 'Slice'
    assert name_of(uuid=FIRST.uuid[4:], index=0) == 'First'
    assert name_of(uuid='GPU-2') == 'Sliced'
    # one that is not listed is looked up by its card's address
    fake_nvml.set(FakeGpu(name='Sliced', mig=1, util=()))
    assert name_of(uuid=SLICE.uuid, pci_bus_id=FakeGpu.bus) == 'Sliced'


def test_a_wrong_uuid_is_never_replaced_by_another_card(fake_nvml: FakeNvml):
    fake_nvml.set(FIRST)
    wrong = SECOND.uuid
    assert refused(uuid=wrong, index=0) == f'the driver lists 1 GPU(s), but not {wrong}'
    reason = refused(uuid=wrong, pci_bus_id=FIRST.bus, index=0)
    assert FIRST.uuid in reason and wrong in reason
    assert 'not 00000000:01:00.0' in refused(pci_bus_id='00000000:01:00.0', index=0)


def test_the_memory_of_a_card_in_slices_is_not_that_of_a_slice(fake_nvml: FakeNvml):
    # an older CUDA names the slice by its card
    fake_nvml.set(FakeGpu(mig=1, util=()), SLICE)
    gpu = opened(uuid=FakeGpu.uuid[4:])
    assert gpu.device()['memory_total_bytes'] is None
    assert gpu.read_sample() == GpuSample(None, None)
    reasons = gpu.unsupported
    gpu.close()
    assert 'of the whole card' in reasons['memory_total_bytes']
    assert 'of the whole card' in reasons['mem_used_bytes']


@pytest.mark.parametrize(
    ('index', 'environ', 'name', 'cards'),
    [
        (1, {'CUDA_DEVICE_ORDER': 'PCI_BUS_ID'}, 'Second', 2),
        (1, {}, None, 2),
        (0, {'CUDA_DEVICE_ORDER': 'FASTEST_FIRST'}, None, 2),
        (0, {'CUDA_DEVICE_ORDER': 'PCI_BUS_ID', 'CUDA_VISIBLE_DEVICES': '1'}, None, 2),
        (2, {'CUDA_DEVICE_ORDER': 'PCI_BUS_ID'}, None, 2),
        (None, {}, None, 2),
        # the only card needs no name
        (0, {'CUDA_VISIBLE_DEVICES': '5'}, 'First', 1),
        (1, {}, None, 1),
    ],
)
def test_an_index_counts_only_when_it_is_certain(
    fake_nvml: FakeNvml, index, environ, name, cards
):
    fake_nvml.set(*(FIRST, SECOND)[:cards])
    if name is None:
        assert refused(index=index, environ=environ)
    else:
        assert name_of(index=index, environ=environ) == name


def test_a_mig_slice_has_memory_but_no_utilisation(fake_nvml: FakeNvml):
    fake_nvml.set(FIRST, SLICE)
    gpu = opened(uuid=SLICE.uuid[4:])
    assert gpu.read_sample() == GpuSample(None, 50)
    assert 'under MIG' in gpu.unsupported['util_pct']
    gpu.close()


@pytest.mark.parametrize(
    ('code', 'words'),
    [(9, 'driver is not loaded'), (18, 'reboot'), (999, 'could not start: Unknown')],
)
def test_nvml_that_does_not_start(fake_nvml: FakeNvml, code: int, words: str):
    fake_nvml.set(FIRST, init=code)
    assert words in refused(uuid=FIRST.uuid)


def test_a_driver_that_breaks_during_the_look_up(fake_nvml: FakeNvml):
    fake_nvml.set(FakeGpu(fail={'uuid': (15, 0)}))
    assert 'GPU is lost' in refused(uuid=SECOND.uuid, pci_bus_id=FakeGpu.bus)


def test_another_card_that_is_lost_does_not_hide_ours(fake_nvml: FakeNvml, monkeypatch):
    import pynvml

    def fail(uuid: str) -> None:
        raise pynvml.NVMLError(15)

    fake_nvml.set(FIRST, SECOND)
    monkeypatch.setattr(pynvml, 'nvmlDeviceGetHandleByUUID', fail)
    assert name_of(uuid=SECOND.uuid, pci_bus_id=SECOND.bus) == 'Second'
    assert 'GPU is lost' in refused(uuid=SECOND.uuid)


def test_a_missing_library_or_package_says_what_to_do(monkeypatch):
    import pynvml

    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(pynvml, 'nvmlLib', None)
    monkeypatch.setattr(pynvml, 'CDLL', missing)
    assert 'docker run --gpus all' in refused(index=0)
    monkeypatch.setitem(sys.modules, 'pynvml', None)
    assert 'pip install nvidia-ml-py' in refused(index=0)
