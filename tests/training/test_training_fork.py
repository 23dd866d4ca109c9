"""The maintained fork of MMEngine, from its wheel, under the tests of start-up."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORK = 'onedl-mmengine==0.10.12'


@pytest.mark.slow
def test_the_fork_is_measured_as_mmengine_is(tmp_path):
    pip = [sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps']
    subprocess.run([*pip, FORK, '--dest', str(tmp_path)], check=True, timeout=120)
    (wheel,) = tmp_path.glob('*.whl')
    site = tmp_path / 'site'
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    tests = Path(__file__).with_name('test_training_before_workers.py')
    code = (
        'import sys, mmengine, pytest\n'
        'assert mmengine.__file__.startswith(sys.argv[1]), mmengine.__file__\n'
        "sys.exit(pytest.main(['-q', '-k', 'fork-Runner', *sys.argv[2:]]))\n"
    )
    done = subprocess.run(
        [sys.executable, '-c', code, str(site), str(tests)],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join([str(site), str(ROOT)])},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
