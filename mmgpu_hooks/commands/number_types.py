"""Numbers on the command line, as types of arguments."""

from __future__ import annotations

import argparse
import math
from typing import Callable


def whole_from(least: int, most: int | None = None) -> Callable[[str], int]:
    """A parser of whole numbers of a range."""
    words = f'{least} or more' if most is None else f'{least} to {most}'

    def parse(text: str) -> int:
        number = int(text) if text.isdecimal() else -1
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(
                f'expected a whole number, {words}, found {text}'
            )
        return number

    return parse


def seconds_above_0(text: str) -> float:
    """A parser of durations.

    Raises:
        argparse.ArgumentTypeError: If it is none.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise argparse.ArgumentTypeError(f'expected seconds above 0, found {text}')
    return seconds
