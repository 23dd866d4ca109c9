"""Records to JSON lines: one object each, whose ``kind`` names the record."""

from __future__ import annotations

import dataclasses
import functools
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
)

Line = Union[
    RunRecord,
    IntervalRecord,
    ModelBytesRecord,
    SaveRecord,
    SaveAftermathRecord,
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
    'unknown': UnknownRecord,
    'source_off': SourceOffRecord,
    'end': EndRecord,
}
_NAMES = {record: kind for kind, record in KINDS.items()}


_AS_IT_IS = frozenset({int, str, bool, type(None)})


def render_line(record: Line) -> str:
    """Render one record as one JSON line, newline included.

    Figures that are not finite are written as ``null``: JSON knows no infinity,
    and an infinite duration is as good as unknown.
    """
    body = {'kind': _NAMES[type(record)], **_plain(record)}
    return json.dumps(body, separators=(',', ':'), ensure_ascii=True) + '\n'


@functools.cache
def _field_names(kind: Any) -> tuple[str, ...] | None:
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(kind))


def _plain(value: Any) -> Any:
    """What JSON knows, in one walk: this happens while training waits."""
    kind: Any = type(value)
    if kind is float:
        return round(value, 9) if math.isfinite(value) else None
    if kind in _AS_IT_IS:
        return value
    names = _field_names(kind)
    if names is not None:
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
