"""Records to JSON lines: one object each, whose ``kind`` names the record."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii as _quote
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

_NOT_FINITE = re.compile(r'[:,\[]-?(?:nan|inf)[,}\]]')

_MOST_SHAPES = 256
_FORMATS: dict[Any, str] = {float: '%.9f', int: '%d', type(None): 'null%.0s'}
"""Of what needs no further look; nanoseconds are enough of a second."""

_Shape = tuple[Any, ...]
"""Names of an object's fields, and then the types of their values."""
_shapes: dict[_Shape, tuple[str, tuple[int, ...]]] = {}
"""Text of an object with a place for each value, and which values are rendered first:
most records are like the one before, and this happens while training waits."""


def render_line(record: Line) -> str:
    """Render one record as one JSON line, newline included.

    Figures that are not finite are written as ``null``: JSON knows no infinity,
    and an infinite duration is as good as unknown.
    """
    body = {'kind': _NAMES[type(record)], **vars(record)}
    text = _render_object(body)
    # most lines hold neither, and a search for the text alone is fast
    if ('nan' in text or 'inf' in text) and _NOT_FINITE.search(text):
        text = _render_object(_without_infinity(body))
    return text + '\n'


def _render_object(items: dict[str, Any]) -> str:
    values: Any = items.values()
    shape = (*items, *map(type, values))
    known = _shapes.get(shape)
    if known is None:
        known = _note_shape(shape, len(items))
    text, rendered = known
    if rendered:
        values = list(values)
        for index in rendered:
            values[index] = _render(values[index])
    return text % tuple(values)


def _note_shape(shape: _Shape, count: int) -> tuple[str, tuple[int, ...]]:
    if len(_shapes) >= _MOST_SHAPES:
        _shapes.clear()
    names, kinds = shape[:count], shape[count:]
    fields = [
        _quote(name).replace('%', '%%') + ':' + _FORMATS.get(kind, '%s')
        for name, kind in zip(names, kinds)
    ]
    rendered = tuple(i for i, kind in enumerate(kinds) if kind not in _FORMATS)
    _shapes[shape] = known = '{' + ','.join(fields) + '}', rendered
    return known


def _render(value: Any) -> str:
    kind: Any = type(value)
    if kind is dict:
        return _render_object(value)
    if kind is str:
        return _quote(value)
    if kind is bool:
        return 'true' if value else 'false'
    if kind is list or kind is tuple:
        return '[' + ','.join([_render(item) for item in value]) + ']'
    if kind in _FORMATS:
        text: str = _FORMATS[kind] % value
        return text
    if dataclasses.is_dataclass(kind):
        return _render_object(vars(value))
    if isinstance(value, Mapping):
        return _render_object(dict(value))
    # subclasses: NumPy's floats, named tuples
    plains: tuple[Any, ...] = (float, int, str, tuple, list)
    for plain in plains:
        if isinstance(value, plain):
            return _render(plain(value))
    raise TypeError(f'a record holds a {kind.__name__}, which JSON does not know')


def _without_infinity(value: Any) -> Any:
    """The same, in dictionaries and lists, with ``None`` for what is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return {name: _without_infinity(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_infinity(item) for item in value]
    return value
