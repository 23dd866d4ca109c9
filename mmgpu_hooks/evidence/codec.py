"""Records to JSON lines: one object each, whose ``kind`` names the record."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Union

from mmgpu_hooks.records import (
    EndRecord,
    IntervalRecord,
    ModelBytesRecord,
    RunRecord,
    SaveAftermathRecord,
    SaveRecord,
    SourceOffRecord,
    UnknownRecord,
    ValidationRecord,
)

Line = Union[
    RunRecord,
    IntervalRecord,
    ModelBytesRecord,
    SaveRecord,
    SaveAftermathRecord,
    ValidationRecord,
    UnknownRecord,
    SourceOffRecord,
    EndRecord,
]

KINDS: dict[str, type[Any]] = {
    'run': RunRecord,
    'interval': IntervalRecord,
    'model_bytes': ModelBytesRecord,
    'save': SaveRecord,
    'save_aftermath': SaveAftermathRecord,
    'validation': ValidationRecord,
    'unknown': UnknownRecord,
    'source_off': SourceOffRecord,
    'end': EndRecord,
}
_NAMES = {record: kind for kind, record in KINDS.items()}


_ENCODE = json.JSONEncoder(separators=(',', ':'), ensure_ascii=True).encode
_AS_IT_IS = frozenset({int, str, bool, type(None)})


def render_line(record: Line) -> str:
    """Render one record as one JSON line, newline included.

    Figures that are not finite are written as ``null``: JSON knows no infinity,
    and an infinite duration is as good as unknown.
    """
    body = {'kind': _NAMES[type(record)], **_plain(record)}
    return _ENCODE(body) + '\n'


def _plain(value: Any) -> Any:
    """What JSON knows, in one walk: this happens while training waits."""
    kind: Any = type(value)
    if kind is float:
        return round(value, 9) if math.isfinite(value) else None
    if kind in _AS_IT_IS:
        return value
    if kind is dict:
        return _plain_items(value)
    if dataclasses.is_dataclass(kind):
        return _plain_items(vars(value))
    if isinstance(value, Mapping):
        return _plain_items(dict(value))
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _plain_items(items: dict[str, Any]) -> dict[str, Any]:
    plain = {}
    # most are one of these: a call for each would take as long as all the rest
    for name, item in items.items():
        kind = type(item)
        if kind is float and math.isfinite(item):
            plain[name] = round(item, 9)
        else:
            plain[name] = item if kind in _AS_IT_IS else _plain(item)
    return plain
