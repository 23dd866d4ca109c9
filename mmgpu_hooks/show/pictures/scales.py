"""From figures to pixels, and the round figures that axes are marked with."""

from __future__ import annotations

import math
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_CLOCK_STEPS_S = (
    *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 900.0, 1800.0),
    *(3600.0, 7200.0, 10800.0, 21600.0, 43200.0, 86400.0),
)


@dataclass(frozen=True)
class Scale:
    """A straight line from ``low..high`` to ``start..end`` pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.0
        return self.start + share * (self.end - self.start)


def round_ticks(high: float, most: int = 5) -> list[float]:
    """Round figures from 0 up to the first that is not below ``high``.

    Args:
        high: Largest figure to show; nothing above 0 gives 0 and 1.
        most: Steps at most.
    """
    if not high > 0 or not math.isfinite(high):
        return [0.0, 1.0]
    raw = high / most
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(s * magnitude for s in _STEPS if s * magnitude >= raw * (1 - 1e-9))
    count = min(max(math.ceil(high / step - 1e-9), 1), most)
    return [number * step for number in range(count + 1)]


def clock_ticks(low_s: float, high_s: float, most: int = 8) -> list[float]:
    """Round moments within ``low_s..high_s``."""
    span = high_s - low_s
    if not span > 0:
        return [low_s]
    raw = span / most
    if raw < 1:
        step = round_ticks(span, most)[1]
    else:
        days = (math.ceil(raw / 86400) * 86400.0,)
        step = next(step for step in (*_CLOCK_STEPS_S, *days) if step >= raw)
    first = math.ceil(low_s / step - 1e-9)
    last = math.floor(high_s / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def format_clock(seconds: float) -> str:
    """``0:05``, ``12:30``, ``3:05:00``: time since training began."""
    whole = round(seconds)
    if abs(seconds - whole) > 1e-6 and seconds < 60:
        return f'0:{seconds:04.1f}' if seconds >= 10 else f'0:0{seconds:.2g}'
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f'{hours}:{minutes:02}:{left:02}' if hours else f'{minutes}:{left:02}'


def choose_unit(high_s: float) -> tuple[float, str]:
    """How many of the unit a second is, and its name, for figures up to ``high_s``."""
    if high_s < 0.001:
        return 1e6, 'us'
    if high_s < 1:
        return 1e3, 'ms'
    return (1.0, 's') if high_s < 600 else (1 / 60, 'min')


def format_tick(value: float) -> str:
    """A figure of an axis without idle digits."""
    return f'{value:.6g}'
