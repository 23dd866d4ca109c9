from __future__ import annotations

import pytest

from fakes.nvml import FakeGpu, FakeNvml
from mmgpu_hooks.measure.absent import Absent
from mmgpu_hooks.measure.cards import read_card_states
from mmgpu_hooks.schema import CardState

FIRST = FakeGpu(memory=(1000, 700), util=(90,))
SECOND = FakeGpu(uuid='GPU-2', name='NVIDIA Fake 200', memory=(4000, 10), util=(0,))


def read(wall_s: float = 1000.0) -> tuple[CardState, ...]:
    states = read_card_states(wall=lambda: wall_s)
    assert not isinstance(states, Absent), states
    return states


def test_every_card_tells_what_is_free(fake_nvml: FakeNvml):
    fake_nvml.set(FIRST, SECOND)
    assert read() == (
        CardState(0, None, FIRST.uuid, FIRST.uuid, FIRST.name, 1000, 300, 90.0),
        CardState(1, None, 'GPU-2', 'GPU-2', 'NVIDIA Fake 200', 4000, 3990, 0.0),
    )


@pytest.mark.parametrize(
    ('now_s', 'util_pct'),
    [
        (3.0, 25.0),  # 0.5 s at 0 %, 0.5 s at 100 %, 1 s at 0 %
        (30.0, 90.0),  # the buffer stands still: the driver is asked itself
    ],
)
def test_how_busy_is_a_mean_over_what_the_driver_keeps(
    fake_nvml: FakeNvml, now_s, util_pct
):
    kept = 'samples 1000000 77 1500000 0 2000000 100 3000000 0'
    fake_nvml.set(FakeGpu(util=(90,), more=[kept]))
    assert read(now_s)[0].util_pct == util_pct


def test_slices_follow_their_card(fake_nvml: FakeNvml):
    fake_nvml.set(
        FakeGpu(uuid='GPU-1', mig=1, util=()),
        FakeGpu(uuid='MIG-a', memory=(100, 0), util=()),
        FakeGpu(uuid='MIG-b', memory=(200, 50), util=(), fail={'memory': (4, 0)}),
        FakeGpu(uuid='GPU-2', mig=0),
    )
    card, first, second, other = read()
    assert (card.label, card.is_sliced, card.reason) == ('0', True, None)
    assert (first.label, first.uuid, first.card_uuid) == ('0:0', 'MIG-a', 'GPU-1')
    assert (first.memory_free_bytes, first.util_pct, first.reason) == (100, None, None)
    assert second.label == '0:1'
    assert second.reason == (
        'its memory is unknown: the driver does not give it under MIG: '
        'Insufficient Permissions'
    )
    assert (other.label, other.is_sliced, other.uuid) == ('1', False, 'GPU-2')


def test_a_card_that_may_not_be_read_is_there_with_the_reason(fake_nvml: FakeNvml):
    fake_nvml.set(FIRST, FakeGpu(uuid='GPU-3', fail={'uuid': (4, 0)}), SECOND)
    states = read()
    assert [state.label for state in states] == ['0', '1', '2']
    assert states[1] == CardState(1, reason='cannot be read: Insufficient Permissions')
    assert states[2].reason is None


@pytest.mark.parametrize(
    ('card', 'reason'),
    [
        (
            FakeGpu(fail={'memory': (15, 0)}),
            'NVML stopped answering for this GPU: GPU is lost',
        ),
        (
            FakeGpu(memory=None),
            'its memory is unknown: the driver does not give it: Not Supported',
        ),
        (
            FakeGpu(memory=(100, 200)),
            'its memory is unknown: missed at 1 looks: the driver reported 200 of 100 '
            'bytes in use',
        ),
        (FakeGpu(more=['computemode 2']), 'its compute mode is Prohibited'),
        (
            FakeGpu(more=['computemode 3', 'running', 'compute 4711 300']),
            'process 4711 has it alone (Exclusive_Process)',
        ),
        (FakeGpu(more=['computemode 3', 'running']), None),
        (FakeGpu(util=()), None),
    ],
)
def test_what_keeps_a_process_off_a_card(fake_nvml: FakeNvml, card, reason):
    fake_nvml.set(card)
    (state,) = read()
    assert state.reason == reason


def test_no_driver_and_no_card_are_told_apart(fake_nvml: FakeNvml):
    fake_nvml.set(FIRST, init=9)
    absent = read_card_states()
    assert isinstance(absent, Absent)
    assert 'driver is not loaded' in absent.reason
    fake_nvml.set()
    assert read_card_states() == Absent('the driver lists no GPU')
