"""The maintained fork of MMEngine, from its wheel and in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORK = 'onedl-mmengine==0.10.12'


@pytest.mark.slow
def test_the_fork_is_measured_as_mmengine_is(tmp_path: Path) -> None:
    pip = [sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps']
    subprocess.run([*pip, FORK, '--dest', str(tmp_path)], check=True, timeout=120)
    (wheel,) = tmp_path.glob('*.whl')
    site = tmp_path / 'site'
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    paths = [str(site), str(ROOT), str(ROOT / 'tests')]
    done = subprocess.run(
        [sys.executable, '-m', 'training.forked', str(tmp_path / 'runs')],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found['mmengine'].startswith(str(site))
    for loop in ('epoch', 'iter'):
        assert found[loop]['is_same']
        assert found[loop]['off'] == []
        assert {'LoggerHook', 'RuntimeInfoHook'} <= set(found[loop]['hooks'])
        assert set(found[loop]['sources']) == {'inside'}
