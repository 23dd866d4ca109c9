"""Copies a record with some fields changed, for structs and dataclasses."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import msgspec

_T = TypeVar('_T')


def replace(record: _T, **fields: Any) -> _T:
    """Returns a copy of a struct or dataclass with some fields changed."""
    is_struct = isinstance(record, msgspec.Struct)
    change: Any = msgspec.structs.replace if is_struct else dataclasses.replace
    return change(record, **fields)
