"""Keeps the figures of each model, so that a long run can go on another day.

What is kept holds while the code that measured it, and the packages, are the same.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.harness import Figure, write_atomically
from benchmarks.machine import describe_machine

KEPT = Path('work_dirs/bench_memory')
_ROOT = Path(__file__).resolve().parent.parent


def keep_figures(name: str, with_cuda: bool, figures: Sequence[Figure]) -> None:
    """Keep what this process has measured of one model."""
    sources = sorted(
        str(Path(file).resolve().relative_to(_ROOT))
        for module in list(sys.modules.values())
        if (file := getattr(module, '__file__', None))
        and module.__name__.partition('.')[0] in ('benchmarks', 'mmgpu_hooks')
    )
    body = {
        'machine': describe_machine(),
        'sources': {source: _digest(source) for source in sources},
        'figures': [asdict(figure) for figure in figures],
    }
    write_atomically(_locate(name, with_cuda), json.dumps(body, indent=1) + '\n')


def read_kept(name: str, with_cuda: bool) -> list[Figure] | None:
    """Figures of one model; ``None`` where they are missing or no longer hold."""
    try:
        body = json.loads(_locate(name, with_cuda).read_text())
    except (FileNotFoundError, ValueError):
        return None
    # a GPU's name is known only where CUDA was started
    machine = {k: v for k, v in describe_machine().items() if k != 'GPU'}
    if any(body['machine'].get(key) != value for key, value in machine.items()):
        return None
    if any(_digest(source) != known for source, known in body['sources'].items()):
        return None
    return [Figure(**figure) for figure in body['figures']]


def _locate(name: str, with_cuda: bool) -> Path:
    return KEPT / f'{name}{"-cuda" if with_cuda else ""}.json'


def _digest(source: str) -> str:
    path = _ROOT / source
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ''
