"""Finds the newest run in a folder a user points at."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from mmgpu_hooks.schema.errors import UserError

EVIDENCE_NAME = 'gpu_efficiency.jsonl'
OTHER_RANKS = 'gpu_efficiency_rank*.jsonl'
PLAIN_NAME = 'scalars.json'
_RANK = re.compile(r'_rank(\d+)(?=(?:\.\d+)?\.jsonl$)')
_TIMESTAMP = re.compile(r'^\d{8}_\d{6}')


class EvidenceError(UserError):
    """What was given cannot be judged; the message is one sentence for the user."""


@dataclass(frozen=True)
class RunFiles:
    """The files of one run."""

    folder: Path
    """Where they are: a run's ``vis_data``, as a rule."""
    evidence: Path | None = None
    """Rank 0's of our hook; without it, MMEngine's own ``scalars.json`` is there."""
    config_copy: Path | None = None
    """The flattened copy of the config that MMEngine left."""
    other_ranks: tuple[Path, ...] = ()
    """Evidence of the same run's other ranks, by rank."""
    older_runs: tuple[Path, ...] = ()
    """Where evidence of other runs of the same folder would be, the newest first."""


STACK_SUFFIX = '.stack'
"""Of a file beside the evidence, with the stacks of a process that C code holds."""


def evidence_name(rank: int) -> str:
    """File name of one rank's evidence; rank 0 has the plain one."""
    return EVIDENCE_NAME if rank == 0 else f'gpu_efficiency_rank{rank}.jsonl'


def unused_path(path: Path) -> Path:
    """``path``, or a numbered one where this Runner trained before."""
    number = 1
    unused = path
    while unused.exists():
        number += 1
        unused = path.with_name(f'{path.stem}.{number}{path.suffix}')
    return unused


def read_run_folder(path: Path) -> RunFiles:
    """Find the newest run under ``path``.

    Args:
        path: A ``work_dir`` with one folder per run, one run's folder, its
            ``vis_data``, or an evidence file itself.

    Returns:
        The files of the newest run: MMEngine names runs by their start time, and
        those names are compared; folders not named so come last.

    Raises:
        EvidenceError: If the folder is missing, empty or holds no run.
    """
    if path.is_file():
        return RunFiles(path.parent, path, _config_copy(path.parent))
    try:
        runs = _find_runs(path)
    except (FileNotFoundError, NotADirectoryError):
        found = 'neither a folder nor a file' if path.exists() else 'nothing there'
        raise EvidenceError(
            f'{path}: expected the work_dir of a training, found {found}; check the '
            'path (MMDetection writes to work_dirs/<config name>).'
        ) from None
    except OSError as error:
        raise EvidenceError(
            f'{path}: expected a folder that can be read, found "{error.strerror}" '
            f'at {error.filename}; check its permissions.'
        ) from error
    if not runs:
        found = 'none' if any(path.iterdir()) else 'an empty folder'
        raise EvidenceError(
            f'{path}: expected {EVIDENCE_NAME} in some <timestamp>/vis_data, found '
            f'{found}; train with GPUEfficiencyHook in the config, or give the folder '
            'that holds a run.'
        )
    *older, newest = runs
    evidence, is_ours = newest / EVIDENCE_NAME, (newest / EVIDENCE_NAME).is_file()
    return RunFiles(
        newest,
        evidence if is_ours else None,
        _config_copy(newest),
        find_other_ranks(evidence) if is_ours else (),
        tuple(run / EVIDENCE_NAME for run in reversed(older)),
    )


def find_other_ranks(evidence: Path) -> tuple[Path, ...]:
    """The other ranks' files beside rank 0's, by rank.

    Args:
        evidence: Rank 0's; ``gpu_efficiency.2.jsonl``, of a second training with the
            same Runner, goes with ``gpu_efficiency_rank1.2.jsonl`` and so on.
    """
    found = []
    for path in evidence.parent.glob(OTHER_RANKS):
        rank = _RANK.search(path.name)
        # to open a pipe would take for ever
        if rank and _RANK.sub('', path.name) == evidence.name and path.is_file():
            found.append((int(rank[1]), path))
    return tuple(path for _, path in sorted(found))


def _find_runs(path: Path) -> list[Path]:
    """All ``vis_data`` folders that hold a run, oldest first."""
    # glob passes over what it may not read, and the newest run with it
    os.listdir(path)
    for folder in (*path.glob('*'), *path.glob('*/vis_data')):
        if folder.is_dir():
            os.listdir(folder)
    found = {
        file.parent
        for pattern in ('', '*/', '*/*/')
        for name in (EVIDENCE_NAME, PLAIN_NAME)
        for file in path.glob(pattern + name)
        if file.is_file()
    }
    return sorted(found, key=_start_order)


def _start_order(vis_data: Path) -> tuple[bool, str, float]:
    name = vis_data.parent.name if vis_data.name == 'vis_data' else vis_data.name
    is_stamp = bool(_TIMESTAMP.match(name))
    modified = max(file.stat().st_mtime for file in vis_data.iterdir())
    return (is_stamp, name if is_stamp else '', modified)


def _config_copy(vis_data: Path) -> Path | None:
    copy = vis_data / 'config.py'
    return copy if copy.is_file() else None
