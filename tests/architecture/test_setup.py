"""Tests that MMCV is built from few joined source files, and shows its progress."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / 'requirements' / 'build_mmcv.py'
CSRC = 'mmcv/ops/csrc/pytorch'
FILES = (
    'nms.cpp',
    'roi_align.cpp',
    'carafe.cpp',
    'psamask.cpp',
    'pybind.cpp',
    'cpu/nms.cpp',
    'cpu/roi_align.cpp',
    'cpu/psamask.cpp',
    'cpu/bbox.cpp',
)
SETUP = f"""\
import glob, sys, time
from setuptools import setup
if 'bdist_wheel' in sys.argv:
    print('[1/2] c++ -c one.cpp', flush=True)
    time.sleep(1.5)
    print(glob.glob('{CSRC}/*.cpp') + glob.glob('{CSRC}/cpu/*.cpp'))
    for path in glob.glob('{CSRC}/joined_*.cpp'):
        print(open(path).read())
    if glob.glob('{CSRC}/fails.*'):
        print('fails.cpp:3:5: error: no such member')
        print(*['error: by pip ' + str(number) for number in range(20)], sep='\\n')
        sys.exit('error: this does not compile')
setup(name='mmcv', version='2.1.0')
"""


def write_source(folder: Path, names: tuple[str, ...]) -> None:
    """Writes an archive of MMCV-like sources, whose files only print their names."""
    texts = {f'{CSRC}/{name}': '' for name in names} | {'setup.py': SETUP}
    with tarfile.open(folder / 'mmcv-2.1.0.tar.gz', 'w:gz') as archive:
        for name, text in texts.items():
            entry = tarfile.TarInfo(f'mmcv-2.1.0/{name}')
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


@pytest.fixture
def build(tmp_path: Path):
    """Function that builds MMCV's archive; returns exit code and terminal output."""

    def run(*names: str) -> tuple[int, str]:
        write_source(tmp_path, names)
        command = [sys.executable, str(SCRIPT), 'mmcv==2.1.0', str(tmp_path / 'built')]
        command += ['--no-index', '--find-links', str(tmp_path)]
        ours, theirs = os.openpty()
        process = subprocess.Popen(command, stderr=theirs, stdout=theirs)
        os.close(theirs)
        shown = b''
        while True:
            try:
                read = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not read:
                break
            shown += read
        os.close(ours)
        return process.wait(), shown.decode()

    return run


def test_a_wheel_is_built_and_the_terminal_says_how_far_it_is(build, tmp_path):
    code, shown = build(*FILES)
    assert code == 0, shown
    assert '1 of 2 files' in shown
    # the line is gone when it is done, and so are scratch files and the log
    assert shown.endswith('\x1b[K')
    (wheel,) = (tmp_path / 'built').iterdir()
    assert wheel.name.startswith('mmcv-2.1.0-') and wheel.suffix == '.whl'


def test_each_file_is_compiled_once(build, tmp_path):
    """Tests that each file is compiled once, and that a failing build keeps its log."""
    (tmp_path / 'built').mkdir()
    (tmp_path / 'built' / 'build.log').write_text('error: an earlier build failed')
    code, shown = build(*FILES, 'fails.cpp')
    assert code != 0
    assert 'this does not compile' in shown
    # the compiler's own words, however much comes after them
    assert 'fails.cpp:3:5: error: no such member' in shown
    assert 'an earlier build' not in shown
    (log,) = (tmp_path / 'built').iterdir()
    assert str(log) in shown
    text = log.read_text()
    assert 'an earlier build' not in text
    seen = re.findall(rf"'{CSRC}/([\w/]+\.cpp)'", text)
    joined = [name for name in seen if name.startswith('joined_')]
    included = re.findall(rf'#include ".*?{CSRC}/([\w/]+)\.inc"', text)
    alone = set(seen) - set(joined)
    assert alone == {'cpu/roi_align.cpp', 'cpu/psamask.cpp'}
    assert len(joined) < len(included)
    compiled = Counter([*alone, *(f'{name}.cpp' for name in included)])
    assert compiled == Counter([*FILES, 'fails.cpp'])


PYTHON = """\
#!/bin/sh
# has torch and some MMCV, and builds at once
case "$*" in
*build_mmcv.py*) touch "$3/mmcv-2.1.0-py3-none-any.whl" ;;
*torch.__version__*) echo torch-2.13.0-cpython-311 ;;
*version_info*) exit 1 ;;
esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Copy of the Makefile and ``requirements/`` without installed packages."""
    shutil.copytree(ROOT / 'requirements', tmp_path / 'requirements')
    shutil.copy2(ROOT / 'Makefile', tmp_path)
    return tmp_path


def install_mmcv(clone: Path, venv: str, **environ: str) -> str:
    """Runs the set-up step of MMCV and returns its output."""
    python = clone / venv / 'bin' / 'python'
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    return subprocess.run(
        [clone / 'requirements' / 'install_mmcv.sh', clone / venv],
        env={'PATH': os.environ['PATH'], 'XDG_CACHE_HOME': str(clone), **environ},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def test_mmcv_is_compiled_anew_only_where_it_would_be_another(clone):
    assert install_mmcv(clone, 'first').startswith('Compiling')
    assert install_mmcv(clone, 'first') == ''
    assert install_mmcv(clone, 'second').startswith('Took mmcv==')
    assert install_mmcv(clone, 'first', CXXFLAGS='-O3').startswith('Compiling')
    with (clone / 'requirements' / 'build_mmcv.py').open('a') as script:
        script.write('# joins the files in another way\n')
    assert install_mmcv(clone, 'second').startswith('Compiling')
    assert install_mmcv(clone, 'first').startswith('Took mmcv==')


@pytest.mark.skipif(shutil.which('make') is None, reason='make runs the set-up')
@pytest.mark.parametrize('name', ['mminstall.txt', 'install_mmcv.sh', 'build_mmcv.py'])
def test_make_knows_what_the_step_of_mmcv_is_made_from(clone, name):
    (clone / '.venv').mkdir()
    for stamp in ('.python', '.requirements', '.mmcv'):
        (clone / '.venv' / stamp).touch()
    asked = ['make', '--question', '.venv/.mmcv']
    assert subprocess.run(asked, cwd=clone).returncode == 0
    changed = [*asked, f'--what-if=requirements/{name}']
    assert subprocess.run(changed, cwd=clone).returncode == 1
