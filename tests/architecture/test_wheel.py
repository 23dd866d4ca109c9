"""What users install is the wheel, so the wheel is what is tried."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope='module')
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('wheel')
    source = folder / 'source'
    source.mkdir()
    # out of the checkout, so that nothing of a build is left in it
    for name in ('mmgpu_hooks', 'setup.py', 'pyproject.toml', 'README.md', 'LICENSE'):
        (source / name).symlink_to(ROOT / name)
    command = [sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-deps']
    command += ['--no-build-isolation', '--wheel-dir', str(folder), str(source)]
    subprocess.run(command, check=True)
    return next(folder.glob('*.whl'))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split('/')[0] for name in names}
    assert {top for top in tops if not top.endswith('.dist-info')} == {'mmgpu_hooks'}
    sources = {str(p.relative_to(ROOT)) for p in (ROOT / 'mmgpu_hooks').rglob('*.py')}
    assert sources <= set(names)
    data = {'py.typed', 'show/page.html', 'show/page.css'}
    assert {f'mmgpu_hooks/{name}' for name in data} <= set(names)


def test_the_wheel_requires_no_training_framework(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith('/METADATA'))
        metadata = archive.read(name).decode()
    lines = metadata.splitlines()
    required = {
        line.split(': ')[1].split('>')[0].split('<')[0].strip()
        for line in lines
        if line.startswith('Requires-Dist') and 'extra ==' not in line
    }
    # SciPy comes with MMDetection too
    assert required == {
        *('nvidia-ml-py', 'psutil', 'msgspec', 'numpy', 'scipy', 'click'),
        *('rich', 'jinja2', 'packaging'),
    }
    assert 'Requires-Python: >=3.9' in lines


def test_the_installed_wheel_runs(wheel: Path, tmp_path: Path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, '-m', 'mmgpu_hooks', 'explain', 'MG101'],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith('MG101')
