"""What the time ledger is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

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


@dataclass(frozen=True)
class LedgerReading:
    """The ledger's totals at one moment."""

    wall_s: Mapping[str, float]
    """Seconds by part."""
    data_wait_cpu_s: float
    """CPU seconds inside the waits that are over."""
    hooks_s: Mapping[str, float]
    """What of ``hooks`` went to which hook."""


@dataclass(frozen=True)
class Point:
    """A point of every iteration at which hooks are called."""

    following: str
    """Part that the loop itself is in once the hooks are done."""
    before: tuple[tuple[str, Callable[[], Any]], ...] = ()
    """What to call before the hooks, each with the source that it belongs to."""
    after: tuple[tuple[str, Callable[[], Any]], ...] = ()
    """What to call after them."""


Lap = tuple[float, float, float]
"""Where an iteration ended: all of ``data_wait``, all of ``step``, and a clock that
stands still outside iterations, in seconds."""
