"""JSON lines back to records, and nothing in between is ever executed.

Unknown fields of a known kind are ignored, so that a newer minor version can add some;
unknown kinds are skipped.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import typing
from collections.abc import Mapping
from typing import Any, Callable, Union

from mmgpu_hooks.evidence.codec import KINDS, Line
from mmgpu_hooks.records import EndRecord

STATUSES = ('completed', 'interrupted', 'failed')

LARGEST = 10**18
"""More bytes than any host has, more seconds than the universe."""


class LineError(ValueError):
    """A line that is not one of our records."""


def parse_line(text: str) -> Line | None:
    """Read one line back.

    Args:
        text: One line of an evidence file.

    Returns:
        The record, or ``None`` for a kind this version does not know.

    Raises:
        LineError: If the line is not JSON, or a field is missing or has a value
            that no measurement gives.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LineError('not JSON') from error
    if not isinstance(body, dict) or not isinstance(body.get('kind'), str):
        raise LineError('no JSON object with a "kind"')
    kind = body.pop('kind')
    record = KINDS.get(kind)
    if record is None:
        return None
    if kind == 'run' and not isinstance(body.get('schema'), int):
        raise LineError('a run record without a "schema" number')
    built = typing.cast(Line, build_record(record, body))
    if isinstance(built, EndRecord) and built.status not in STATUSES:
        raise LineError(f'"status": expected one of {STATUSES}, found {built.status!r}')
    return built


def parse_schema(text: str) -> int | None:
    """The schema number of a run line, whatever its other fields look like."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(body, dict) and body.get('kind') == 'run':
        schema = body.get('schema')
        return schema if isinstance(schema, int) else None
    return None


Decode = Callable[[Any], Any]


def build_record(record: Any, body: Mapping[str, Any]) -> Any:
    """A record of its decoded JSON object; fields that it does not have are ignored.

    Args:
        record: The dataclass.
        body: Its fields; no number of them is negative.

    Raises:
        LineError: If a field is missing or has a value that no measurement gives.
    """
    values = {}
    for name, decode in _decoders(record):
        if name in body:
            try:
                values[name] = decode(body[name])
            except LineError as error:
                raise LineError(f'"{name}": {error}') from None
    try:
        return record(**values)
    except TypeError as error:
        raise LineError(f'a field is missing: {error}') from error


@functools.cache
def _decoders(record: type[Any]) -> tuple[tuple[str, Decode], ...]:
    hints = typing.get_type_hints(record)
    return tuple((f.name, _decoder(hints[f.name])) for f in dataclasses.fields(record))


def _decoder(hint: Any) -> Decode:
    """The check for one field, made once per type and not once per line."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Union:
        present = _decoder(next(arg for arg in arguments if arg is not type(None)))
        return lambda value: None if value is None else present(value)
    if hint is float:
        return _decode_number
    if hint in (int, bool, str):
        return functools.partial(_decode_exactly, hint)
    if typing.get_origin(hint) is tuple:
        return functools.partial(_decode_list, _decoder(arguments[0]))
    if dataclasses.is_dataclass(hint):
        return functools.partial(_decode_object, functools.partial(build_record, hint))
    return functools.partial(_decode_object, _map_decoder(_decoder(arguments[1])))


def is_measurement(value: Any) -> bool:
    """Whether a decoded JSON value can be one: a number, finite and not negative."""
    # bool is an int in Python, but not a measurement
    return type(value) in (float, int) and 0 <= value <= LARGEST


def _decode_number(value: Any) -> float:
    if not is_measurement(value):
        raise LineError(f'expected a finite number from 0 on, found {value!r:.40}')
    return float(value)


def _decode_exactly(expected: type[Any], value: Any) -> Any:
    if type(value) is not expected:
        raise LineError(f'expected {expected.__name__}, found {value!r:.40}')
    if expected is int and not is_measurement(value):
        raise LineError(f'expected a whole number from 0 on, found {value!r:.40}')
    return value


def _decode_object(build: Decode, value: Any) -> Any:
    if not isinstance(value, dict):
        raise LineError(f'expected an object, found {value!r:.40}')
    return build(value)


def _decode_list(item: Decode, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise LineError(f'expected a list, found {value!r:.40}')
    return tuple(item(entry) for entry in value)


def _map_decoder(item: Decode) -> Decode:
    return lambda value: {key: item(entry) for key, entry in value.items()}
