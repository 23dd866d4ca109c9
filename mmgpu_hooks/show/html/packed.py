"""Figures in few bytes: 16 bits each, to some hundredths of a per cent."""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections.abc import Sequence
from typing import Any

UNKNOWN, ZERO, FIRST = 0, 1, 2
"""Codes; from the third on a figure is ``low * exp((code - FIRST) * step)``."""

_LAST = 65535


def pack_figures(values: Sequence[float | None]) -> dict[str, Any]:
    """Figures of any size with the same relative error.

    A logarithmic scale, because waits reach from microseconds to minutes in one run.

    Args:
        values: ``None`` is unknown; below 0 counts as 0.

    Returns:
        ``low``, ``step`` and, as base64 of 16-bit numbers, ``codes``. The relative
        error is at most half of ``step``.
    """
    known = [value for value in values if value is not None and value > 0]
    low, high = (min(known), max(known)) if known else (1.0, 1.0)
    step = math.log(high / low) / (_LAST - FIRST)
    return {
        'low': low,
        'step': step,
        'codes': _pack('H', [_code(value, low, step) for value in values]),
    }


def _code(value: float | None, low: float, step: float) -> int:
    if value is None:
        return UNKNOWN
    if value <= 0:
        return ZERO
    return FIRST + (round(math.log(value / low) / step) if step else 0)


def pack_floats(values: Sequence[float]) -> str:
    """Base64 of 32-bit floats."""
    return _pack('f', values)


def pack_counts(values: Sequence[int]) -> str:
    """Base64 of unsigned 32-bit numbers."""
    return _pack('I', values)


def _pack(kind: str, values: Sequence[Any]) -> str:
    packed = array(kind, values)
    if sys.byteorder == 'big':
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode('ascii')
