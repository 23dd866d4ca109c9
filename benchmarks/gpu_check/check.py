"""Checks on a CUDA machine what no CPU can show, and prints one table.

    python -m benchmarks.gpu_check [--output FILE] [--only NAME ...]

Needs torch with CUDA, mmengine and this package; a detector of torchvision or
MMDetection is trained when one can be imported. Takes about two minutes. Exits 0
when every target is met, 1 when one is missed, 2 without CUDA, and 3 when strangers
used the machine and a target was missed. Nothing is installed or left behind.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.gpu_check.table import (
    EXIT_NO_CUDA,
    Row,
    excuse,
    exit_code,
    render_markdown,
    render_text,
    skipped,
    summarise,
)

BUSY_PCT = 4.0
"""Of the machine's CPUs, or of the GPU, in use by strangers: too busy to judge."""

Check = Callable[[], 'list[Row]']


def checks() -> dict[str, Check]:
    """The checks by name, in the order in which they run."""
    from benchmarks.gpu_check import events, mapping, nvml, training

    return {
        'nvml': nvml.check_nvml,
        'mapping': mapping.check_mapping,
        'idle': events.check_idle,
        'cost': events.check_cost,
        'peaks': training.check_peaks,
        'losses': training.check_losses,
    }


NAMES = ('nvml', 'mapping', 'idle', 'cost', 'peaks', 'losses')


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


def read_strangers() -> str | None:
    """Who else uses the machine, measured for a second before we do anything."""
    import psutil

    from benchmarks.gpu_check.nvml import read_gpu_util

    psutil.cpu_percent(None)
    time.sleep(1.0)
    found = []
    cpu_pct = psutil.cpu_percent(None)
    if cpu_pct > BUSY_PCT:
        found.append(f'{cpu_pct:.0f} % of the CPUs')
    gpu_pct = read_gpu_util()
    if gpu_pct is not None and gpu_pct > BUSY_PCT:
        found.append(f'{gpu_pct:.0f} % of the GPU')
    return ' and '.join(found) or None


def run_checks(chosen: dict[str, Check]) -> list[Row]:
    """Run them one after the other; one that breaks is a missed row."""
    rows = []
    for name, check in chosen.items():
        print(f'gpu-check: {name} ...', file=sys.stderr, flush=True)
        try:
            rows += check()
        except Exception as error:  # noqa: BLE001, the other rows are still wanted
            text = ' '.join(str(error).split())
            rows.append(
                Row(name, f'{type(error).__name__}', 'no error', 'missed', text, False)
            )
    return rows


def describe_machine(strangers: str | None) -> list[tuple[str, str]]:
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
        ('strangers', strangers or f'none (below {BUSY_PCT:.0f} %)'),
    ]


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; ends the process when it is wrong, as argparse does."""
    parser = argparse.ArgumentParser(prog='gpu_check', description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        '--output', type=Path, metavar='FILE', help='write the table as markdown too'
    )
    parser.add_argument(
        '--only',
        nargs='+',
        choices=NAMES,
        metavar='NAME',
        default=list(NAMES),
        help=f'run only these of: {", ".join(NAMES)}',
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code."""
    arguments = parse_arguments(argv)
    reason = why_no_cuda()
    if reason is not None:
        print(reason, file=sys.stderr)
        return EXIT_NO_CUDA
    # cuBLAS reads it when it starts; without it, two trainings may differ
    os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
    strangers = read_strangers()
    rows = run_checks({n: c for n, c in checks().items() if n in arguments.only})
    left_out = [name for name in NAMES if name not in arguments.only]
    rows += [skipped(name, 'left out by --only') for name in left_out]
    rows = excuse(rows, strangers)
    machine = describe_machine(strangers)
    print('\n'.join(f'{name}: {value}' for name, value in machine), end='\n\n')
    print(render_text(rows), end='\n\n')
    if arguments.output is not None:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(render_markdown(rows, machine), encoding='utf-8')
    print(summarise(rows))
    return exit_code(rows)
