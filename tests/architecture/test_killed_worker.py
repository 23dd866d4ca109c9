"""Tests that one killed worker of the test suite costs one test, and no hang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
KILLED = """\
import os, signal
def test_before(): pass
def test_killed(): os.kill(os.getpid(), signal.SIGKILL)
def test_after(): pass
"""
ONE = 'def test_one(): pass\n'


def test_what_is_left_of_a_killed_worker_is_tested(tmp_path):
    for number in range(12):
        (tmp_path / f'test_{number}.py').write_text(ONE if number != 5 else KILLED)
    (tmp_path / 'conftest.py').write_text("pytest_plugins = ['fakes.file_scheduling']")
    (tmp_path / 'pytest.ini').write_text('[pytest]\n')
    options = ['-n', '2', '--dist', 'loadfile', '-p', 'no:cacheprovider']
    ended = subprocess.run(
        [sys.executable, '-m', 'pytest', '-q', *options],
        cwd=tmp_path,
        env={'PYTHONPATH': str(TESTS), 'PATH': ''},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert '1 failed, 13 passed' in ended.stdout, ended.stdout + ended.stderr
    assert "crashed while running 'test_5.py::test_killed'" in ended.stdout
    assert ended.returncode == 1
