"""Utilisation planted in the driver, beside what is recorded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from mock_card.trainings import MockCards, SquareWave, Training


@dataclass(frozen=True)
class Wave:
    """A square wave that was planted while a training ran."""

    training: Training
    square: SquareWave


WAVES = {
    '3 s': (90, 1.0, 2.0, 4),
    '0.6 s': (80, 0.3, 0.3, 20),
}
"""Per cent, seconds up and down, and whole waves beside the first interval."""


@pytest.fixture(scope='module')
def waves(mock_cards: MockCards) -> dict[str, Wave]:
    started = {}
    for name, (pct, up_s, down_s, count) in WAVES.items():
        iterations = 10 + round((up_s + down_s) * count / 0.1)
        training = mock_cards.start(
            f'wave of {name}', iterations=iterations, step_s=0.1, interval=10
        )
        square = SquareWave(training, pct, up_s=up_s, down_s=down_s)
        square.start()
        started[name] = Wave(training, square)
    for wave in started.values():
        assert wave.training.wait() == 0, wave.training.printed
        wave.square.stop()
    return started


@pytest.mark.parametrize('name', WAVES)
def test_a_wave_is_shown_as_it_was_planted(waves: dict[str, Wave], name: str) -> None:
    run = waves[name].training.run
    gpu, start_s = run.gpu, run.run.started_unix_s
    assert gpu is not None and gpu.util_pct is not None and gpu.zero_pct is not None
    mean_pct, zero_pct = waves[name].square.planted(
        start_s + run.intervals[0].elapsed_s, start_s + run.intervals[-1].elapsed_s
    )
    root = math.sqrt(gpu.samples)
    assert gpu.util_std_pct is not None
    error = gpu.util_std_pct / root
    zero_error = math.sqrt(zero_pct * (100 - zero_pct)) / root
    found = (
        f'{name}: planted {mean_pct:.1f} % and {zero_pct:.1f} % of the time at 0, '
        f'shown {gpu.util_pct:.1f} % and {gpu.zero_pct:.1f} % from {gpu.samples} '
        f'samples (standard errors {error:.1f} and {zero_error:.1f})'
    )
    print(found)
    # 0.2 s between two samples, and time for a busy machine
    assert gpu.samples >= 30, found
    assert abs(gpu.util_pct - mean_pct) <= max(3.0, 2 * error), found
    assert abs(gpu.zero_pct - zero_pct) <= max(3.0, 2 * zero_error), found


def test_the_log_line_says_it(waves: dict[str, Wave]) -> None:
    assert 'gpu_util_pct: ' in waves['3 s'].training.printed


def test_what_is_read_now_and_then_is_there(waves: dict[str, Wave]) -> None:
    for wave in waves.values():
        run = wave.training.run
        gpu = run.gpu
        assert gpu is not None
        assert gpu.sm_clock_mhz == pytest.approx(345, rel=0.9)
        assert gpu.temperature_c is not None
        assert gpu.sm_active_pct is not None or 'GPU sm_active_pct' in run.unknown
