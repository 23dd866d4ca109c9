from __future__ import annotations

import os

import pytest

from fakes.clock import HandClock
from fakes.nvml import FakeGpu, FakeNvml
from mmgpu_hooks.schema import CardWindow
from mmgpu_hooks.telemetry.absent import Absent
from mmgpu_hooks.telemetry.gpu.buffer import UtilSpan
from mmgpu_hooks.telemetry.gpu.cards import CardFold, CardSample, HostCards, open_cards
from mmgpu_hooks.telemetry.source_error import SourceError

FIRST = FakeGpu(util=(90,), memory=(1000, 700), more=['clocks 1980 2619'])
SECOND = FakeGpu(uuid='GPU-2', bus='00000000:AF:00.0', util=(0, 20), memory=(1000, 10))


def opened(clock: HandClock | None = None) -> HostCards:
    clock = clock or HandClock()
    cards = open_cards(clock=clock, wall=clock)
    assert isinstance(cards, HostCards), cards
    return cards


def test_every_card_is_seen_under_its_own_name(fake_nvml: FakeNvml):
    fake_nvml.set(FIRST, SECOND)
    clock = HandClock()
    cards = opened(clock)
    clock.turn(2.0)
    assert cards.read_samples() == {
        FIRST.uuid: CardSample(0, (UtilSpan(2.0, 90.0),), 700, 1980.0),
        'GPU-2': CardSample(1, (UtilSpan(2.0, 0.0),), 10, None),
    }
    clock.turn(3.0)
    assert cards.read_samples()['GPU-2'].spans == (UtilSpan(3.0, 20.0),)
    assert cards.left_out == {}
    reasons = cards.reasons()
    assert 'Not Supported' in reasons['GPU-2 sm_clock_mhz']
    assert f'{FIRST.uuid} sm_clock_mhz' not in reasons
    cards.close()
    cards.close()
    with pytest.raises(SourceError, match='closed'):
        cards.read_samples()


def test_the_driver_keeps_the_samples_between_two_looks(fake_nvml: FakeNvml):
    buffered = ['samples 100000000 0']
    fake_nvml.set(FakeGpu(more=buffered), SECOND)
    clock = HandClock()  # says 100 s
    cards = opened(clock)
    buffered[0] += ' 100500000 100 101500000 40'
    fake_nvml.set(FakeGpu(more=buffered), SECOND)
    clock.turn(2.0)
    spans = cards.read_samples()[FakeGpu.uuid].spans
    assert spans == (UtilSpan(0.5, 100.0), UtilSpan(1.0, 40.0))
    cards.close()


def test_one_card_is_not_looked_at_twice(fake_nvml: FakeNvml):
    absent = open_cards()
    assert isinstance(absent, Absent)
    assert absent.reason == 'the driver lists 1 GPU(s): there is nothing to compare'


def test_without_a_driver_there_are_no_cards(fake_nvml: FakeNvml):
    fake_nvml.set(FIRST, SECOND, init=9)
    absent = open_cards()
    assert isinstance(absent, Absent)
    assert 'driver is not loaded' in absent.reason


def test_a_card_that_may_not_be_read_is_left_out(fake_nvml: FakeNvml):
    fake_nvml.set(FIRST, FakeGpu(uuid='GPU-3', fail={'uuid': (4, 0)}), SECOND)
    cards = opened()
    assert list(cards.read_samples()) == [FIRST.uuid, 'GPU-2']
    assert cards.read_samples()['GPU-2'].index == 2
    assert cards.left_out == {'card 1': 'Insufficient Permissions'}
    assert cards.reasons()['card 1'] == 'Insufficient Permissions'
    cards.close()


def test_a_card_without_a_name_in_letters_is_left_out(fake_nvml: FakeNvml):
    fake_nvml.set(FIRST, FakeGpu(uuid='\xff\xfe'), SECOND)
    cards = opened()
    assert list(cards.read_samples()) == [FIRST.uuid, 'GPU-2']
    assert 'no text' in cards.left_out['card 1']
    cards.close()


def test_a_card_that_is_lost_does_not_take_the_others_along(fake_nvml: FakeNvml):
    lost = FakeGpu(uuid='GPU-3', fail={'util': (15, 1)})
    fake_nvml.set(FIRST, lost, SECOND)
    cards = opened()
    assert len(cards.read_samples()) == 3
    assert list(cards.read_samples()) == [FIRST.uuid, 'GPU-2']
    assert list(cards.read_samples()) == [FIRST.uuid, 'GPU-2']
    assert 'GPU is lost' in cards.left_out['GPU-3']
    assert len(cards) == 2
    cards.close()


def test_a_sliced_card_has_memory_and_a_reason(fake_nvml: FakeNvml):
    fake_nvml.set(FakeGpu(util=(), mig=1), SECOND)
    cards = opened()
    sample = cards.read_samples()[FakeGpu.uuid]
    assert (sample.spans, sample.mem_used_bytes) == ((), 400)
    assert 'under MIG' in cards.reasons()[f'{FakeGpu.uuid} util_pct']
    cards.close()


def test_a_figure_that_is_missing_now_has_a_reason(fake_nvml: FakeNvml):
    fake_nvml.set(FIRST, FakeGpu(uuid='GPU-2', fail={'memory': (10, 0)}))
    cards = opened()
    for _ in range(2):
        assert cards.read_samples()['GPU-2'].mem_used_bytes is None
    assert cards.reasons()['GPU-2 mem_used_bytes'].startswith('missed at 2 looks: ')
    assert f'{FIRST.uuid} mem_used_bytes' not in cards.reasons()
    fake_nvml.set(FIRST, SECOND)
    cards.read_samples()
    assert 'GPU-2 mem_used_bytes' not in cards.reasons()
    cards.close()


def test_in_a_forked_child_close_does_nothing(fake_nvml: FakeNvml, monkeypatch):
    fake_nvml.set(FIRST, SECOND)
    cards = opened()
    with monkeypatch.context() as child:
        child.setattr(os, 'getpid', lambda: -1)
        cards.close()
    assert len(cards.read_samples()) == 2
    cards.close()


def test_looks_fold_by_their_time():
    fold = CardFold(3)
    fold.add(CardSample(3, (UtilSpan(3.0, 0.0), UtilSpan(1.0, 80.0)), 7, 1000.0))
    fold.add(CardSample(3, (), 9, 2000.0))
    fold.add(CardSample(3))
    assert fold.window() == CardWindow(
        index=3,
        samples=2,
        util_pct=20.0,
        zero_pct=75.0,
        mem_used_bytes=9,
        sm_clock_mhz=1500.0,
        sampled_s=4.0,
    )
    assert CardFold(1).window() == CardWindow(index=1)
