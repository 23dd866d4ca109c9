"""Evidence in, facts out: verdicts, rule codes, changes, figures, the rewritten bytes.

``record.py`` records the cases and what is expected of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from golden.facts import (
    CASES,
    EXPECTED,
    TOLERANCES,
    ask_in_process,
    gather_facts,
    list_cases,
    near,
)


def ask_by_process(words: list[str]) -> tuple[int, str]:
    command = [sys.executable, '-m', 'mmgpu_hooks', *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=CASES.parents[1])
    return done.returncode, done.stdout


@pytest.mark.parametrize('case', list_cases())
def test_the_front_door_says_the_same_of_it(case: str, tmp_path: Path) -> None:
    expected = json.loads((CASES / case / EXPECTED).read_text())
    by_process = case in ('rtmdet_before', 'saves_held_by_workers')
    ask = ask_by_process if by_process else ask_in_process
    found = gather_facts(CASES / case, tmp_path, expected.pop('flags'), ask)
    for kind in TOLERANCES:
        assert found.pop(kind) == near(kind, expected.pop(kind))
    assert found == expected
