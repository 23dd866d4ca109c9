"""Tests which GPU is opened for given identifiers, and the reason if none is."""

from __future__ import annotations

import sys

import pytest

from fakes.nvml import FakeGpu, FakeNvml
from mmgpu_hooks.measure.absent import AbsentError
from mmgpu_hooks.measure.gpu import open_gpu

FIRST = FakeGpu(name='First')
SECOND = FakeGpu(
    uuid='GPU-00000000-1111-2222-3333-444444444444',
    name='Second',
    bus='00000000:AF:00.0',
)
SLICE = FakeGpu(
    uuid='MIG-99999999-1111-2222-3333-444444444444',
    name='Slice',
    bus='',
    util=(),
    memory=(200, 50),
)
SLICED = FakeGpu(uuid='GPU-2', name='Sliced', bus='00000000:99:00.0', mig=1, util=())


def refused(**names: object) -> str:
    with pytest.raises(AbsentError) as absent:
        open_gpu(**names)  # type: ignore[arg-type]
    return str(absent.value)


def name_of(**names: object) -> str | None:
    gpu = open_gpu(**names)  # type: ignore[arg-type]
    try:
        return gpu.device()['name']
    finally:
        gpu.close()
        gpu.close()


@pytest.mark.parametrize(
    ('names', 'found'),
    [
        ({'uuid': SECOND.uuid}, 'Second'),
        ({'uuid': SECOND.uuid[4:]}, 'Second'),  # as torch writes it
        ({'uuid': FIRST.uuid[4:], 'pci_bus_id': SECOND.bus}, 'First'),
        ({'pci_bus_id': SECOND.bus}, 'Second'),
        ({'pci_bus_id': '0000:af:00.0'}, 'Second'),
        ({'uuid': SLICE.uuid[4:]}, 'Slice'),
        # a slice that is not listed has the address of its card
        ({'uuid': 'MIG-7', 'pci_bus_id': SLICED.bus}, 'Sliced'),
    ],
)
def test_a_card_is_found_by_its_names_in_any_order(fake_nvml, names, found):
    cards = [SLICE, FIRST, SECOND, SLICED]
    for gpus in (cards, cards[::-1]):
        fake_nvml.set(*gpus)
        assert name_of(**names) == found


def test_texts_that_an_old_pynvml_gives_as_bytes_are_decoded(fake_nvml, monkeypatch):
    import pynvml

    for name in ('nvmlDeviceGetName', 'nvmlDeviceGetUUID'):
        real = getattr(pynvml, name)
        monkeypatch.setattr(pynvml, name, lambda card, real=real: real(card).encode())
    fake_nvml.set(FIRST)
    gpu = open_gpu(uuid=FIRST.uuid)
    device = gpu.device()
    gpu.close()
    assert (device['name'], device['uuid']) == ('First', FIRST.uuid)


def test_another_card_is_never_guessed(fake_nvml: FakeNvml):
    fake_nvml.set(FIRST)
    wrong = SECOND.uuid
    assert refused(uuid=wrong) == f'the driver lists other GPUs (1), not {wrong}'
    assert 'not 00000000:01:00.0' in refused(pci_bus_id='00000000:01:00.0')
    assert 'nothing is known that names the GPU' in refused()
    assert name_of(index=0) == 'First'
    assert 'lists other GPUs (1), not 1' in refused(index=1)


def test_the_memory_of_a_card_in_slices_is_not_that_of_a_slice(fake_nvml):
    # an older CUDA names the slice by its card
    fake_nvml.set(SLICED, SLICE)
    gpu = open_gpu(uuid=SLICED.uuid)
    assert gpu.is_sliced
    assert 'memory_total_bytes' not in gpu.device()
    assert gpu.read_sample() == {}
    reasons = gpu.unsupported
    gpu.close()
    assert 'of the whole card' in reasons['memory_total_bytes']
    assert 'of the whole card' in reasons['mem_used_bytes']


def test_a_mig_slice_has_memory_but_no_utilisation(fake_nvml: FakeNvml):
    fake_nvml.set(FIRST, SLICE)
    gpu = open_gpu(uuid=SLICE.uuid[4:])
    assert [gpu.read_sample() for _ in range(3)] == [{'mem_used_bytes': 50}] * 3
    assert 'under MIG' in gpu.unsupported['util_pct']
    assert 'MIG' in gpu.reasons()['sm_active_pct']
    gpu.close()


@pytest.mark.parametrize(
    ('code', 'words'),
    [(9, 'driver is not loaded'), (18, 'reboot'), (999, 'could not start: Unknown')],
)
def test_nvml_that_does_not_start_says_why(fake_nvml: FakeNvml, code: int, words: str):
    fake_nvml.set(FIRST, init=code)
    assert words in refused(uuid=FIRST.uuid)


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
