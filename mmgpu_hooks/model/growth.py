"""Does a series of memory readings grow without end, and when is it full? Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mmgpu_hooks.model.stats import CONFIDENCE, Column, student_t
from mmgpu_hooks.schema.judged import Estimate

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

WARM_UP = 1 / 3
"""Share of the iterations that is left out: caches fill, the allocator's pools grow."""

BLOCKS = 8
READINGS = 2 * BLOCKS
"""Readings behind the warm-up below which growth cannot be told from it."""

_LEAST_BYTES = 2**24
_LEAST_SHARE = 0.01
"""Of the level: growth below both is the allocator's own."""

_EVEN = 0.25
"""Each block grows by this share of the mean at least: a pool that only reaches its
largest size now and then grows by jumps, and stands still between them."""

_GOES_ON = 0.7
"""Growth of the second half over that of the first: a cache that fills slows down."""


def find_growth(
    iterations: ArrayLike,
    sizes: ArrayLike,
    *,
    least_bytes: float = _LEAST_BYTES,
    least_share: float = _LEAST_SHARE,
    warm_up: float = 0.0,
) -> Estimate | None:
    """Steady growth behind the warm-up, in bytes per 1000 iterations.

    The readings are cut into eight blocks. Growth is steady when every block's median
    is above the one before, by about as much, to the end.

    Args:
        iterations: At which it was read, ascending.
        sizes: Bytes; as many.
        least_bytes: Growth below it is none.
        least_share: Likewise, of the first block's level.
        warm_up: Iterations that are left out, where they are more than a third.

    Returns:
        With the count of readings; ``None`` without steady growth, or with too few
        of them to tell.
    """
    done, held = _behind_warm_up(iterations, sizes, warm_up)
    if len(done) < READINGS:
        return None
    blocks = np.array_split(np.arange(len(done)), BLOCKS)
    at = np.array([np.median(done[block]) for block in blocks])
    level = np.array([np.median(held[block]) for block in blocks])
    # a resumed run that trained some iterations twice goes back
    if (np.diff(done) < 0).any() or not (np.diff(at) > 0).all():
        return None
    speeds = np.diff(level) / np.diff(at)
    mean = (level[-1] - level[0]) / (at[-1] - at[0])
    grown = mean * (done[-1] - done[0])
    half = len(speeds) // 2
    is_steady = (
        grown >= max(least_bytes, least_share * level[0])
        and (speeds >= _EVEN * mean).all()
        and speeds[-half:].mean() >= _GOES_ON * speeds[:half].mean()
    )
    if not is_steady:
        return None
    slope = float(np.polyfit(at - at[0], level, 1)[0])  # medians: no spike counts
    error = float(speeds.std(ddof=1)) / len(speeds) ** 0.5
    spread = student_t((1 + CONFIDENCE) / 2, len(speeds) - 1) * error
    low, high = 1000 * (slope - spread), 1000 * (slope + spread)
    return Estimate(1000 * slope, low, high, len(done))


def count_missing(iterations: ArrayLike) -> int:
    """How many more readings are needed before growth can be told from warm-up."""
    behind = len(_behind_warm_up(iterations, iterations)[0])
    return max(READINGS - behind, 0)


def _behind_warm_up(
    iterations: ArrayLike, sizes: ArrayLike, warm_up: float = 0.0
) -> tuple[Column, Column]:
    done, held = np.asarray(iterations, float), np.asarray(sizes, float)
    if not len(done):
        return done, held
    late = done >= done[0] + max(WARM_UP * (done[-1] - done[0]), warm_up)
    return done[late], held[late]
