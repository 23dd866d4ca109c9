"""Fixtures for the folder with the mock driver and FakeGPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mock_card.trainings import SOURCE, MockCards


@pytest.fixture(scope='session')
def mock_source() -> Path:
    """Folder with ``driver/`` and ``fakegpu_src/``; skips tests if it is missing."""
    named = os.environ.get(SOURCE)
    if not named:
        pytest.skip(f'{SOURCE} names no folder with a mock driver (CONTRIBUTING.md)')
    folder = Path(named).resolve()
    for part in ('driver/libnvidia-ml.so.1', 'fakegpu_src/fakegpu'):
        assert (folder / part).exists(), f'{SOURCE} is {named}, which has no {part}'
    return folder


@pytest.fixture(scope='module')
def mock_cards(
    mock_source: Path, tmp_path_factory: pytest.TempPathFactory
) -> MockCards:
    """Trainer of configs on the mock driver's GPUs."""
    return MockCards(mock_source, tmp_path_factory.mktemp('mock_card'))
