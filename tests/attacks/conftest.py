from __future__ import annotations

from pathlib import Path

import pytest

from fakes.prepared import make_starved, prepare_config
from fakes.runs import write_run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return prepare_config(tmp_path / 'configs')


@pytest.fixture
def run_folder(tmp_path: Path, config: Path) -> Path:
    return write_run(tmp_path / 'run', make_starved(config))
