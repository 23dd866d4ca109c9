"""Finds the newest training run in a folder that a user points at."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.regular import read_end
from mmgpu_hooks.schema.text import Text, phrase

EVIDENCE_NAME = 'gpu_efficiency.jsonl'
OTHER_RANKS = 'gpu_efficiency_rank*.jsonl'
PLAIN_NAME = 'scalars.json'
_RANK = re.compile(r'_rank(\d+)(?=(?:\.\d+)?\.jsonl$)')
_TIMESTAMP = re.compile(r'^\d{8}_\d{6}')
_LOG = re.compile(r'^\d{8}_\d{6}(?:_.*rank0+)?\.log$')
"""Regex for the names of MMEngine's own log files.

That of rank 0 where each rank has one.
"""
_TRAINS, _EVALUATES = b'(train)', re.compile(rb'\b(?:Epoch|Iter)\((?:val|test)\)')
_MOST_BYTES = 2**20
"""Number of bytes read from a log's end to tell a training from an evaluation."""


class EvidenceError(UserError):
    """Error for a path from which no training run can be read: a sentence to the user.

    Args:
        path: The path, which begins the message.
        fault: What was expected of it and found.
    """

    def __init__(self, path: Path | str, fault: Text) -> None:
        super().__init__(phrase('{path}: {fault}', path=path, fault=fault))
        self.path = path
        self.fault = fault

    def __reduce__(self) -> Any:
        # another process judges runs: it is made anew here
        return type(self), (self.path, self.fault)


@dataclass(frozen=True)
class Attempt:
    """Training that left a log of MMEngine but no evidence file."""

    folder: Path
    """Folder of the training, which MMEngine names by the start time."""
    log: Path


@dataclass(frozen=True)
class RunFiles:
    """Paths of one training run's files: evidence of all ranks, config, older runs."""

    folder: Path
    """Path of the folder with the run's files, usually ``vis_data``."""
    evidence: Path | None = None
    """Path of rank 0's evidence file.

    ``None`` where only MMEngine's own ``scalars.json`` is there."""
    config_copy: Path | None = None
    """Path of the flattened copy of the config that MMEngine left."""
    other_ranks: tuple[Path, ...] = ()
    """Paths of the evidence files of all ranks except rank 0, in rank order."""
    starting_ranks: tuple[Path, ...] = ()
    """Paths of evidence files of ranks that have not begun to train, in rank order."""
    older_runs: tuple[Path, ...] = ()
    """Paths of the evidence files of the folder's older runs, newest first.

    They may not exist."""
    newer_attempt: Attempt | None = None
    """Newest training that left no evidence file, if newer than this run.

    It has ended before its first iteration, or is still starting."""

    @property
    def run_folder(self) -> Path:
        """Folder of the run, which MMEngine usually names by the start time."""
        return self.folder.parent if self.folder.name == 'vis_data' else self.folder


START_NAME, OTHER_STARTS = 'before_training.jsonl', 'before_training_rank*.jsonl'
"""Name of rank 0's evidence file from before training, and pattern of other ranks'.

They say who holds memory, and where the ranks stand. The evidence of a training takes
their place.
"""

STACK_SUFFIX = '.stack'
"""Suffix of a file with a process's call stacks, written while C code blocks Python.

It lies beside the evidence.
"""


def evidence_name(rank: int) -> str:
    """Returns the name of one rank's evidence file; rank 0's has no number."""
    return EVIDENCE_NAME if rank == 0 else f'gpu_efficiency_rank{rank}.jsonl'


def start_name(rank: int) -> str:
    """Returns the name of one rank's evidence file from before its train loop.

    Rank 0's is plain.
    """
    return START_NAME if rank == 0 else f'before_training_rank{rank}.jsonl'


def find_start_files(folder: Path) -> tuple[Path, ...]:
    """Finds a folder's evidence files of ranks that have not begun to train."""
    found = [folder / START_NAME, *folder.glob(OTHER_STARTS)]
    return tuple(sorted((path for path in found if path.is_file()), key=_rank_of))


def _rank_of(path: Path) -> int:
    rank = _RANK.search(path.name)
    return int(rank[1]) if rank else 0


def unused_path(path: Path) -> Path:
    """Returns the path, or a numbered path if a file of that name exists.

    Such a file is there when this Runner trained before.
    """
    number = 1
    unused = path
    while unused.exists():
        number += 1
        unused = path.with_name(f'{path.stem}.{number}{path.suffix}')
    return unused


def read_run_folder(path: Path) -> RunFiles:
    """Finds the newest training run under ``path``.

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
        if path.suffix == '.py':
            raise EvidenceError(
                path,
                phrase(
                    'expected the work_dir of a training, found a Python file; '
                    'name the folder that the training wrote to (MMDetection: '
                    'work_dirs/{stem}).',
                    stem=path.stem,
                ),
            )
        return RunFiles(path.parent, path, _config_copy(path.parent))
    try:
        runs = _find_runs(path)
    except (FileNotFoundError, NotADirectoryError):
        found = phrase('nothing there')
        if path.exists():
            found = phrase('neither a folder nor a file')
        raise EvidenceError(
            path,
            phrase(
                'expected the work_dir of a training, found {found}; check the '
                'path (MMDetection writes to work_dirs/<config name>).',
                found=found,
            ),
        ) from None
    except OSError as error:
        raise EvidenceError(
            path,
            phrase(
                'expected a folder that can be read, found "{strerror}" at '
                '{filename}; check its permissions.',
                strerror=error.strerror,
                filename=error.filename,
            ),
        ) from error
    if not runs:
        found = phrase('none') if any(path.iterdir()) else phrase('an empty folder')
        raise EvidenceError(
            path,
            phrase(
                'expected {evidence_name} in some <timestamp>/vis_data, found '
                '{found}; train with mmgpu run, or give the folder that holds a run.',
                evidence_name=EVIDENCE_NAME,
                found=found,
            ),
        )
    *older, newest = runs
    evidence, is_ours = newest / EVIDENCE_NAME, (newest / EVIDENCE_NAME).is_file()
    others = find_other_ranks(evidence) if is_ours else ()
    peers = find_peers(evidence) if is_ours else ()
    files = RunFiles(
        newest,
        evidence if is_ours else None,
        _config_copy(newest),
        others,
        tuple(path for path in peers if path not in others),
        tuple(run / EVIDENCE_NAME for run in reversed(older)),
    )
    began, attempt = read_start_time(files.run_folder), find_attempt(path)
    if attempt is not None and began is not None:
        later = read_start_time(attempt.folder)
        attempt = attempt if later is not None and later > began else None
    return replace(files, newer_attempt=attempt)


def find_attempt(path: Path) -> Attempt | None:
    """Finds the newest training at or below ``path`` that left no evidence file.

    A run that tested or validated a checkpoint is none: its log says so.
    """
    folders = [path.absolute(), *path.glob('*')]
    for folder in sorted(folders, key=lambda folder: folder.name, reverse=True):
        log = find_log(folder) if _TIMESTAMP.match(folder.name) else None
        places = (folder, folder / 'vis_data')
        names = (EVIDENCE_NAME, PLAIN_NAME)
        has_run = any((place / name).exists() for place in places for name in names)
        if log is not None and not has_run and not _is_evaluation(log):
            return Attempt(folder, log)
    return None


def find_log(folder: Path) -> Path | None:
    """Finds MMEngine's log file in the folder of a run.

    It is named as the folder is. Where the folder was renamed, it is the newest log
    that MMEngine may have named so.
    """
    own = folder / f'{folder.absolute().name}.log'
    if own.is_file():
        return own
    logs = (log for log in folder.glob('*.log') if _LOG.match(log.name))
    return max((log for log in logs if log.is_file()), default=None)


def read_start_time(folder: Path) -> datetime | None:
    """Reads when a run began, from the name that MMEngine gave its folder.

    By its host's clock.
    """
    with contextlib.suppress(ValueError):
        return datetime.strptime(folder.absolute().name[:15], '%Y%m%d_%H%M%S')
    return None


def _is_evaluation(log: Path) -> bool:
    with contextlib.suppress(OSError):
        text = read_end(log, _MOST_BYTES)
        return _TRAINS not in text and _EVALUATES.search(text) is not None
    return False


def find_other_ranks(evidence: Path) -> tuple[Path, ...]:
    """Finds other ranks' evidence files in the folder of rank 0's, in rank order.

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


def find_peers(evidence: Path) -> tuple[Path, ...]:
    """Finds evidence files of a run's ranks except the given file's, in rank order.

    Args:
        evidence: Of any rank, or what it has of its start.

    Returns:
        Evidence; of a rank that has not begun to train, what it has of its start.
    """
    first = evidence.with_name(_RANK.sub('', evidence.name))
    if first.name == START_NAME:
        first = first.with_name(EVIDENCE_NAME)
    files = {_rank_of(path): path for path in find_start_files(evidence.parent)}
    if first.is_file():
        files[0] = first
    files.update((_rank_of(path), path) for path in find_other_ranks(first))
    files.pop(_rank_of(evidence), None)
    return tuple(path for _, path in sorted(files.items()))


def _find_runs(path: Path) -> list[Path]:
    """Finds all ``vis_data`` folders that hold a training run, oldest first."""
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
    modified = max(map(_read_change_time, vis_data.iterdir()), default=0.0)
    return (is_stamp, name if is_stamp else '', modified)


def _read_change_time(file: Path) -> float:
    """Reads the Unix time of a file's last change; 0 for a dotfile or dangling link."""
    if not file.name.startswith('.'):
        # an editor's lock is such a link, and a run may end while its files are listed
        with contextlib.suppress(OSError):
            return file.stat().st_mtime
    return 0.0


def _config_copy(vis_data: Path) -> Path | None:
    copy = vis_data / 'config.py'
    return copy if copy.is_file() else None
