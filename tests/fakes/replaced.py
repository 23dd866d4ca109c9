"""A record with some fields changed, be it recorded (a Struct) or made of records."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import msgspec

_T = TypeVar('_T')


def replace(record: _T, **fields: Any) -> _T:
    """``dataclasses.replace`` for records of either kind."""
    is_struct = isinstance(record, msgspec.Struct)
    change: Any = msgspec.structs.replace if is_struct else dataclasses.replace
    return change(record, **fields)
