"""The card that this rank trains on is found among others and named right."""

from __future__ import annotations

from typing import Any

import pytest

from mock_card.trainings import MockCards, Training

L40S_OF_6 = 'GPU-14050000-0000-0000-0000-000000000006'

CASES: dict[str, tuple[str, dict[str, str], str | None, str | None]] = {
    # name: kind, environment, the card's name, the end of its UUID
    't4': ('t4', {'CUDA_VISIBLE_DEVICES': '3'}, 'NVIDIA T4', '3'),
    'a100': ('a100', {}, 'NVIDIA A100-SXM4-40GB', '0'),
    'two_of_eight': ('l40s', {'CUDA_VISIBLE_DEVICES': '5,6'}, 'NVIDIA L40S', '5'),
    'by_uuid': ('l40s', {'CUDA_VISIBLE_DEVICES': L40S_OF_6}, 'NVIDIA L40S', '6'),
    'by_address': (
        'l40s',
        {'CUDA_VISIBLE_DEVICES': '2', 'MOCK_CARD_NAMED_BY': 'pci'},
        'NVIDIA L40S',
        '2',
    ),
    'by_nothing': ('h100', {'MOCK_CARD_NAMED_BY': 'nothing'}, None, None),
}

OFTEN = {'gpu_sample_period_s': 0.05}

HELD_MIB = 4096
"""Of the card's memory by another process."""

HOT = {
    'thermal': {'temperature_gpu_c': 81},
    'power': {'current_draw_mw': 63_500},
    'clocks': {'sm_current': 1110},
    'clocks_throttle_reasons': {'gpu_idle': False, 'sw_power_cap': True},
}
"""Cards whose clocks are held down."""


@pytest.fixture(scope='module')
def kinds(mock_cards: MockCards) -> dict[str, Training]:
    process: dict[str, Any] = {'type': 'C', 'name': 'python', 'sm_util': 30}
    others = {
        'processes': [
            {'pid': 'OWN_PID', 'used_memory_mib': 1024, **process},
            {'pid': 4242, 'used_memory_mib': HELD_MIB, **process},
        ],
        **HOT,
    }
    started = {
        name: mock_cards.start(
            name, kind, iterations=20, hook=OFTEN, driver=others, **environ
        )
        for name, (kind, environ, *_) in CASES.items()
    }
    for training in started.values():
        assert training.wait() == 0, training.printed
    return started


@pytest.mark.parametrize('name', CASES)
def test_the_card_is_named(kinds: dict[str, Training], name: str) -> None:
    *_, card, end = CASES[name]
    run = kinds[name].run
    assert run.run.device == 'cuda'
    if card is None:
        assert run.run.gpu is None
        assert 'CUDA index 0 may be any of 8' in run.unknown['GPU']
        return
    found = run.run.gpu
    assert found is not None and found.uuid is not None
    assert (found.name, found.uuid[-1]) == (card, end)


@pytest.mark.parametrize('name', ['t4', 'a100', 'by_address'])
def test_what_limits_the_card_is_known(kinds: dict[str, Training], name: str) -> None:
    gpu = kinds[name].run.gpu
    assert gpu is not None
    assert (gpu.temperature_c, gpu.sm_clock_mhz) == (81, 1110)
    assert (gpu.throttled_pct, gpu.throttle_reasons_pct) == (100, {'power_cap': 100})
    assert 'no GPM counters' in kinds[name].run.unknown['GPU sm_active_pct']
