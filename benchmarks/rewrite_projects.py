"""Benchmark: rewrites configs of other OpenMMLab projects, and checks the results.

    python -m benchmarks.rewrite_projects [--projects NAME,...] [--wheels DIR] [--quick]
        [--output]

The wheels are fetched by ``pip download --no-deps`` into a temporary folder, and their
configs are unpacked. No project is installed or imported: a config is parsed by
MMEngine alone. The checks are those of ``rewrite``; the command line is read by
MMEngine's own ``DictAction``, as each project's ``tools/train.py`` reads it. About 25
minutes.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import shlex
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import DictAction

from benchmarks.harness import Benchmark, Figure, at_least, at_most, exactly, say
from benchmarks.markdown import render_table
from benchmarks.rewrite import MAX_REFUSED_PCT, QUICK_STEP, Tally, rewrite_all

PROJECTS: Mapping[str, str] = {
    'mmpretrain': '1.2.0',
    'mmsegmentation': '1.2.2',
    'mmpose': '1.3.2',
    'mmyolo': '0.6.0',
    'mmaction2': '1.2.0',
    'mmdet3d': '1.4.0',
}
"""Pinned wheel versions of OpenMMLab projects that ship their configs."""

PACKAGES = ('mmpretrain', 'mmseg', 'mmpose', 'mmyolo', 'mmaction', 'mmdet3d')
"""Import names of the projects' packages, which must not be imported."""

_CONFIGS = re.compile(r'\w+/\.mim/configs/.+\.py')
_NAMES = re.compile(r"'[^']*'|`[^`]*`|\S*/\S*|\d+")
"""Regular expression of names and numbers in which equal refusal reasons differ."""


def parse_projects(text: str) -> list[str]:
    """Parses a comma-separated list of project names.

    Raises:
        argparse.ArgumentTypeError: If a name is unknown.
    """
    names = [name.strip() for name in text.split(',')]
    unknown = [name for name in names if name not in PROJECTS]
    if unknown:
        known = ', '.join(PROJECTS)
        raise argparse.ArgumentTypeError(
            f'expected some of {known}, found {unknown[0]!r}'
        )
    return names


def fetch_wheels(names: Sequence[str], folder: Path) -> None:
    """Downloads the wheels of projects without their dependencies."""
    wanted = [f'{name}=={PROJECTS[name]}' for name in names]
    command = [sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps']
    command += ['--only-binary', ':all:', '--dest', str(folder)]
    flags = shlex.split(os.environ.get('PIP_FLAGS', ''))
    subprocess.run([*command, *flags, *wanted], check=True)


def unpack_configs(name: str, wheels: Path, folder: Path) -> Path:
    """Unpacks the configs from the wheel of a project.

    Args:
        name: Of the project.
        wheels: Folder with its wheel.
        folder: Gets the configs.

    Returns:
        The folder named ``configs``.
    """
    (wheel,) = wheels.glob(f'{name}-{PROJECTS[name]}-*.whl')
    with zipfile.ZipFile(wheel) as archive:
        inside = [path for path in archive.namelist() if _CONFIGS.fullmatch(path)]
        archive.extractall(folder, inside)
    return folder / inside[0].partition('/')[0] / '.mim' / 'configs'


def read_options(words: list[str]) -> Any:
    """Reads ``--cfg-options`` as the training scripts of all projects do."""
    parser = argparse.ArgumentParser()
    parser.add_argument('config')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction)
    return parser.parse_args(words).cfg_options


def list_figures(tallies: Mapping[str, Tally]) -> Iterator[Figure]:
    """Returns figures on rewriting all projects' configs: counts, refusals, faults."""
    files = sum(tally.files for tally in tallies.values())
    unloaded = sum(len(tally.unloaded) for tally in tallies.values())
    in_scope = sum(tally.in_scope for tally in tallies.values())
    refused = sum(len(tally.refused) for tally in tallies.values())
    faults = sum(len(tally.faults) for tally in tallies.values())
    yield Figure('configs', files)
    yield Figure('of them MMEngine does not load', unloaded)
    yield at_least('configs in scope', in_scope, 1, note='the others have no setting')
    refused_pct = 100 * refused / max(1, in_scope)
    yield at_most('refused', refused_pct, MAX_REFUSED_PCT, '%')
    yield exactly('faults', faults, 0)
    imported = sum(package in sys.modules for package in PACKAGES)
    yield exactly('projects that were imported', imported, 0)


def render_tallies(tallies: Mapping[str, Tally]) -> str:
    """Renders how many configs of each project were rewritten, and why others not."""
    header = (
        'project',
        'configs',
        'do not load',
        'no setting',
        'refused',
        'faults',
        'rewritten, load as asked',
    )
    rows = []
    for name, tally in tallies.items():
        unloaded = len(tally.unloaded)
        counts = (
            tally.files,
            unloaded,
            tally.files - unloaded - tally.in_scope,
            len(tally.refused),
            len(tally.faults),
            tally.rewritten,
        )
        rows.append((f'{name} {PROJECTS[name]}', *map(str, counts)))
    parts = [render_table(header, rows)]
    for title, kind in (
        ('Not loaded by MMEngine', 'unloaded'),
        ('Refused', 'refused'),
        ('Faults', 'faults'),
    ):
        lines = [
            f'- {name}: {line}'
            for name, tally in tallies.items()
            for line in list_reasons(getattr(tally, kind))
        ]
        if lines:
            parts.append(f'{title}:\n\n' + '\n'.join(lines))
    return '\n\n'.join(parts)


def list_reasons(reasons: Mapping[str, str]) -> list[str]:
    """Returns reasons of refusals, by first sentence, with config count and example.

    The most frequent stands first.

    Args:
        reasons: By config.
    """
    alike: dict[str, list[str]] = {}
    for config, reason in reasons.items():
        alike.setdefault(_NAMES.sub('', reason), []).append(config)
    lines = []
    for configs in sorted(alike.values(), key=len, reverse=True):
        reason = ' '.join(reasons[configs[0]].split()).partition('. ')[0]
        lines.append(f'{len(configs)}: {reason} (`{configs[0]}`)')
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark: rewrites the projects' configs and prints the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        '--projects',
        type=parse_projects,
        default=[*PROJECTS],
        metavar='NAME,...',
        help=f'some of {", ".join(PROJECTS)} (all)',
    )
    parser.add_argument(
        '--wheels',
        type=Path,
        metavar='DIR',
        help='folder with their wheels (downloaded)',
    )
    benchmark = Benchmark(
        'rewrite_projects', __doc__ or '', argv, parser=parser, is_timed=False
    )
    options = benchmark.options
    logging.disable(logging.CRITICAL)
    warnings.simplefilter('ignore')
    tallies: dict[str, Tally] = {}
    with tempfile.TemporaryDirectory(prefix='mmgpu-bench-') as name:
        folder = Path(name)
        wheels: Path | None = options.wheels
        if wheels is None:
            wheels = folder
            fetch_wheels(options.projects, wheels)
        for project in options.projects:
            root = unpack_configs(project, wheels, folder / project)
            paths = sorted(root.rglob('*.py'))
            step = QUICK_STEP if benchmark.is_quick else 1
            say(f'{project}: {len(paths[::step])} configs')
            tallies[project] = rewrite_all(paths[::step], root, read_options)
    benchmark.add(*list_figures(tallies))
    return benchmark.finish(render_tallies(tallies))


if __name__ == '__main__':
    sys.exit(main())
