"""Records made at once, where training waits for them."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

_T = TypeVar('_T')

_Template = tuple[dict[str, Any], frozenset[str], tuple[tuple[str, Any], ...]]
_templates: dict[Any, _Template] = {}
"""By class: its fields in order with their defaults, the names of those that have
none, and what makes the defaults of the others anew for each record."""


def fill_record(kind: type[_T], fields: dict[str, Any]) -> _T:
    """``kind(**fields)`` of a frozen dataclass, for a third of the time.

    The constructor of a frozen dataclass calls a function for each field, which
    reading the record back as a dictionary then has to undo.

    Args:
        kind: The class; it has neither slots nor a ``__post_init__``.
        fields: By name, in any order. The record keeps it when it holds all fields in
            the order of the class.

    Raises:
        TypeError: If a field is missing or unknown.
    """
    template, required, factories = _templates.get(kind) or _note_template(kind)
    # lines are rendered by the order of the class
    if list(fields) != list(template):
        given, fields = fields, {**template, **fields}
        if len(fields) > len(template) or not required <= given.keys():
            raise TypeError(_explain(kind, given))
        for name, make in factories:
            if name not in given:
                fields[name] = make()
    record: _T = object.__new__(kind)
    object.__setattr__(record, '__dict__', fields)
    return record


def _note_template(kind: Any) -> _Template:
    fields = dataclasses.fields(kind)
    missing = dataclasses.MISSING
    required = [
        one.name
        for one in fields
        if one.default is missing and one.default_factory is missing
    ]
    factories = [
        (one.name, one.default_factory)
        for one in fields
        if one.default_factory is not missing
    ]
    template = {one.name: one.default for one in fields}
    _templates[kind] = known = template, frozenset(required), tuple(factories)
    return known


def _explain(kind: Any, fields: dict[str, Any]) -> str:
    template, required, _ = _templates[kind]
    missing = ', '.join(sorted(required - fields.keys())) or 'none'
    unknown = ', '.join(sorted(fields.keys() - template.keys())) or 'none'
    return (
        f'expected the fields of {kind.__name__}; missing: {missing}, '
        f'unknown: {unknown}'
    )
