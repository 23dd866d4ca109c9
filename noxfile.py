"""Nox sessions of ``make dist`` (tries the wheel) and ``make matrix`` (tries versions).

``make dist``: each Python of ``PYTHONS`` that is on the machine gets the wheel twice,
with the newest and with the lowest requirements that ``setup.py`` allows. Nothing else
is installed: what a command imports and the wheel does not require fails here.

``make matrix``: each stack of ``benchmarks/matrix.py`` gets this checkout, and some of
the tests train in it. The table is kept where ``--output`` is given.
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
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import nox
from nox.command import CommandFailed

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from benchmarks import matrix  # noqa: E402
from benchmarks.markdown import render_table  # noqa: E402

PYTHONS = os.environ.get('PYTHONS', '3.9 3.10 3.11 3.12 3.13').split()
PIP_FLAGS = shlex.split(os.environ.get('PIP_FLAGS', ''))
ROWS = ROOT / '.nox' / 'rows'
KEPT = ROOT / 'benchmarks' / 'results' / 'dist.md'
MATRIX_ROWS = ROOT / '.nox' / 'matrix'
"""Folder that keeps the result rows of ``make matrix`` until they are measured anew."""
MATRIX_KEPT = KEPT.with_name('matrix.md')
UNTRIED = 'not tried'
"""Text in place of a result for packages that ``make matrix`` has not tried here."""
GOLDEN = ROOT / 'tests' / 'golden'
SHOWN = ('click', 'numpy', 'msgspec', 'scipy', 'rich')
"""Requirements whose installed versions are columns of ``make dist``'s table."""

LOG = 'RuntimeError: DataLoader worker (pid 4123) is killed by signal: Killed.\n'
READ_VERSIONS = """\
import importlib.metadata, json, platform
installed = importlib.metadata.distributions()
found = {each.metadata['Name'].lower(): each.version for each in installed}
print(json.dumps({**found, 'python': platform.python_version()}))
"""

STARTS = ROOT / 'tests' / 'slurm' / 'starts.json'
"""Recorded environment and CPU limits of tasks that SLURM started in several ways."""

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
"""Python code that prints the SLURM starts with a wrong number of usable cores."""

nox.options.default_venv_backend = 'venv'
nox.options.sessions = ['wheel', 'table']


def find_python(version: str) -> Path | None:
    """Returns the path of a Python version's interpreter; ``None`` if it is not found.

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
MATRIX_ROWS.mkdir(parents=True, exist_ok=True)
# where nox looks for them
os.environ['PATH'] = os.pathsep.join(
    [*(str(path.parent) for path in FOUND.values()), os.environ['PATH']]
)


@nox.session(python=list(FOUND))
@nox.parametrize('requirements', ['newest', 'lowest'])
def wheel(session: nox.Session, requirements: str) -> None:
    """Nox session: installs the wheel alone, and runs the README's first commands."""
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
    """Installs the wheel with the lowest available version of each requirement."""
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
    """Runs the commands that need no training; yields the names of failing ones."""
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
    """Copies a recorded run with its config to a folder."""
    shutil.copytree(GOLDEN / case, folder)
    for path in folder.rglob('*.jsonl'):
        path.write_text(path.read_text().replace('@CASE@', str(folder)))


def is_answered(
    session: nox.Session, words: list[str], codes: list[int], expected: dict[str, Any]
) -> bool:
    """True if ``mmgpu`` exits with an expected code and prints the expected JSON.

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
    """Returns a table row without versions, for a Python that could not be tried."""
    return [version, requirements, *('' for _ in SHOWN), reason]


@nox.session(python=False)
def table(session: nox.Session) -> None:
    """Nox session: prints the results of trying the wheel; ``--output`` keeps them."""
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
            '`report`, `why --log`; and the cores of '
            f'{len(json.loads(STARTS.read_text()))} recorded starts under SLURM.',
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


def choose_python(stack: matrix.Stack) -> str | None:
    """Returns the preferred installed Python for a set of packages, or ``None``."""
    return next((version for version in stack.pythons if version in FOUND), None)


def read_row(name: str, part: str) -> matrix.Row:
    """Returns the last stored row of the matrix, or a row that says what is missing."""
    path = MATRIX_ROWS / f'{name}-{part}.json'
    if path.is_file():
        return matrix.Row(**json.loads(path.read_text()))
    is_here = choose_python(matrix.STACKS[name]) is not None
    problem = UNTRIED if is_here else 'no such Python here'
    return matrix.Row(name, part, problem=problem)


def keep_row(row: matrix.Row) -> None:
    """Stores a result row of ``make matrix`` as a JSON file."""
    path = MATRIX_ROWS / f'{row.name}-{row.part}.json'
    path.write_text(json.dumps(asdict(row)))


@nox.session
@nox.parametrize(
    'python,name',
    [
        nox.param(python, name, id=name)
        for name, stack in matrix.STACKS.items()
        if (python := choose_python(stack))
    ],
)
def stack(session: nox.Session, name: str) -> None:
    """Nox session: installs a set of package versions and runs its test trainings."""
    tried = matrix.STACKS[name]
    parts = [part for found, part in matrix.PARTS if found == name]
    today = str(datetime.date.today())
    for part in parts:
        keep_row(matrix.Row(name, part, date=today, problem='not installed'))
    session.install('--quiet', *PIP_FLAGS, *tried.packages)
    ours = f'{ROOT}[metric]' if tried.detection else str(ROOT)
    tools = ('pytest>=8', 'pytest-timeout', '-e', ours)
    session.install('--quiet', *PIP_FLAGS, *tools)
    session.install('--quiet', *PIP_FLAGS, '--no-deps', *tried.openmmlab)
    failed = []
    for part in parts:
        if part == matrix.DETECTION:
            install_detection(session, tried)
        row = train(session, name, part)
        keep_row(row)
        failed += row.unexpected or ([] if row.passed else [f'no test of {part}'])
    # up to 6 GB each
    shutil.rmtree(session.virtualenv.location)
    if failed:
        session.error(f'these failed, see above: {", ".join(failed)}')


def install_detection(session: nox.Session, tried: matrix.Stack) -> None:
    """Installs MMDetection, and MMCV with its operators compiled for the CPU."""
    first, *_ = tried.detection
    if first.endswith('.sh'):
        script = str(ROOT / first)
        location = session.virtualenv.location
        session.run('sh', script, location, *PIP_FLAGS, external=True)
        return
    compiling = {
        'MMCV_WITH_OPS': '1',
        'FORCE_CPU': '1',
        'MAX_JOBS': '2',
        'CUDA_VISIBLE_DEVICES': '',
        # no debugging symbols, which take half of the compiler's time
        'CFLAGS': '-g0 -O1',
        'CXXFLAGS': '-g0 -O1',
    }
    mmcv, detection = tried.detection
    options = ('--quiet', *PIP_FLAGS, '--no-deps', '--no-build-isolation')
    with tempfile.TemporaryDirectory() as folder:
        script = str(ROOT / 'requirements' / 'build_mmcv.py')
        session.run('python', script, mmcv, folder, *PIP_FLAGS, env=compiling)
        (built,) = Path(folder).glob('*.whl')
        session.install(*options, str(built))
    session.install(*options, detection)


def train(session: nox.Session, name: str, part: str) -> matrix.Row:
    """Runs one group of test trainings; returns their result as a table row.

    What fails is tried once more, alone: some tests compare times.
    """
    versions = json.loads(session.run('python', '-c', READ_VERSIONS, silent=True))
    first = found = run_tests(session, matrix.TESTS[part])
    if first.failed:
        found = run_tests(session, list(map(matrix.name_path, first.failed)))
    retried = [test for test in first.failed if test in found.passed]
    return matrix.Row(
        name,
        part,
        versions=versions,
        passed=len(first.passed) + len(retried),
        failed=found.failed if first.failed else [],
        retried=retried,
        # asdict makes pairs of the keys of a Counter
        skipped=dict(Counter(first.skipped.values())),
        minutes=first.seconds / 60,
        date=str(datetime.date.today()),
    )


def run_tests(session: nox.Session, tests: Sequence[str]) -> matrix.Report:
    """Runs tests, file by file, in the session's environment; returns a merged report.

    Each file in a process of its own: older versions of torch do not train in a process
    forked from one that has trained, and a crash costs one file.
    """
    files: dict[str, list[str]] = {}
    for test in tests:
        files.setdefault(test.partition('::')[0], []).append(test)
    return matrix.merge([run_file(session, *each) for each in files.items()])


def run_file(session: nox.Session, file: str, tests: Sequence[str]) -> matrix.Report:
    """Runs tests of one file in the session's environment; returns pytest's report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, 'report.xml')
        session.run(
            'python',
            '-m',
            'pytest',
            '-q',
            '-p',
            'no:cacheprovider',
            '-m',
            'not slow and not timing',
            '--junitxml',
            str(report),
            *tests,
            # 1 and 2: tests, or files of them, that failed; below 0: a signal
            success_codes=range(-64, 3),
            env={'CUDA_VISIBLE_DEVICES': ''},
        )
        if not report.is_file():
            return matrix.Report([], [Path(file).stem], {}, 0.0)
        return matrix.read_report(report)


@nox.session(python=False)
def matrix_table(session: nox.Session) -> None:
    """Nox session: prints the matrix of results; ``--output`` keeps it in the docs."""
    rows = [read_row(name, part) for name, part in matrix.PARTS]
    page = matrix.render_page(rows, f'{platform.system()} {platform.machine()}')
    print(page)
    if '--output' in session.posargs:
        untried = [f'{row.name}, {row.part}' for row in rows if row.problem == UNTRIED]
        if untried:
            # the kept table may have them, tried on another machine
            session.error(f'not kept, as these were not tried here: {untried}')
        MATRIX_KEPT.write_text(page)
        matrix.write_pages(rows, ROOT / 'docs')
