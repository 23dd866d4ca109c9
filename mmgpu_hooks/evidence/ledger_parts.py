"""What the time ledger is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

PARTS: tuple[str, ...] = (
    'data_wait',
    'step',
    'hooks',
    'checkpoint_save',
    'validation',
    'worker_startup',
    'other',
)
"""Every second of training is in exactly one of these."""

UNSPLIT = 'hooks'
"""Hooks of an iteration that nobody looks at: not split by hook."""
LOOKED = 'hooks/looked'
"""Between two hooks of an iteration that is looked at, which stands for others."""
EXACT = 'hooks/exact'
"""Between two hooks at the points that are seldom: they stand for themselves."""

BETWEEN = frozenset({UNSPLIT, LOOKED, EXACT})
"""What runs at a hook point while no hook does that is timed."""

OF_LOOP = frozenset(PARTS) - BETWEEN
"""What the plain loop is in between two hook points."""

UNTOLD = '(not told apart)'
"""Stands for a hook's name where hooks took long and nobody knows which of them."""


class LedgerReading(NamedTuple):
    """The ledger's totals at one moment."""

    wall_s: Mapping[str, float]
    """Seconds by part."""
    data_wait_cpu_s: float
    """CPU seconds inside the waits that are over."""
    hooks_s: Mapping[str, float]
    """What of ``hooks`` went to which hook."""


Moments = tuple[tuple[str, Callable[[], Any]], ...]
"""What to call at a moment, each with the source that it belongs to."""


class Point(NamedTuple):
    """A point of every iteration at which hooks are called."""

    following: str
    """Part that the loop itself is in once the hooks are done."""
    between: str = UNSPLIT
    """What runs while no hook does that is timed."""
    before: Moments = ()
    """What to call before the hooks."""
    after: Moments = ()
    """What to call after them."""


Lap = tuple[float, float, float]
"""Where an iteration ended: all of ``data_wait``, all of ``step``, and a clock that
stands still outside iterations, in seconds."""
