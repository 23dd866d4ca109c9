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


def read_plain_run(path: Path, config_copy: Path | None) -> PlainRun:
    """Read what MMEngine's own log tells of a run without our hook.

    Args:
        path: A ``scalars.json``: one JSON object per logged line.
        config_copy: The run's flattened config, when it is there.

    Returns:
        Medians of ``time`` and ``data_time`` over the logged lines.

    Raises:
        EvidenceError: If no line carries both.
    """
    time_s: list[float] = []
    data_time_s: list[float] = []
    last = bad = 0
    for _, raw in read_lines(path):
        if raw.isspace():
            continue
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            bad += 1
            continue
        # validation lines carry both times too, but no learning rate
        if not isinstance(line, dict) or 'lr' not in line:
            continue
        whole, wait = _seconds(line.get('time')), _seconds(line.get('data_time'))
        if whole is not None and wait is not None and wait <= whole:
            time_s.append(whole)
            data_time_s.append(wait)
            step = line.get('iter', line.get('step', 0))
            last = max(last, step if isinstance(step, int) else 0)
    if not time_s:
        raise EvidenceError(
            f'{path}: expected training lines with "time" and "data_time", found '
            'none; train at least one logging interval with GPUEfficiencyHook.'
        )
    notes = (f'{path.name}: {bad} unreadable line(s) skipped.',) if bad else ()
    return PlainRun(
        path=str(path),
        iterations=last,
        lines=len(time_s),
        time_s=statistics.median(time_s),
        data_time_s=statistics.median(data_time_s),
        config_copy=str(config_copy) if config_copy else None,
        notes=notes,
    )


def _seconds(value: Any) -> float | None:
    # bool is an int in Python, and JSON's NaN is no duration
    is_duration = type(value) in (int, float) and 0 <= value < math.inf
    return float(value) if is_duration else None
