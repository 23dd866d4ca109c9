from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmgpu_hooks.measure.absent import AbsentError, SourceError
from mmgpu_hooks.measure.cuda import (
    CudaMemory,
    cuda_device,
    find_lacking,
    open_cuda_memory,
    read_pci_bus_id,
)


def stats(peak: int, reserved: int) -> dict[str, Any]:
    return {
        'allocated_bytes': {'all': {'peak': peak, 'current': 1}},
        'reserved_bytes': {'all': {'peak': reserved, 'current': 1}},
    }


@pytest.mark.parametrize(
    'odd', [{}, {'allocated_bytes': {}}, {'allocated_bytes': None}]
)
def test_an_allocator_without_statistics_is_an_error(odd: dict[str, Any]):
    with pytest.raises(SourceError, match='no peak statistics'):
        CudaMemory(lambda: odd).observe()


class Allocator:
    """Fake CUDA allocator whose peak only the test resets."""

    def __init__(self, base: int = 10) -> None:
        self.current = self.peak = base
        self.reserved = base
        self.retries = 0

    def use(self, extra: int) -> None:
        """Allocates bytes on top of the live ones and frees them again."""
        self.peak = max(self.peak, self.current + extra)
        self.reserved = max(self.reserved, self.peak)

    def reset(self) -> None:
        self.peak = self.current

    def read(self) -> dict[str, Any]:
        nested = stats(self.peak, self.reserved)
        nested['allocated_bytes']['all']['current'] = self.current
        nested['inactive_split_bytes'] = {'all': {'current': 7}}
        nested['num_alloc_retries'] = self.retries
        return nested


@pytest.fixture
def allocator() -> Allocator:
    return Allocator()


@pytest.fixture
def memory(allocator: Allocator) -> CudaMemory:
    memory = CudaMemory(allocator.read)
    memory.begin()
    return memory


def validate(memory: CudaMemory, allocator: Allocator, *extras: int) -> None:
    """Runs a fake validation in which logging resets the memory peak."""
    memory.begin_validation()
    for extra in extras[:-1]:
        allocator.use(extra)
        memory.observe()
        allocator.reset()
    allocator.use(extras[-1])
    memory.end_validation()


def drain_at_log(memory: CudaMemory, allocator: Allocator) -> int | None:
    memory.observe()
    peak = memory.drain()['peak_bytes']
    allocator.reset()  # LoggerHook, right after us
    return peak


@pytest.mark.parametrize(
    ('before', 'validations', 'after', 'peaks'),
    [
        # less than training needs leaves no trace
        (90, (40, 50), (80, 70), (100, 80)),
        # nor where training goes on to need just as much
        (90, (50,), (90, 90), (100, 100)),
        # training that needs more afterwards is seen
        (5, (40, 50), (80,), (90,)),
        # a peak that validation hides is unknown until the next reset
        (90, (200,), (95, 95), (None, 105)),
        (90, (200, 200), (95, 95), (None, 105)),
        (90, (30, 200), (95, 95), (None, 105)),
        # validation's own is known once its log has reset it
        (90, (200, 30), (85,), (100,)),
    ],
)
def test_the_peak_is_trainings_or_unknown(
    memory, allocator, before, validations, after, peaks
):
    allocator.use(before)
    validate(memory, allocator, *validations)
    found = []
    for extra in after:
        allocator.use(extra)
        found.append(drain_at_log(memory, allocator))
    assert tuple(found) == peaks


def test_without_a_reset_the_peak_stays_unknown_until_training_exceeds_it(
    memory, allocator
):
    validate(memory, allocator, 200)
    for peak, reserved in ((None, 210), (None, 210), (310, 310)):
        allocator.use(300 if peak else 0)
        memory.observe()
        found = memory.drain()
        assert (found['peak_bytes'], found['reserved_bytes']) == (peak, reserved)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just('train'), st.integers(1, 5)),
        st.tuples(st.just('validate'), st.lists(st.integers(1, 5), min_size=1)),
        st.tuples(st.just('log'), st.just(0)),
    ),
    max_size=30,
)


@given(st.integers(0, 5), STEPS)
def test_a_peak_is_the_truth_or_unknown(before: int, steps: list[tuple[str, Any]]):
    allocator = Allocator(base=0)
    allocator.use(before)
    memory = CudaMemory(allocator.read)
    memory.begin()
    truth = 0
    for step, extra in [*steps, ('log', 0)]:
        if step == 'train':
            allocator.use(extra)
            truth = max(truth, extra)
        elif step == 'validate':
            validate(memory, allocator, *extra)
        else:
            peak = drain_at_log(memory, allocator)
            assert peak in (truth, None)
            truth = 0


def test_the_driver_tells_the_address_of_a_cuda_index(monkeypatch):
    def get(device: Any, index: Any) -> int:
        device._obj.value = index.value + 70
        return index.value != 1

    def tell(text: Any, length: int, device: Any) -> int:
        text.value = b'0000:%X:00.0' % device.value
        return length < 13

    driver = SimpleNamespace(cuDeviceGet=get, cuDeviceGetPCIBusId=tell)
    monkeypatch.setattr(ctypes, 'CDLL', lambda name: driver)
    assert read_pci_bus_id(1) == '0000:47:00.0'
    assert read_pci_bus_id(2) is None


def test_cuda_that_is_not_in_use_is_left_alone():
    torch = pytest.importorskip('torch', exc_type=ImportError)
    if torch.cuda.is_initialized():
        pytest.skip('CUDA is in use in this process')
    for ask in (cuda_device, open_cuda_memory):
        with pytest.raises(AbsentError, match='training runs on the CPU'):
            ask()
    assert not torch.cuda.is_initialized()


def test_allocated_inactive_and_retries_are_drained_and_a_reset_is_unknown(
    memory, allocator
):
    allocator.retries = 2
    allocator.current = 12
    memory.observe()
    names = 'allocated_bytes', 'inactive_bytes', 'retries'
    first = memory.drain()
    assert [first[name] for name in names] == [12, 7, 2]
    allocator.retries = 0  # somebody reset it
    memory.observe()
    second = memory.drain()
    assert [second[name] for name in names] == [12, 7, None]


@pytest.mark.parametrize(
    ('backend', 'settings', 'lacking'),
    [
        ('native', '', set()),
        ('native', 'max_split_size_mb:64', set()),
        ('native', 'expandable_segments:False', set()),
        ('native', 'garbage:0.8, expandable_segments: True', {'inactive_bytes'}),
        ('cudaMallocAsync', '', {'inactive_bytes', 'retries'}),
    ],
)
def test_what_an_allocator_does_not_count_is_no_zero(backend, settings, lacking):
    allocator = Allocator()
    memory = CudaMemory(allocator.read, find_lacking(backend, settings))
    memory.begin()
    memory.observe()
    found = dict(memory.drain())
    assert found.pop('peak_bytes') is None  # it stands as before training
    assert {name for name, value in found.items() if value is None} == lacking
    assert memory.lacking.keys() == lacking
    # one that keeps fewer figures
    memory = CudaMemory(lambda: stats(5, 6))
    memory.observe()
    known = {name for name, value in memory.drain().items() if value is not None}
    assert known == {'peak_bytes', 'reserved_bytes', 'allocated_bytes'}


@pytest.mark.parametrize(
    ('without', 'figures'),
    [
        ('allocated_bytes', {'peak_bytes', 'allocated_bytes'}),
        ('reserved_bytes', {'reserved_bytes'}),
        ('inactive_split_bytes', {'inactive_bytes'}),
        ('num_alloc_retries', {'retries'}),
    ],
)
def test_a_statistic_that_is_missing_ends_its_own_figure(without, figures):
    allocator = Allocator()

    def read() -> dict[str, Any]:
        kept = allocator.read()
        del kept[without]
        return kept

    memory = CudaMemory(read)
    memory.begin()
    validate(memory, allocator, 5, 5)
    allocator.use(20)
    memory.observe()
    found = memory.drain()
    assert {name for name, value in found.items() if value is None} == figures
    assert memory.lacking.keys() == figures
    assert without in memory.lacking[min(figures)]
