"""Makes readable ids for the cases of parametrised tests."""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

LONGEST = 50
"""Maximum number of characters of a value in a test id; longer ones are cut."""
MOST_FIELDS, MOST_VALUES = 3, 8
"""Maximum number of fields of a record, and of items of a list, in a test id."""


def name_value(value: object) -> str | None:
    """Returns a readable test id for a value; ``None`` to use pytest's own.

    Numbers, classes and functions have a name. A dictionary is named by what it holds,
    a record by the few fields that are not at their default, an object by its class.
    """
    if value is None or isinstance(value, (bool, int, float)):
        return None
    if hasattr(value, '__name__'):
        return None
    phrase = _phrase(value)
    if len(phrase) > 10 * LONGEST:
        phrase = f'{phrase[:LONGEST]} ... {phrase[-LONGEST:]}'
    text = ' '.join(_spell(phrase).split())
    if len(text) > LONGEST:
        text = f'{text[: LONGEST - 23]}...{text[-20:]}'
    return text or 'empty'


def _phrase(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode('latin-1')
    if isinstance(value, Path):
        return value.name
    if isinstance(value, Mapping):
        return _phrase_fields(value) or 'nothing'
    if isinstance(value, (set, frozenset)):
        return _phrase_values(sorted(value, key=str))
    if isinstance(value, (list, tuple)):
        return _phrase_values(value)
    if isinstance(value, BaseException):
        return f'{type(value).__name__} {value}'
    if dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
        fields = _list_set_fields(value)
        if 0 < len(fields) <= MOST_FIELDS:
            return _phrase_fields(fields)
    if value is None or isinstance(value, (bool, int, float)):
        return str(value)
    return str(getattr(value, '__name__', type(value).__name__))


def _phrase_values(values: Collection[object]) -> str:
    if len(values) > MOST_VALUES:
        kinds = {type(value).__name__ for value in values}
        return f'{len(values)} {kinds.pop() if len(kinds) == 1 else "values"}'
    return ' '.join(map(_phrase, values)) or 'nothing'


def _phrase_fields(fields: Mapping[object, object]) -> str:
    return ', '.join(f'{_phrase(key)}={_phrase(fields[key])}' for key in fields)


def _list_set_fields(record: object) -> dict[object, object]:
    """Returns the fields of a dataclass or struct that differ from their defaults."""
    if isinstance(record, msgspec.Struct):
        defaults = {
            field.name: field.default for field in msgspec.structs.fields(record)
        }
    else:
        assert dataclasses.is_dataclass(record)
        defaults = {field.name: field.default for field in dataclasses.fields(record)}
    values = {name: getattr(record, name) for name in defaults}
    return {name: value for name, value in values.items() if value != defaults[name]}


def _spell(text: str) -> str:
    """Returns a text in ASCII, with other characters replaced by their names."""
    return ''.join(
        character
        if ' ' <= character <= '~'
        else f' {unicodedata.name(character, "").lower()} '
        for character in text.replace('\\', '')
    )
