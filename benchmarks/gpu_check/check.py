"""Checks on a CUDA machine what no CPU can show, and prints one table.

    python -m benchmarks.gpu_check [--output FILE] [--only NAME ...]

Needs torch with CUDA, and numpy. A check that needs another package (mmengine, psutil,
nvidia-ml-py) is skipped where that is missing; a folder that holds it may be named in
PYTHONPATH. A detector of torchvision or MMDetection is trained when one can be
imported. Takes two minutes, as estimated without a card. Exits 0 when every target is
met, 1 when one is missed, 2 without CUDA, 3 when other processes used the machine and
a target was missed, and 4 when all was skipped. Only the table is left behind.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.gpu_check.table import (
    EXIT_NO_CUDA,
    MISSED,
    Row,
    excuse,
    exit_code,
    render_markdown,
    render_text,
    skipped,
    summarise,
)

BUSY_PCT = 4.0
"""Of the machine's CPUs, or of the GPU, in use by others: too busy to judge."""

RESULTS = Path(__file__).resolve().parents[1] / 'results' / 'gpu_check.md'

CHECKS = {
    'nvml': ('nvml', 'pynvml'),
    'mapping': ('mapping', 'pynvml'),
    'idle': ('events', 'torch'),
    'cost': ('events', 'torch'),
    'peaks': ('training', 'mmengine'),
    'losses': ('training', 'mmengine'),
}
"""In the order in which they run: the module of a check, and what it cannot do
without."""


def why_no_cuda() -> str | None:
    """One sentence on why nothing can be checked here; ``None`` when it can."""
    try:
        import torch
    except ImportError:
        return 'gpu-check needs torch with CUDA, and torch is not installed.'
    if not torch.backends.cuda.is_built():
        return (
            f'gpu-check needs a CUDA machine: this torch {torch.__version__} was '
            'built without CUDA.'
        )
    if not torch.cuda.is_available():
        return (
            f'gpu-check needs a CUDA machine: torch {torch.__version__} finds no GPU '
            'that it can use.'
        )
    return None


def read_other_load() -> tuple[str | None, list[Row]]:
    """Who else uses the machine, measured for a second before we do anything."""
    from benchmarks.gpu_check.nvml import read_gpu_util

    found, rows = [], []
    try:
        import psutil
    except ImportError:
        why = "needs psutil, which is not installed: others' use of the CPUs is unknown"
        rows.append(skipped('other load', why))
    else:
        psutil.cpu_percent(None)
        time.sleep(1.0)
        cpu_pct = psutil.cpu_percent(None)
        if cpu_pct > BUSY_PCT:
            found.append(f'{cpu_pct:.0f} % of the CPUs')
    gpu_pct = read_gpu_util()
    if gpu_pct is not None and gpu_pct > BUSY_PCT:
        found.append(f'{gpu_pct:.0f} % of the GPU')
    return ' and '.join(found) or None, rows


def run_check(name: str) -> list[Row]:
    """Run one check; it is skipped without its package, and missed when it breaks."""
    print(f'gpu-check: {name} ...', file=sys.stderr, flush=True)
    module, package = CHECKS[name]
    try:
        import_module(package)
        checks = import_module(f'benchmarks.gpu_check.{module}')
        rows: list[Row] = getattr(checks, f'check_{name}')()
        return rows
    except Exception as error:  # noqa: BLE001, the other rows are still wanted
        if isinstance(error, ModuleNotFoundError):
            missing = (error.name or '').partition('.')[0]
            if missing not in ('', 'benchmarks', 'mmgpu_hooks'):
                hint = ' (nvidia-ml-py)' if missing == 'pynvml' else ''
                why = f'needs {missing}{hint}, which is not installed'
                return [skipped(name, why)]
        text = ' '.join(str(error).split())
        return [Row(name, type(error).__name__, 'no error', MISSED, text, False)]


def describe_machine(other_load: str | None) -> list[tuple[str, str]]:
    """What the figures were measured on."""
    import torch

    from benchmarks.gpu_check.nvml import read_driver_version

    def of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return 'not installed'

    names = [
        torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())
    ]
    packages = ('mmengine', 'onedl-mmengine', 'mmdet', 'torchvision', 'nvidia-ml-py')
    found = [f'{name} {of(name)}' for name in packages if of(name) != 'not installed']
    return [
        ('date', datetime.datetime.now().astimezone().isoformat(timespec='minutes')),
        ('GPUs', ', '.join(names)),
        ('driver', read_driver_version() or 'unknown'),
        ('CPUs', f'{os.cpu_count()} ({platform.machine()})'),
        ('Python', platform.python_version()),
        ('torch', f'{torch.__version__} with CUDA {torch.version.cuda}'),
        ('packages', ', '.join(found)),
        ('other load', other_load or f'none seen above {BUSY_PCT:.0f} %'),
    ]


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; ends the process when it is wrong, as argparse does."""
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
        nargs='+',
        choices=list(CHECKS),
        metavar='NAME',
        default=list(CHECKS),
        help=f'run only these of: {", ".join(CHECKS)}',
    )
    arguments = parser.parse_args(argv)
    if arguments.output is None and set(arguments.only) == set(CHECKS):
        arguments.output = RESULTS
    if arguments.output is not None and arguments.output.is_dir():
        # before minutes are spent
        found = f'found {arguments.output} (a folder)'
        parser.error(f'argument --output: expected a file to write, {found}')
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code."""
    arguments = parse_arguments(argv)
    reason = why_no_cuda()
    if reason is not None:
        print(reason, file=sys.stderr)
        return EXIT_NO_CUDA
    # cuBLAS reads it when it starts; without it, two trainings may differ
    os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    other_load, rows = read_other_load()
    unknown = next((row.note for row in rows), None)
    left_out = [name for name in CHECKS if name not in arguments.only]
    for name in CHECKS:
        if name not in left_out:
            rows += run_check(name)
    rows += [skipped(name, 'left out by --only') for name in left_out]
    rows = excuse(rows, other_load)
    machine = describe_machine(other_load or unknown)
    print('\n'.join(f'{name}: {value}' for name, value in machine), end='\n\n')
    print(render_text(rows), end='\n\n')
    if arguments.output is not None:
        try:
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            arguments.output.write_text(render_markdown(rows, machine))
        except OSError as error:  # a checkout that is read-only
            print(f'gpu-check: the table was not kept: {error}', file=sys.stderr)
    print(summarise(rows))
    return exit_code(rows)
