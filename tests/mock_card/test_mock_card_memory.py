"""FakeGPU's caching allocator: peaks, reserved bytes, and a card that is too small."""

from __future__ import annotations

import pytest

from mock_card.trainings import MockCards, Training

MIB = 2**20


@pytest.fixture(scope='module')
def hungry(mock_cards: MockCards) -> dict[str, Training]:
    model = {'held_mib': 32, 'steps_mib': {'8': 40}}
    started = {
        'fits': mock_cards.start('fits', step_s=0.01, model=model),
        'full': mock_cards.start(
            'full',
            step_s=0.01,
            model={'held_mib': 32, 'steps_mib': {'12': 80}},
            MOCK_CARD_MIB='100',
        ),
    }
    assert started['fits'].wait() == 0, started['fits'].printed
    assert started['full'].wait() != 0
    return started


def test_peaks_are_those_of_the_interval(hungry: dict[str, Training]) -> None:
    run = hungry['fits'].run
    peaks = [record.gpu_mem_peak_bytes for record in run.intervals]
    assert all(peak is not None for peak in peaks)
    # the second interval holds the eighth step; LoggerHook resets the peak after each
    assert [round((peak or 0) / MIB) for peak in peaks] == [32, 72, 32, 32]
    for record in run.intervals[1:]:
        assert record.gpu_mem_reserved_bytes is not None
        assert 72 * MIB <= record.gpu_mem_reserved_bytes <= 120 * MIB
    assert run.cuda_memory is not None and run.cuda_memory.ooms == 0


def test_a_card_that_is_full_is_in_the_evidence(hungry: dict[str, Training]) -> None:
    training = hungry['full']
    assert 'OutOfMemoryError' in training.printed
    run = training.run
    assert run.status == 'failed'
    assert run.cuda_memory is not None and run.cuda_memory.ooms == 1
