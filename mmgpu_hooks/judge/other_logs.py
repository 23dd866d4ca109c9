"""Reads what MMEngine logs by itself, where a run has nothing of ours."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

from mmgpu_hooks.schema import PlainRun
from mmgpu_hooks.schema.lines import read_lines
from mmgpu_hooks.schema.run_folder import EvidenceError


def read_plain_run(path: Path) -> PlainRun:
    """Read what MMEngine's own log tells of a run without our hook.

    Args:
        path: A ``scalars.json``: one JSON object per logged line.

    Returns:
        Medians of ``time`` and ``data_time`` over the logged lines.

    Raises:
        EvidenceError: If no line carries both.
    """
    times_s: list[tuple[float, float]] = []
    last = bad = 0
    for _, raw in read_lines(path):
        try:
            line = {} if raw.isspace() else json.loads(raw)
        except (ValueError, RecursionError):
            bad += 1
            continue
        # validation lines carry both times too, but no learning rate
        if not isinstance(line, dict) or 'lr' not in line:
            continue
        whole, wait = _seconds(line.get('time')), _seconds(line.get('data_time'))
        if whole is not None and wait is not None and wait <= whole:
            times_s.append((whole, wait))
            step = line.get('iter', line.get('step'))
            last = max(last, step if isinstance(step, int) else 0)
    if not times_s:
        raise EvidenceError(
            f'{path}: expected training lines with "time" and "data_time", found '
            'none; train at least one logging interval with GPUEfficiencyHook.'
        )
    time_s, data_time_s = map(statistics.median, zip(*times_s))
    notes = (f'{path.name}: {bad} unreadable line(s) skipped.',) if bad else ()
    return PlainRun(str(path), last, len(times_s), time_s, data_time_s, notes)


def _seconds(value: Any) -> float | None:
    # bool is an int in Python, and JSON's NaN is no duration
    is_duration = type(value) in (int, float) and 0 <= value < math.inf
    return float(value) if is_duration else None
