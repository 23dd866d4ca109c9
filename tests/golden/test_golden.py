"""Evidence in, facts out: verdicts, rule codes, changes, figures, the rewritten bytes.

``record.py`` records the cases and what is expected of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from golden.facts import CASES, EXPECTED, ask_in_process, gather_facts, list_cases

MEASURED = 1e-6
PREDICTED = 0.02
POINTS = 2.0
"""Of a predicted gain in per cent."""


def ask_by_process(words: list[str]) -> tuple[int, str]:
    command = [sys.executable, '-m', 'mmgpu_hooks', *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=CASES.parents[1])
    return done.returncode, done.stdout


def near(
    figures: dict[str, float], relative: float, points: float = 0.0
) -> dict[str, Any]:
    return {
        key: pytest.approx(value, relative, points if key.endswith('_pct') else None)
        for key, value in figures.items()
    }


@pytest.mark.parametrize('case', list_cases())
def test_the_front_door_says_the_same_of_it(case: str, tmp_path: Path) -> None:
    expected = json.loads((CASES / case / EXPECTED).read_text())
    by_process = case in ('rtmdet_before', 'saves_held_by_workers')
    ask = ask_by_process if by_process else ask_in_process
    found = gather_facts(CASES / case, tmp_path, expected.pop('flags'), ask)
    measured, predicted = expected.pop('measured'), expected.pop('predicted')
    found_measured, found_predicted = found.pop('measured'), found.pop('predicted')
    assert found == expected
    assert found_measured == near(measured, MEASURED)
    assert found_predicted == near(predicted, PREDICTED, POINTS)
