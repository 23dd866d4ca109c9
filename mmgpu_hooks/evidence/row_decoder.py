"""Decodes interval lines fast; what it does not take is for the parser to judge.

A long run has 100,000 intervals of a few hundred figures each, so they are decoded and
checked in C by msgspec. It takes no line that `parse_line` refuses, and whatever it
refuses goes to `parse_line`, which knows what to say of it.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from typing import Annotated, Any, Literal, Optional, Union

import msgspec

from mmgpu_hooks.evidence.parser import LARGEST
from mmgpu_hooks.records import IntervalRecord

# "below": a whole number just beyond it would be rounded to it
_Number = Annotated[float, msgspec.Meta(ge=0, lt=LARGEST)]
_Whole = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
_SCALARS: dict[Any, Any] = {float: _Number, int: _Whole, bool: bool, str: str}
_REFUSALS = (msgspec.DecodeError, ValueError, RecursionError)


def decode_row(line: bytes) -> Any | None:
    """The checked fields of an interval, under the names of `IntervalRecord`.

    Returns:
        ``None`` for every other line, good or bad.
    """
    try:
        return _row_decoder().decode(line)
    except _REFUSALS:
        return None


def decode_interval(line: bytes) -> IntervalRecord | None:
    """The interval of a line that was checked before; ``None`` as `decode_row`."""
    try:
        return _record_decoder().decode(line)
    except _REFUSALS:
        return None


@functools.cache
def _row_decoder() -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_row_of(IntervalRecord, kind=Literal['interval']))


@functools.cache
def _record_decoder() -> msgspec.json.Decoder[IntervalRecord]:
    return msgspec.json.Decoder(IntervalRecord)


def _row_of(record: Any, **more: Any) -> Any:
    """A struct with the fields of a record, each with the range it may have."""
    hints = typing.get_type_hints(record)
    fields: list[Any] = list(more.items())
    for field in dataclasses.fields(record):
        checked = _checked(hints[field.name])
        if field.default is not dataclasses.MISSING:
            fields.append((field.name, checked, field.default))
        elif field.default_factory is not dataclasses.MISSING:
            default = msgspec.field(default_factory=field.default_factory)
            fields.append((field.name, checked, default))
        else:
            fields.append((field.name, checked))
    # rows live for a moment, and none refers to itself
    return msgspec.defstruct(record.__name__, fields, gc=False)


def _checked(hint: Any) -> Any:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Union:
        return Optional[_checked(arguments[0])]
    if hint in _SCALARS:
        return _SCALARS[hint]
    if typing.get_origin(hint) is tuple:
        return tuple[_checked(arguments[0]), ...]  # type: ignore[misc]
    if dataclasses.is_dataclass(hint):
        return _row_of(hint)
    return dict[str, _checked(arguments[1])]  # type: ignore[misc]
