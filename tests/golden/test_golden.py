"""Tests ``mmgpu``'s answers on recorded runs: verdicts, findings, changes, rewrites.

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
    SHARED_CONFIG,
    TOLERANCES,
    ask_in_process,
    gather_facts,
    lay_out,
    list_cases,
    near,
)
from mmgpu_hooks import schema


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


@pytest.mark.parametrize('words', ['recommend --dry-run --details', 'predict'])
@pytest.mark.parametrize('case', ['rtmdet_before', 'batch_size', 'too_few_workers'])
def test_tables_of_predictions_fit_80_columns(case, words, tmp_path):
    lay_out(CASES / case, tmp_path)
    runs = sorted(map(str, tmp_path.glob('run*')))
    options = ['--config', str(SHARED_CONFIG)] if 'recommend' in words else []
    options += ['--batch-size', '2', '8'] if words == 'predict' and runs[1:] else []
    _, out = ask_in_process([*words.split(), *runs, *options])
    # a command is never wrapped
    lines = [line for line in out.splitlines() if not line.startswith('Or once')]
    assert max(map(len, lines)) <= 80
    table = out.partition('limited by\n')[2].partition('\n\n')[0].splitlines()
    cells = [row.split() for row in table]
    assert len(cells) > 2 and all(number.isdigit() for number, *_ in cells)
    assert {row[-1] for row in cells} <= {'step', 'cores', 'workers'}


@pytest.mark.parametrize('name', ['occupancy', 'save_aftermath', 'polite_workers'])
def test_the_name_of_a_field_that_was_given_up_stands_in_no_record(name: str):
    fields = Path(schema.__file__).parent.glob('*.py')
    recorded = CASES.glob('*/**/*.json*')
    found = [str(f) for f in (*fields, *recorded) if name.encode() in f.read_bytes()]
    assert found == []
