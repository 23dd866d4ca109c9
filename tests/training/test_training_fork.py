"""Tests trainings with the maintained fork of MMEngine."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORK = 'onedl-mmengine==0.10.12'


CODE = (
    'import sys, mmengine, pytest\n'
    'assert mmengine.__file__.startswith(sys.argv[1]), mmengine.__file__\n'
    "sys.exit(pytest.main(['-q', '-k', *sys.argv[2:]]))\n"
)


@pytest.fixture(scope='module')
def site(tmp_path_factory) -> Path:
    """Folder with the unpacked fork of MMEngine."""
    folder = tmp_path_factory.mktemp('fork')
    pip = [sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps']
    subprocess.run([*pip, FORK, '--dest', str(folder)], check=True, timeout=120)
    (wheel,) = folder.glob('*.whl')
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / 'site')
    return folder / 'site'


CASES = {
    'workers are met before they start': (
        'training/test_training_before_workers.py',
        'fork-Runner',
    ),
    'what skips by itself is left alone': (
        'optimize/test_resume.py',
        'skips_by_itself',
    ),
    'workers change while it trains': (
        'training/test_training_tuned.py',
        'what_is_trained_stays_the_same or resumed_run_begins_with_what_was_found',
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize('case', CASES)
def test_the_fork_is_measured_as_mmengine_is(site, case):
    name, chosen = CASES[case]
    tests = Path(__file__).parents[1] / name
    done = subprocess.run(
        [sys.executable, '-c', CODE, str(site), chosen, str(tests)],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join([str(site), str(ROOT)])},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert 'passed' in done.stdout
