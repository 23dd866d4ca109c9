"""Tries the built wheel in bare virtual environments: ``make dist`` runs this.

Each Python of ``PYTHONS`` that is on the machine gets the wheel twice, with the newest
and with the lowest requirements that ``setup.py`` allows. Nothing else is installed:
what a command imports and the wheel does not require fails here.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nox
from nox.command import CommandFailed

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from benchmarks.markdown import render_table  # noqa: E402

PYTHONS = os.environ.get('PYTHONS', '3.9 3.10 3.11 3.12 3.13').split()
PIP_FLAGS = shlex.split(os.environ.get('PIP_FLAGS', ''))
ROWS = ROOT / '.nox' / 'rows'
KEPT = ROOT / 'benchmarks' / 'results' / 'dist.md'
GOLDEN = ROOT / 'tests' / 'golden'
SHOWN = ('click', 'numpy', 'msgspec', 'scipy', 'rich')
"""Requirements whose versions the table shows."""

LOG = 'RuntimeError: DataLoader worker (pid 4123) is killed by signal: Killed.\n'
READ_VERSIONS = """\
import importlib.metadata, json, platform
installed = importlib.metadata.distributions()
found = {each.metadata['Name'].lower(): each.version for each in installed}
print(json.dumps({**found, 'python': platform.python_version()}))
"""

STARTS = ROOT / 'tests' / 'slurm' / 'starts.json'
"""How SLURM started tasks, with the cores that they have."""

READ_STARTS = """\
import json, sys
from pathlib import Path
from mmgpu_hooks.measure.host import read_host_limits
nowhere = Path('/nowhere')
for name, row in json.load(open(sys.argv[1])).items():
    host = read_host_limits(
        ranks_on_host=row['ranks'], proc=nowhere, sys=nowhere, environ=row['environ'],
        affinity=lambda: frozenset(range(row['affinity'])), cpu_count=lambda: 2)
    if (host.usable_cores, host.mended_cores) != (row['usable'], row.get('mended')):
        print(name, host.usable_cores, host.mended_cores)
"""
"""Prints the starts whose cores are wrong."""

nox.options.default_venv_backend = 'venv'


def find_python(version: str) -> Path | None:
    """Find an interpreter such as 3.12, on ``PATH``, our own or among pyenv's.

    One that does not run (a shim of pyenv's) or cannot make virtual environments is
    passed over.
    """
    root = Path(os.environ.get('PYENV_ROOT', Path.home() / '.pyenv'))
    name = f'python{version}'
    on_path = [Path(folder, name) for folder in os.get_exec_path()]
    of_pyenv = sorted(root.glob(f'versions/{version}*/bin/{name}'), reverse=True)
    own = Path(sys.base_prefix, 'bin', name)
    for path in (*on_path, own, *of_pyenv):
        if path.is_file():
            command = [str(path), '-c', 'import ensurepip, venv']
            if subprocess.run(command, capture_output=True).returncode == 0:
                return path
    return None


FOUND = {version: path for version in PYTHONS if (path := find_python(version))}
ROWS.mkdir(parents=True, exist_ok=True)
# where nox looks for them
os.environ['PATH'] = os.pathsep.join(
    [*(str(path.parent) for path in FOUND.values()), os.environ['PATH']]
)


@nox.session(python=list(FOUND))
@nox.parametrize('requirements', ['newest', 'lowest'])
def wheel(session: nox.Session, requirements: str) -> None:
    """Install the wheel alone, and type the first commands of the README."""
    (path,) = (ROOT / 'dist').glob('*.whl')
    kept = ROWS / f'{session.python}-{requirements}.json'
    kept.write_text(json.dumps(blank(session.python, requirements, 'not installed')))
    if requirements == 'newest':
        session.install('--quiet', *PIP_FLAGS, str(path))
    else:
        install_lowest(session, path)
    versions = json.loads(session.run('python', '-c', READ_VERSIONS, silent=True))
    failed = list(try_commands(session))
    row = [versions['python'], requirements, *(versions[name] for name in SHOWN)]
    row.append(f'failed: {", ".join(failed)}' if failed else 'work')
    kept.write_text(json.dumps(row))
    # 200 MB each
    shutil.rmtree(session.virtualenv.location)
    if failed:
        session.error(f'these failed, see above: {", ".join(failed)}')


def install_lowest(session: nox.Session, path: Path) -> None:
    """Install the wheel, and of each requirement the lowest that has a wheel here."""
    (found,) = importlib.metadata.distributions(path=[str(path)])
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder, 'requirements.txt')
        listed.write_text('\n'.join(found.requires or []))
        session.run(
            sys.executable,
            '-m',
            'uv',
            'pip',
            'install',
            '--quiet',
            '--python',
            session.virtualenv.location,
            '--no-python-downloads',
            '--resolution',
            'lowest-direct',
            '--only-binary',
            ':all:',
            *PIP_FLAGS,
            '-r',
            str(listed),
            str(path),
            external=True,
        )


def try_commands(session: nox.Session) -> Iterator[str]:
    """Type the commands that need no training; the names of those that fail."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in ('compute_bound', 'no_workers'):
            lay_out(case, folder / case)
        (folder / 'slurm.out').write_text(LOG)
        page = folder / 'report.html'
        changes = {'verdict': 'data_bound_workers', 'changes': 2}
        for words, codes, expected in (
            (['--help'], [0], {}),
            # 1: something is wrong with this machine
            (['doctor'], [0, 1], {}),
            (['recommend', 'compute_bound/run'], [0], {'verdict': 'compute_bound'}),
            # the answer is there; the config is not written, as MMEngine is not here
            (['recommend', 'no_workers/run'], [2], changes),
            (['report', 'no_workers/run', '-o', str(page)], [0], {}),
            (['why', '--log', 'slurm.out'], [0], {'cause': 'oom_host'}),
        ):
            with session.chdir(folder):
                if not is_answered(session, words, codes, expected):
                    yield f'mmgpu {words[0]}'
        if not page.is_file() or 'Data-bound' not in page.read_text():
            yield 'the page of mmgpu report'
    wrong = session.run('python', '-c', READ_STARTS, str(STARTS), silent=True)
    if wrong:
        session.warn(wrong)
        yield 'the cores under SLURM'


def lay_out(case: str, folder: Path) -> None:
    """Copy a recorded run, whose config lies beside it."""
    shutil.copytree(GOLDEN / case, folder)
    for path in folder.rglob('*.jsonl'):
        path.write_text(path.read_text().replace('@CASE@', str(folder)))


def is_answered(
    session: nox.Session, words: list[str], codes: list[int], expected: dict[str, Any]
) -> bool:
    """True if ``mmgpu`` ends with an exit code, and its JSON holds what is expected.

    A list is expected by its length, the verdict by its name.
    """
    asked = [*words, '--format', 'json'] if expected else words
    facts: dict[str, Any] = {}
    with tempfile.TemporaryFile('w+') as errors:
        try:
            out = session.run(
                'mmgpu', *asked, success_codes=codes, silent=True, stderr=errors
            )
            answer = json.loads(out) if expected else {}
            facts = {name: answer[name] for name in expected}
            has_ended = True
        except CommandFailed:
            has_ended = False
        errors.seek(0)
        said = errors.read()
    if 'verdict' in facts:
        facts['verdict'] = facts['verdict']['name']
    if 'changes' in facts:
        facts['changes'] = len(facts['changes'])
    if has_ended and facts == expected and 'Traceback' not in said:
        return True
    session.warn(f'mmgpu {" ".join(words)}: {facts}, expected {expected}; {said}')
    return False


def blank(version: str, requirements: str, reason: str) -> list[str]:
    """Make the row of a try that has no figures."""
    return [version, requirements, *('' for _ in SHOWN), reason]


@nox.session(python=False)
def table(session: nox.Session) -> None:
    """Print what was installed and worked; keep it where ``--output`` is given."""
    header = ('Python', 'requirements', *SHOWN, 'commands')
    rows = []
    for version in PYTHONS:
        if version not in FOUND:
            rows.append(blank(version, '', 'no such Python here'))
        kept = (ROWS / f'{version}-{name}.json' for name in ('newest', 'lowest'))
        rows += [json.loads(path.read_text()) for path in kept if path.is_file()]
    (path,) = (ROOT / 'dist').glob('*.whl')
    page = '\n\n'.join(
        [
            '# The wheel in bare virtual environments',
            'Made by `make dist`. "Lowest" is the lowest version that `setup.py` '
            'allows and that has a wheel for that Python.\n'
            'The commands: `mmgpu --help`, `doctor`, `recommend` on two recorded runs, '
            '`report`, `why --log`.',
            render_table(header, rows),
            f'- date: {datetime.date.today()}\n'
            f'- wheel: {path.name}, {path.stat().st_size / 1000:.0f} kB\n'
            f'- system: {platform.system()} {platform.machine()}',
        ]
    )
    print(page)
    if not FOUND:
        session.error(f'the wheel was tried on no Python: none of {PYTHONS} is here')
    if '--output' in session.posargs:
        KEPT.write_text(page + '\n')
