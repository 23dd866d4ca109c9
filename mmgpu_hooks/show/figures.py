"""How figures are written: always with a unit, never a zero for an unknown."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from mmgpu_hooks.judge.duration_text import format_bytes, format_seconds
from mmgpu_hooks.schema.parts import PARTS
from mmgpu_hooks.schema.plural import plural
from mmgpu_hooks.schema.predicted import Prediction

__all__ = ['format_bytes', 'format_seconds', 'plural']

PART_NAMES = {part: part.replace('_', ' ') for part in PARTS} | {
    'checkpoint_save': 'saves',
    'startup': 'start-up',
}


def format_pct(share: float) -> str:
    """``51 %``, ``3.2 %`` or ``0.04 %``: as exact as a small share needs."""
    digits = 0 if share >= 10 or share == 0 else 1 if share >= 0.1 else 2
    return f'{share:.{digits}f} %'


def format_count(count: float) -> str:
    """``41.9 M`` for what comes in millions, else every one of them."""
    return f'{count / 1e6:.1f} M' if count >= 1e5 else f'{count:.0f}'


def format_signed(seconds: float) -> str:
    """``+0.200 s`` or ``-3.0 ms``."""
    return ('-' if seconds < 0 else '+') + format_seconds(abs(seconds))


def format_interval(prediction: Prediction) -> str:
    """``0.227 s to 0.315 s``, of an iteration."""
    low, high = prediction.iter_time_low_s, prediction.iter_time_high_s
    return f'{format_seconds(low)} to {format_seconds(high)}'


_BOUND_SPACE = '\ue000'
"""A private character, because rich breaks lines at a no-break space too."""
_UNIT = re.compile(r'(\d) (%|s|us|ms|min|KiB|MiB|GiB|MHz|W|C)(?![A-Za-z])')


def bind_units(text: str, space: str = _BOUND_SPACE) -> str:
    """Text in which no line is broken between a figure and its unit."""
    return _UNIT.sub(rf'\1{space}\2', text)


def unbind_units(text: str) -> str:
    """The text as it is read, once its lines are broken."""
    return text.replace(_BOUND_SPACE, ' ')


def short_path(path: Path | str | None) -> str | None:
    """The path as a user here would type it."""
    if path is None:
        return None
    relative = os.path.relpath(path)
    return str(path) if relative.startswith('..') else relative


def shell_path(path: str | None) -> str | None:
    """The same, as a word of a shell's command."""
    short = short_path(path)
    return None if short is None else shlex.quote(short)
