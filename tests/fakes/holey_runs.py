"""Evidence of a run in which some figures of each interval are unknown."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

from benchmarks.long_run import make_intervals, make_run
from mmgpu_hooks.evidence.codec import render_line


def with_holes(dice: random.Random, record: Any) -> Any:
    """The record as another machine would have left it, without some of its figures."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if field.default is None and dice.random() < 0.2:
            changes[field.name] = None
        elif isinstance(value, dict) and dice.random() < 0.2:
            changes[field.name] = dict(
                dice.sample(sorted(value.items()), len(value) // 2)
            )
        elif isinstance(value, tuple) and dice.random() < 0.2:
            changes[field.name] = ()
        elif dataclasses.is_dataclass(value):
            changes[field.name] = with_holes(dice, value)
    return dataclasses.replace(record, **changes)


def write_holey(path: Path, seed: int, count: int) -> list[str]:
    dice = random.Random(seed)
    records = [with_holes(dice, record) for record in make_intervals(dice, count)]
    lines = [render_line(record) for record in (make_run(path), *records)]
    path.write_text(''.join(lines))
    return lines
