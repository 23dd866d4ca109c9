from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmgpu_hooks.commands.main import main


@pytest.fixture
def ask(capsys):
    """Runs a command that answers; the JSON of its answer."""

    def run(*words: str | Path, code: int = 0) -> dict[str, Any]:
        assert main([*map(str, words), '--format', 'json']) == code
        return json.loads(capsys.readouterr().out)

    return run
