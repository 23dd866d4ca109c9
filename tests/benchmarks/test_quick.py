"""Tests ``make bench-quick``: a failing benchmark does not stop the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import quick

PLANTED = {
    'good': "print('# Good\\n\\ngood: 2 of 2 targets met')",
    'missing': "print('missing: 0 of 1 targets met; missed: cost'); sys.exit(1)",
    'broken': "raise RuntimeError('no such pipeline')",
    'busy': "print('busy: not judged'); sys.exit(3)",
    # holds the pipe open, as a loader's workers do
    'hanging': "subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])",
    'refusing': "sys.exit(2 if sys.argv[1:] == ['--quick'] else 0)",
    'gpu_check': 'sys.exit(2)',
}


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the real benchmarks by small ones with known outcomes."""
    package = tmp_path / 'planted_benchmarks'
    package.mkdir()
    for name, code in PLANTED.items():
        (package / f'{name}.py').write_text(f'import subprocess, sys\n{code}\n')
    monkeypatch.setenv('PYTHONPATH', str(tmp_path))
    monkeypatch.setattr(quick, 'PACKAGE', package.name)
    monkeypatch.setattr(quick, 'BENCHMARKS', tuple(PLANTED))
    monkeypatch.setattr(quick, 'LIMIT_S', 2.0)


def read_table(text: str) -> dict[str, tuple[str, str]]:
    """Returns outcome and last output line by benchmark, parsed from the table."""
    lines = [line for line in text.splitlines() if line.startswith('| ')]
    rows = [[cell.strip() for cell in line.split('|')[1:-1]] for line in lines[2:]]
    return {name: (result, last_line) for name, _, result, last_line in rows}


def test_all_benchmarks_are_run_and_the_table_says_how_each_ended(planted, capfd):
    assert quick.main([]) == 1
    said = capfd.readouterr()
    assert read_table(said.out) == {
        'good': ('passed', 'good: 2 of 2 targets met'),
        'missing': ('failed', 'missing: 0 of 1 targets met; missed: cost'),
        'broken': ('failed', 'exit code 1, see above'),
        'busy': ('too busy to judge', 'busy: not judged'),
        'hanging': ('failed', 'ended, since it took longer than 2 s'),
        'refusing': ('failed', 'exit code 2, see above'),
        'gpu_check': ('skipped', 'exit code 2, see above'),
    }
    # their own tables and errors are seen, too
    assert said.out.startswith('# Good\n\n')
    assert 'RuntimeError: no such pipeline' in said.err
    last_line = said.out.splitlines()[-1]
    counts = '1 passed, 4 failed, 1 too busy to judge, 1 skipped'
    assert last_line.startswith(f'bench-quick: {counts}, in ')


@pytest.mark.parametrize(
    ('names', 'code'),
    [('good,gpu_check', 0), ('good,busy', 3), ('busy,missing', 1)],
)
def test_the_exit_code_is_that_of_the_worst_benchmark(planted, names, code):
    assert quick.main(['--only', names]) == code


def test_a_name_that_is_none_is_refused(planted, capsys):
    with pytest.raises(SystemExit, match='2'):
        quick.main(['--only', 'good,better'])
    assert "found ['better']" in capsys.readouterr().err
