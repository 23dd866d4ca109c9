"""Reads the JSON log of a training without GPUEfficiencyHook: MMEngine's or MMCV's.

MMEngine's LoggerHook leaves them in ``<timestamp>/vis_data``, as ``scalars.json`` and
once more as ``<timestamp>.json``; MMCV's TextLoggerHook (MMDetection 2.x) as
``<timestamp>.log.json`` in the work_dir, after a line of metadata with the config.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from mmgpu_hooks.schema.lines import read_lines
from mmgpu_hooks.schema.regular import read_end
from mmgpu_hooks.schema.run_folder import PLAIN_NAME
from mmgpu_hooks.schema.text import Text, phrase

MMENGINE, MMCV = 'mmengine', 'mmcv'
"""Names of the frameworks that write a training log.

MMCV's logs are those of MMDetection 2.x and its siblings.
"""

_MMCV_SUFFIX = '.log.json'
_STAMP = re.compile(r'^\d{8}_\d{6}')
_SECOND_NAME = re.compile(r'^\d{8}_\d{6}\.json$')
"""Regex for ``<timestamp>.json``, MMEngine's duplicate of a log's scalars.

Elsewhere such a file holds the metrics of a test.
"""
_MIB = 2**20
_MOST_CONFIG_BYTES = 2 * 2**20
"""Largest size in bytes of a config file that is still read."""


@dataclass(frozen=True)
class LoggedLine:
    """Mean times and peak memory from a training line in MMEngine's or MMCV's log."""

    iteration: int
    """Number of the logged line's iteration, counted from 1.

    Counted over the training by MMEngine, over the epoch by most logs of MMCV."""
    epoch: Optional[int]
    iter_s: float
    """Logged ``time`` in seconds: from one iteration's end to the next one's end."""
    data_s: Optional[float]
    """Logged ``data_time`` in seconds: from an iteration's start to its train step.

    ``None`` where none is logged."""
    memory_bytes: Optional[int] = None
    """Logged ``memory`` in bytes: peak of torch's allocator on the fullest GPU."""


@dataclass(frozen=True)
class FrameworkLog:
    """Training log of MMEngine or MMCV: its train lines, in the order of the file."""

    path: str
    writer: str
    """Framework that wrote the log: :data:`MMENGINE` or :data:`MMCV`."""
    lines: Tuple[LoggedLine, ...] = ()
    config: Optional[str] = None
    """Text of the training's config; ``None`` if the run left no copy."""
    notes: Tuple[Text, ...] = ()
    """Sentences on lines of the log that were left out."""


def find_framework_logs(path: Path) -> list[Path]:
    """Finds the training logs of MMEngine and MMCV at a path, newest training first.

    Args:
        path: A ``work_dir``, one run's folder, its ``vis_data``, or a log itself.

    Returns:
        One log a run; none for a path that holds none.
    """
    if path.is_file():
        name = path.name
        is_log = name.endswith(_MMCV_SUFFIX) or _is_mmengine(path)
        return [path] if is_log or name == PLAIN_NAME else []
    found = [log for log in path.glob(f'*{_MMCV_SUFFIX}') if log.is_file()]
    for pattern in ('', '*/', '*/*/'):
        found += [log for log in path.glob(pattern + PLAIN_NAME) if log.is_file()]
    seen = {log.parent for log in found}
    for pattern in ('*.json', 'vis_data/*.json', '*/vis_data/*.json'):
        for log in sorted(path.glob(pattern)):
            if _is_mmengine(log) and log.is_file() and log.parent not in seen:
                seen.add(log.parent)
                found.append(log)
    return sorted(found, key=_start_order, reverse=True)


def _is_mmengine(path: Path) -> bool:
    folder = path.absolute().parent.name
    return folder == 'vis_data' and _SECOND_NAME.match(path.name) is not None


def _start_order(log: Path) -> tuple[str, float]:
    """Returns the sort key of a log: start time in its path, then modification time."""
    folder = log.absolute().parent
    run = folder.parent if folder.name == 'vis_data' else folder
    names = (log.name, run.name)
    stamp = next((name[:15] for name in names if _STAMP.match(name)), '')
    with contextlib.suppress(OSError):
        return stamp, log.stat().st_mtime
    return stamp, 0.0


def read_framework_log(path: Path) -> FrameworkLog:
    """Reads a framework log's train lines; lines that are not JSON are only counted.

    A log that holds several trainings, each with its metadata, is that of the last one
    that came to a train line.

    Raises:
        EvidenceError: If it is no regular file, or cannot be read.
    """
    writer = MMCV if path.name.endswith(_MMCV_SUFFIX) else MMENGINE
    trainings: List[List[LoggedLine]] = [[]]
    configs: List[Optional[str]] = [None]
    bad, notes = 0, list[Text]()
    for _, data in read_lines(path):
        if data.isspace():
            continue
        logged = _decode(data)
        if logged is None:
            if data.endswith(b'\n'):
                bad += 1
            else:
                notes.append(
                    phrase('{file}: 1 torn last line skipped.', file=path.name)
                )
        elif 'env_info' in logged or 'exp_name' in logged:
            trainings.append([])
            configs.append(_text(logged.get('config')))
        elif line := _parse_line(logged):
            trainings[-1].append(line)
    if bad:
        notes.append(
            phrase('{file}: {bad_lines} skipped.', file=path.name, bad_lines=bad)
        )
    last = max((n for n, lines in enumerate(trainings) if lines), default=0)
    config = configs[last]
    if config is None and writer == MMENGINE:
        config = _read_config(path.with_name('config.py'))
    lines = tuple(trainings[last])
    return FrameworkLog(str(path), writer, lines, config, tuple(notes))


def _decode(line: bytes) -> Optional[Dict[str, Any]]:
    """Decodes a line of a log as a JSON object; returns ``None`` for anything else.

    A loss may be ``NaN``.
    """
    try:
        logged = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return logged if isinstance(logged, dict) else None


def _parse_line(logged: Dict[str, Any]) -> Optional[LoggedLine]:
    """Parses a log's train line; returns ``None`` for validation or untimed lines.

    Examples:
        >>> _parse_line({'mode': 'train', 'epoch': 1, 'iter': 50, 'time': 0.4})
        LoggedLine(iteration=50, epoch=1, iter_s=0.4, data_s=None, memory_bytes=None)
    """
    # a validation of MMEngine has a step and no iter, one of MMCV its mode
    iteration, epoch = _number(logged.get('iter')), _number(logged.get('epoch'))
    is_train = logged.get('mode', 'train') == 'train'
    if not is_train or iteration is None or iteration < 1:
        return None
    # log_with_hierarchy=True of MMEngine's LogProcessor
    times = (_number(logged.get(f'{prefix}time')) for prefix in ('', 'train/'))
    waits = (_number(logged.get(f'{prefix}data_time')) for prefix in ('', 'train/'))
    iter_s = next(filter(None, times), None)
    if iter_s is None:
        return None
    data_s = next((wait_s for wait_s in waits if wait_s is not None), None)
    memory = _number(logged.get('memory'))
    return LoggedLine(
        iteration=int(iteration),
        epoch=None if epoch is None else int(epoch),
        iter_s=iter_s,
        # each is rounded by itself
        data_s=None if data_s is None else min(data_s, iter_s),
        memory_bytes=int(memory * _MIB) if memory else None,
    )


def _number(value: object) -> Optional[float]:
    """Returns a finite number that is not negative; ``None`` for any other value."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    with contextlib.suppress(OverflowError):
        if math.isfinite(value) and value >= 0:
            return float(value)
    return None


def _text(value: object) -> Optional[str]:
    return value if isinstance(value, str) else None


def _read_config(path: Path) -> Optional[str]:
    with contextlib.suppress(OSError):
        text = read_end(path, _MOST_CONFIG_BYTES + 1)
        if len(text) <= _MOST_CONFIG_BYTES:
            return text.decode('utf-8', 'replace')
    return None
