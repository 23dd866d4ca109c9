"""No test is forgotten when they run side by side, and no failure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import side_by_side
from side_by_side import TESTS, list_parts


def test_every_test_is_in_one_half_or_timed() -> None:
    *halves, timed = list_parts(['-x'])
    rooms = [word for half in halves for word in half if word.startswith(str(TESTS))]
    for path in TESTS.rglob('test_*.py'):
        assert [path.is_relative_to(room) for room in rooms].count(True) == 1
        assert (str(path) in timed) == (f'mark.{"timing"}' in path.read_text())
    assert [half[-3:] for half in halves] == [['-m', 'not timing', '-x']] * 2
    assert timed[-3:] == ['-m', 'timing', '-x']


@pytest.mark.parametrize(
    ('ends', 'code', 'told'),
    [
        (('3 passed', '4 passed, 1 skipped', '2 passed'), 0, '9 passed, 1 skipped'),
        (('3 passed', '1 failed, 4 passed', '2 passed'), 1, '1 failed, 9 passed'),
        (('3 passed', '4 passed', '1 error'), 1, '1 error, 7 passed'),
        (('3 passed', '4 passed', '9 deselected'), 0, '7 passed'),
        (('3 passed', 'INTERNALERROR', '2 passed'), 3, '5 passed'),
    ],
)
def test_the_parts_make_one_answer(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ends: tuple[str, str, str],
    code: int,
    told: str,
) -> None:
    codes = {'fail': 1, 'erro': 1, 'dese': 5, 'INTE': 3}
    parts = iter(ends)

    def command(arguments: list[str]) -> list[str]:
        end = next(parts)
        ended = next((c for word, c in codes.items() if word in end), 0)
        words = f'print("...")\nprint("{end} in 1.20s")\nraise SystemExit({ended})'
        return [sys.executable, '-S', '-c', words]

    monkeypatch.setattr(side_by_side, '_command', command)
    assert side_by_side.main([]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:6:2] == [f'{end} in 1.20s' for end in ends]
    assert lines[-1].startswith(f'In all: {told} in ')


def test_make_runs_them_so() -> None:
    makefile = (Path(__file__).parents[2] / 'Makefile').read_text()
    assert '$(BIN)/python tests/side_by_side.py\n' in makefile
