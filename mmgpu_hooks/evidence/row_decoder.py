"""Decodes interval lines fast; what it does not take is for the parser to judge.

A long run has 100,000 intervals of a few hundred figures each, so they are decoded and
checked in C by msgspec. It takes no line that `parse_line` refuses, and whatever it
refuses goes to `parse_line`, which knows what to say of it. Where msgspec cannot be
imported, all lines go there.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from typing import Annotated, Any, Callable, Literal, Optional, Union

from mmgpu_hooks.evidence.parser import LARGEST
from mmgpu_hooks.records import IntervalRecord


def decode_row(line: bytes) -> Any | None:
    """The checked fields of an interval, under the names of `IntervalRecord`.

    Returns:
        ``None`` for every other line, good or bad.
    """
    return row_decoder()(line)


def decode_interval(line: bytes) -> IntervalRecord | None:
    """The interval of a line that was checked before; ``None`` as `decode_row`."""
    record: IntervalRecord | None = _record_decoder()(line)
    return record


def row_unpacker() -> Callable[[Any], tuple[Any, ...]]:
    """What gives the fields of a row, or of a record in it, in their order.

    It raises ``TypeError`` for everything else.
    """
    try:
        from msgspec.structs import astuple
    except ImportError:
        return _refuse
    return astuple


def _refuse(value: Any) -> tuple[Any, ...]:
    raise TypeError(f'expected a row, found {value!r:.40}')


@functools.cache
def row_decoder() -> Callable[[bytes], Any]:
    """What `decode_row` does, for whoever has many lines."""
    return _decoder(lambda: _row_of(IntervalRecord, ('kind', Literal['interval'])))


@functools.cache
def _record_decoder() -> Callable[[bytes], Any]:
    return _decoder(lambda: IntervalRecord)


def _decoder(make_kind: Callable[[], Any]) -> Callable[[bytes], Any]:
    try:
        import msgspec
    except ImportError:
        return lambda line: None
    decode = msgspec.json.Decoder(make_kind()).decode
    refusals = (msgspec.DecodeError, ValueError, RecursionError)

    def decode_or_none(line: bytes) -> Any:
        try:
            return decode(line)
        except refusals:
            return None

    return decode_or_none


def _row_of(record: Any, *more: tuple[str, Any]) -> Any:
    """A struct with the fields of a record, each with the range it may have.

    Args:
        record: The class.
        *more: Names and types of fields to put behind them.
    """
    import msgspec

    hints = typing.get_type_hints(record)
    fields: list[Any] = []
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
    return msgspec.defstruct(record.__name__, [*fields, *more], kw_only=True, gc=False)


def _checked(hint: Any) -> Any:
    import msgspec

    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Union:
        return Optional[_checked(arguments[0])]
    if hint is float:
        # "below": a whole number just beyond it would be rounded to it
        return Annotated[float, msgspec.Meta(ge=0, lt=LARGEST)]
    if hint is int:
        return Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
    if typing.get_origin(hint) is tuple:
        return tuple[_checked(arguments[0]), ...]  # type: ignore[misc]
    if dataclasses.is_dataclass(hint):
        return _row_of(hint)
    if arguments:
        return dict[str, _checked(arguments[1])]  # type: ignore[misc]
    return hint
