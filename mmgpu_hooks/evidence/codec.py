"""Records to JSON lines: one object each, whose ``kind`` names the record."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from json.encoder import encode_basestring_ascii as _quote
from typing import Any, Callable, Union

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
"""What tells an object's fields: of a dictionary their names, else its class; and then
the types of their values. Of a list the latter after :data:`_ITEMS`; before all that
of a whole line :data:`_LINE`."""
_ITEMS, _LINE = object(), object()
_Renderer = Callable[[Any], str]
_shapes: dict[_Shape, tuple[str, tuple[tuple[int, _Renderer], ...]]] = {}
"""Text of an object with a place for each value, and which values are rendered first,
by what: most records are like the one before, and this happens while training waits."""


def render_line(record: Line) -> str:
    """Render one record as one JSON line, newline included.

    Figures that are not finite are written as ``null``: JSON knows no infinity,
    and an infinite duration is as good as unknown.
    """
    items = vars(record)
    values = items.values()
    # copies of so long a text take as long as many of its figures
    text = _fill((_LINE, type(record), *map(type, values)), items, values)
    # most lines hold neither, and a search for the text alone is fast
    if ('nan' in text or 'inf' in text) and _NOT_FINITE.search(text):
        named = {'kind': _NAMES[type(record)], **_without_infinity(record)}
        text = _render_object(named) + '\n'
    return text


def _render_object(items: dict[str, Any]) -> str:
    values = items.values()
    return _fill((*items, *map(type, values)), items, values)


def _render_fields(value: Any) -> str:
    """An instance of a dataclass."""
    items = vars(value)
    values = items.values()
    return _fill((type(value), *map(type, values)), items, values)


def _render_items(values: Sequence[Any]) -> str:
    return _fill((_ITEMS, *map(type, values)), None, values)


def _fill(shape: _Shape, names: Iterable[str] | None, values: Iterable[Any]) -> str:
    known = _shapes.get(shape)
    if known is None:
        known = _note_shape(shape, names)
    text, rendered = known
    if rendered:
        values = list(values)
        for index, render in rendered:
            values[index] = render(values[index])
    return text % tuple(values)


def _note_shape(
    shape: _Shape, names: Iterable[str] | None
) -> tuple[str, tuple[tuple[int, _Renderer], ...]]:
    if len(_shapes) >= _MOST_SHAPES:
        _shapes.clear()
    if names is None:
        kinds = shape[1:]
        text = '[' + ','.join([_FORMATS.get(kind, '%s') for kind in kinds]) + ']'
    else:
        quoted = [_quote(name).replace('%', '%%') for name in names]
        kinds = shape[len(shape) - len(quoted) :]
        fields = [
            name + ':' + _FORMATS.get(kind, '%s') for name, kind in zip(quoted, kinds)
        ]
        text = '{' + ','.join(fields) + '}'
        if shape[:1] == (_LINE,):
            text = f'{{"kind":"{_NAMES[shape[1]]}",{text[1:]}\n'
    rendered = tuple(
        (index, _renderer_of(kind))
        for index, kind in enumerate(kinds)
        if kind not in _FORMATS
    )
    _shapes[shape] = known = text, rendered
    return known


def _renderer_of(kind: Any) -> _Renderer:
    found = _RENDERERS.get(kind)
    if found is None:
        found = _render_fields if dataclasses.is_dataclass(kind) else _render_other
    return found


def _render_other(value: Any) -> str:
    if isinstance(value, Mapping):
        return _render_object(dict(value))
    # subclasses: NumPy's floats, named tuples
    plains: tuple[Any, ...] = (float, int, str, tuple, list)
    for plain in plains:
        if isinstance(value, plain):
            return _renderer_of(plain)(plain(value))
    kind = type(value).__name__
    raise TypeError(f'a record holds a {kind}, which JSON does not know')


_RENDERERS: dict[Any, _Renderer] = {
    **{kind: text.__mod__ for kind, text in _FORMATS.items()},
    bool: {True: 'true', False: 'false'}.__getitem__,
    str: _quote,
    dict: _render_object,
    list: _render_items,
    tuple: _render_items,
}
"""Of values of just these types."""


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
