"""Tests the built wheel: its metadata and its files."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

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
    files = {
        str(path.relative_to(ROOT))
        for path in (ROOT / 'mmgpu_hooks').rglob('*')
        # what Python compiles, and the template that "make messages" leaves
        if path.is_file() and path.suffix not in ('.pyc', '.pot')
    }
    assert 'mmgpu_hooks/show/page.css' in files
    assert files <= set(names)


def read_metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith('/METADATA'))
        return archive.read(name).decode()


def test_the_wheel_requires_no_training_framework(wheel: Path):
    lines = read_metadata(wheel).splitlines()
    required = {
        line.split(': ')[1].split('>')[0].split('<')[0].strip()
        for line in lines
        if line.startswith('Requires-Dist') and 'extra ==' not in line
    }
    # SciPy comes with MMDetection too
    assert required == {
        'nvidia-ml-py',
        'psutil',
        'msgspec',
        'numpy',
        'scipy',
        'click',
        'rich',
        'jinja2',
        'packaging',
    }
    assert 'Requires-Python: >=3.9' in lines


def test_an_index_can_show_the_metadata(wheel: Path):
    """Tests that the wheel's metadata can be shown by PyPI."""
    head, readme = read_metadata(wheel).split('\n\n', 1)
    fields = head.splitlines()
    assert 'License-Expression: Apache-2.0' in fields
    assert not any(field.startswith('Classifier: License') for field in fields)
    assert {f'Provides-Extra: {name}' for name in ('plots', 'dask', 'metric')} <= {
        *fields
    }
    assert [field for field in fields if field.startswith('Project-URL')] == []
    assert readme.startswith('# mmgpu_hooks')
    assert re.findall(r'\]\((?!https://|#)', readme) == []
    assert '`docs/en/why.md`' in readme


@pytest.fixture
def packaging(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Names that ``setup.py`` defines when it is run without building anything."""
    monkeypatch.setattr('setuptools.setup', lambda **_: None)
    return runpy.run_path(str(ROOT / 'setup.py'))


@pytest.mark.parametrize(
    ('address', 'text', 'shown'),
    [
        ('', 'a [page](docs/a.md), b', 'a page (`docs/a.md`), b'),
        ('', '[part](docs/a.md#b-c)', 'part (`docs/a.md`)'),
        ('', 'a\n([page](docs/a.md)). b', 'a\n(page: `docs/a.md`). b'),
        ('', 'a\n\nA picture:\n\n![p](docs/a.png)\n\nb', 'a\n\nb'),
        ('', 'a\nof two:\n\n![p](docs/a.png)\n\nb', 'a\n\nb'),
        ('', 'a [page](https://b.org/c) [d](#e)', 'a [page](https://b.org/c) [d](#e)'),
        ('https://b.org/c', '[d](e.md)', '[d](https://b.org/c/blob/v1.2/e.md)'),
        ('https://b.org/c', '[d](e.md#f)', '[d](https://b.org/c/blob/v1.2/e.md#f)'),
        ('https://b.org/c', '![d](e.png)', '![d](https://b.org/c/raw/v1.2/e.png)'),
        ('https://b.org/c', '[d](https://e.org)', '[d](https://e.org)'),
    ],
)
def test_the_readme_of_an_index_has_no_relative_link(packaging, address, text, shown):
    assert packaging['render_readme'](text, address, '1.2') == shown


def test_project_links_lead_to_the_public_address(packaging):
    urls = packaging['list_project_urls']('https://b.org/c', '1.2')
    assert urls['Changelog'] == 'https://b.org/c/blob/v1.2/CHANGELOG.md'
    assert packaging['list_project_urls']('', '1.2') == {}


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
