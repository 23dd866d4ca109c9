"""``make gpu-check``: checks the package on a CUDA machine and prints a result table.

    python -m benchmarks.gpu_check [--only NAME,... | --long | --quick] [--wheels DIR]

Needs torch with CUDA, and no network. A check that needs another package (mmengine,
psutil, nvidia-ml-py) is skipped where that is missing: --wheels installs it from a
folder of wheels, for this run alone. The groups by default end within 9 minutes, as
estimated without a card; those of more worth come first. Exits 0 when every target is
met, 1 when one is missed, 2 without CUDA, 3 when other processes used the machine and
a target was missed, and 4 when all was skipped. Only the table is left behind.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.gpu_check.table import (
    BUSY,
    EXIT_NO_CUDA,
    MISSED,
    Row,
    exit_code,
    judged,
    render_page,
    skipped,
)

BUSY_PCT = 4.0
"""Load by other programs, in per cent of CPUs or GPU, above which a check is void."""
LIMIT_S = 9 * 60.0
"""Default time limit in seconds, after which no further group of checks starts."""

RESULTS = Path(__file__).resolve().parents[1] / 'results' / 'gpu_check.md'

STAGES = (
    ('nvml', 'pynvml', ('nvml',)),
    ('training', 'mmengine', ('sync', 'losses', 'cost', 'stalls', 'ema')),
    ('nvml', 'pynvml', ('waves',)),
    ('longer', 'mmengine', ('profile',)),
    ('host', 'mmengine', ('optimize', 'overhead')),
    ('alone', 'torch', ('locks', 'copies', 'allocators')),
    ('mapping', 'pynvml', ('mapping', 'namespace')),
    ('longer', 'mmengine', ('memory', 'ranks', 'compile')),
)
"""Groups of checks in running order, each with its module and required package."""
CHECKS = {name: (module, needs) for module, needs, names in STAGES for name in names}
LONG = STAGES[-1][-1]
QUICK = ('sync', 'copies', 'allocators')
"""Names of the checks of a quick run, which take 2 minutes in total."""
SURE = {'sync', 'losses', 'profile', 'optimize', 'allocators', 'mapping', *LONG}
"""Names of the checks whose result does not depend on other load on the machine."""


def why_no_cuda() -> str | None:
    """Returns why CUDA cannot be used here, as a sentence; ``None`` if it can."""
    try:
        import torch
    except ImportError:
        return 'gpu-check needs torch with CUDA, and torch is not installed.'
    if torch.cuda.is_available():
        return None
    is_built = torch.backends.cuda.is_built()
    why = 'finds no GPU that it can use' if is_built else 'was built without CUDA'
    return f'gpu-check needs a CUDA machine: torch {torch.__version__} {why}.'


def install_wheels(wheels: Path, folder: str) -> list[Row]:
    """Installs missing packages from wheels into a folder, and adds it to ``sys.path``.

    Args:
        wheels: Folder with ``.whl`` files.
        folder: Where to install to.

    Returns:
        A row for each that does not fit this Python.
    """
    rows, command = [], [sys.executable, '-m', 'pip', 'install', '--quiet']
    command += ['--no-index', '--no-deps', '--no-compile', '--target', folder]
    for wheel in sorted(wheels.glob('*.whl')):
        name = wheel.name.partition('-')[0]
        if version_of(name) is None:
            done = subprocess.run(
                [*command, str(wheel)], capture_output=True, text=True
            )
            if done.returncode:
                why = done.stderr.strip().splitlines() or ['pip says nothing']
                rows.append(skipped(f'wheel {name}', why[-1]))
    sys.path.insert(0, folder)
    before = os.environ.get('PYTHONPATH')
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, (folder, before)))
    return rows


def version_of(package: str) -> str | None:
    """Returns the version of an installed distribution; ``None`` if not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def read_other_load(gpu_pct: float | None) -> str:
    """Returns a text on other programs' load of CPUs and GPU; empty if it is low."""
    begin = read_cpu_ticks()
    time.sleep(1.0)
    idle, whole = (now - then for now, then in zip(read_cpu_ticks(), begin))
    shares_pct = {'CPUs': 100 * (1 - idle / whole), 'GPU': gpu_pct or 0.0}
    busy = {name: pct for name, pct in shares_pct.items() if pct > BUSY_PCT}
    return ' and '.join(f'{pct:.0f} % of the {name}' for name, pct in busy.items())


def read_cpu_ticks() -> tuple[int, int]:
    """Returns clock ticks of all CPUs since boot: idle ticks and all ticks."""
    ticks = [*map(int, Path('/proc/stat').read_text().split()[1:9])]
    return ticks[3] + ticks[4], sum(ticks)


def run_check(name: str, other_load: str) -> list[Row]:
    """Runs one check; a missing package skips the check, an exception fails it.

    Args:
        name: Of :data:`CHECKS`.
        other_load: What others use of the machine, which may have spoiled a row.
    """
    print(f'gpu-check: {name} ...', file=sys.stderr, flush=True)
    try:
        module, package = CHECKS[name]
        import_module(package)
        checks = import_module(f'benchmarks.gpu_check.{module}')
        rows: list[Row] = getattr(checks, f'check_{name}')()
    except Exception as error:  # noqa: BLE001, the other rows are still wanted
        missing = (getattr(error, 'name', '') or '').partition('.')[0]
        is_missing = isinstance(error, ModuleNotFoundError)
        if is_missing and missing not in ('', 'benchmarks', 'mmgpu_hooks'):
            hint = ' (nvidia-ml-py)' if missing == 'pynvml' else ''
            return [skipped(name, f'needs {missing}{hint}, which is not installed')]
        text = ' '.join(str(error).split())
        return [judged(name, type(error).__name__, 'no error', False, text)]
    if not other_load or name in SURE:
        return rows
    return [replace(r, verdict=BUSY) if r.verdict == MISSED else r for r in rows]


def describe_machine(driver: str | None, load: str) -> list[tuple[str, str]]:
    """Returns facts on this machine: date, GPUs, driver, package versions."""
    import torch

    names = map(torch.cuda.get_device_name, range(torch.cuda.device_count()))
    packages = ('mmengine', 'onedl-mmengine', 'mmdet', 'torchvision', 'nvidia-ml-py')
    found = [f'{name} {version_of(name)}' for name in packages if version_of(name)]
    return [
        ('date', datetime.datetime.now().astimezone().isoformat(timespec='minutes')),
        ('GPUs', ', '.join(names)),
        ('driver', driver or 'unknown'),
        ('CPUs', f'{os.cpu_count()} ({platform.machine()})'),
        ('Python', platform.python_version()),
        ('torch', f'{torch.__version__} with CUDA {torch.version.cuda}'),
        ('packages', ', '.join(found)),
        ('other load', load or f'none seen above {BUSY_PCT:.0f} %'),
    ]


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line; exits if an argument is wrong."""
    parser = argparse.ArgumentParser(prog='gpu_check', description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        '--output',
        nargs='?',
        type=Path,
        const=RESULTS,
        metavar='FILE',
        help='where to keep the table (default: benchmarks/results/gpu_check.md, and '
        'nowhere with --only)',
    )
    parser.add_argument(
        '--only',
        type=lambda text: text.split(','),
        metavar='NAME,...',
        help=f'run only these of: {", ".join(CHECKS)}',
    )
    parser.add_argument(
        '--long', action='store_true', help=f'run {", ".join(LONG)}, too'
    )
    parser.add_argument(
        '--quick',
        action='store_true',
        help=f'run only {", ".join(QUICK)}, and keep nothing',
    )
    parser.add_argument(
        '--wheels',
        type=Path,
        metavar='DIR',
        help='wheels of packages that may be missing, such as mmengine, addict, '
        'termcolor, yapf, platformdirs and msgspec',
    )
    arguments = parser.parse_args(argv)
    if arguments.quick:
        if arguments.only or arguments.long or arguments.output:
            parser.error('argument --quick: leave --only, --long and --output out')
        arguments.only = list(QUICK)
    unknown = set(arguments.only or ()) - set(CHECKS)
    if unknown:
        names = ', '.join(CHECKS)
        parser.error(f'argument --only: expected some of {names}; found {unknown}')
    if arguments.wheels and not any(arguments.wheels.glob('*.whl')):
        found = f'found none in {arguments.wheels}'
        parser.error(f'argument --wheels: expected .whl files, {found}')
    if arguments.only is None:
        arguments.output = arguments.output or RESULTS
        left_out = () if arguments.long else LONG
        arguments.only = [name for name in CHECKS if name not in left_out]
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``gpu_check`` and returns the exit code."""
    arguments = parse_arguments(argv)
    reason = why_no_cuda()
    if reason is not None:
        print(reason, file=sys.stderr)
        return EXIT_NO_CUDA
    # cuBLAS reads it when it starts; without it, two trainings may differ
    os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    with tempfile.TemporaryDirectory() as folder:
        rows = install_wheels(arguments.wheels, folder) if arguments.wheels else []
        return run_checks(arguments, rows)


def run_checks(arguments: argparse.Namespace, rows: list[Row]) -> int:
    """Runs the requested checks, then prints and stores the table of results."""
    begin_s = time.monotonic()
    try:
        before = import_module('benchmarks.gpu_check.nvml').describe_gpu()
        driver, gpu_pct = before.driver, before.util_pct
    except ImportError:
        driver = gpu_pct = None
    other_load = read_other_load(gpu_pct)
    for name in CHECKS:
        if name not in arguments.only:
            rows.append(skipped(name, 'left out; --only or --long runs it'))
        elif time.monotonic() - begin_s > LIMIT_S and not arguments.long:
            rows.append(skipped(name, f'{LIMIT_S / 60:.0f} minutes were over'))
        else:
            rows += run_check(name, other_load)
    page = render_page(rows, describe_machine(driver, other_load))
    print(page, end='')
    if arguments.output is not None:
        try:
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            arguments.output.write_text(page)
        except OSError as error:  # a checkout that is read-only
            print(f'gpu-check: the table was not kept: {error}', file=sys.stderr)
    return exit_code(rows)
