"""The folder with the mock driver and FakeGPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mock_card.trainings import CARDS, MockCards
from training.detection import TrainServer

FOLDER = 'MMGPU_MOCK_CARD'


@pytest.fixture(scope='session')
def mock_source() -> Path:
    """The folder with ``driver/`` and ``fakegpu_src/``."""
    named = os.environ.get(FOLDER)
    if not named:
        pytest.skip(f'{FOLDER} names no folder with a mock driver (CONTRIBUTING.md)')
    folder = Path(named).resolve()
    for part in ('driver/libnvidia-ml.so.1', 'fakegpu_src/fakegpu'):
        assert (folder / part).exists(), f'{FOLDER} is {named}, which has no {part}'
    return folder


@pytest.fixture(scope='session')
def mock_environ(mock_source: Path) -> dict[str, str]:
    """Environment of a process that finds the driver, and its cards by `CARDS`."""
    return {
        FOLDER: str(mock_source),
        'LD_LIBRARY_PATH': str(mock_source / 'driver'),
        'MOCK_NVML_CONFIG': str(CARDS),
        'MOCK_NVML_OVERRIDES_TTL': '10ms',
    }


@pytest.fixture(scope='session')
def mock_cards(
    mock_source: Path,
    mock_environ: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[MockCards]:
    """Trains on the cards of the mock driver, four trainings at a time."""
    server = TrainServer(at_once=4, **mock_environ)
    yield MockCards(mock_source, server, tmp_path_factory.mktemp('mock_card'))
    server.close()
