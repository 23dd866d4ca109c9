"""Growth of memory: planted rates are found, healthy series raise no alarm."""

from __future__ import annotations

import numpy as np
import pytest

from mmgpu_hooks.model.growth import READINGS, count_missing, find_growth

MIB = 2**20
Series = tuple[np.ndarray, np.ndarray]


def at_random(seed: int) -> tuple[np.random.Generator, np.ndarray, np.ndarray, float]:
    """Time from 0 to 1, iterations, and bytes at the start."""
    rng = np.random.default_rng(seed)
    time = np.linspace(0, 1, int(rng.integers(24, 400)))
    iterations = np.arange(1, len(time) + 1) * int(rng.integers(1, 200))
    return rng, time, iterations, rng.uniform(300, 20_000) * MIB


def noise(rng: np.random.Generator, count: int) -> np.ndarray:
    """Autocorrelated, of deviation 1."""
    alike, values = rng.choice([0.0, 0.5, 0.9]), rng.normal(size=count)
    for n in range(1, count):
        values[n] = alike * values[n - 1] + np.sqrt(1 - alike**2) * values[n]
    return values


def warm_up(rng: np.random.Generator, time: np.ndarray) -> np.ndarray:
    return rng.uniform(0, 0.4) * (1 - np.exp(-time / rng.uniform(0.005, 0.12)))


def healthy(seed: int) -> Series:
    """Caches that fill, jumps, pools that reach a new maximum, saw teeth."""
    rng, time, iterations, start = at_random(seed)
    sizes = 1 + warm_up(rng, time)
    sizes += 10 ** rng.uniform(-4, -1.5) * noise(rng, len(time))
    kind = seed % 5
    if kind == 1:
        for _ in range(rng.integers(1, 4)):
            sizes += rng.uniform(0, 0.1) * (time > rng.uniform())
    elif kind == 2:
        drawn = np.maximum.accumulate(rng.exponential(size=len(time)))
        sizes += rng.uniform(0.004, 0.06) * drawn
    elif kind == 3:
        drawn = np.maximum.accumulate(rng.uniform(size=len(time)))
        sizes += rng.uniform(0.02, 0.3) * drawn
    elif kind == 4:
        epochs = time * rng.integers(2, 12) + rng.uniform()
        sizes += rng.uniform(0.01, 0.2) * (epochs % 1)
    return iterations, start * sizes


def growing(seed: int) -> tuple[Series, float]:
    """And its bytes per 1000 iterations."""
    rng, time, iterations, start = at_random(seed)
    grown = rng.uniform(0.05, 1.5)
    sizes = 1 + warm_up(rng, time) + grown * time
    sizes += grown * 10 ** rng.uniform(-4, -1.7) * noise(rng, len(time))
    done = iterations[-1] - iterations[0]
    return (iterations, start * sizes), 1000 * start * grown / done


def test_healthy_series_raise_an_alarm_once_in_100_at_most():
    alarms = [seed for seed in range(1000) if find_growth(*healthy(seed))]
    assert len(alarms) <= 10


def test_planted_growth_is_found_within_15_per_cent():
    errors = []
    for seed in range(300):
        series, truth = growing(seed)
        found = find_growth(*series)
        errors.append(abs(found.value / truth - 1) if found else np.inf)
    assert np.quantile(errors, 0.95) <= 0.15


@pytest.mark.parametrize(
    'sizes',
    [
        [100.0 * MIB] * 200,
        # a stage of training begins
        [1000.0 * MIB] * 150 + [1400.0 * MIB] * 50,
        # full, from its middle on
        [float(min(n, 100)) * MIB for n in range(200)],
        # less than is worth a word
        [1000 * MIB + n * 1000.0 for n in range(200)],
        [-float(n) * MIB for n in range(200)],
    ],
)
def test_what_is_no_steady_growth(sizes):
    assert find_growth(range(len(sizes)), sizes) is None


def test_short_series_say_how_many_readings_they_lack():
    assert count_missing([]) == READINGS
    assert find_growth(range(10), [float(n) * 2**30 for n in range(10)]) is None
    assert 0 < count_missing(range(10)) < READINGS
    assert count_missing(range(100)) == 0
