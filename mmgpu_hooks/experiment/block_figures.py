"""How long a block is to be, and what two settings' blocks come to. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from mmgpu_hooks.experiment.blocks import Block
from mmgpu_hooks.schema import Estimate

LEAST_PAIRS = 6
"""Below these a narrow interval is too often narrow by chance: stopping at +-2 % from
6 pairs on, an interval of 95 % covers the truth 92 to 96 times in 100."""

SETTLED = 0.02
"""The gain is known well enough when its interval is +- so much,"""

SETTLED_SHARE = 0.1
"""or so much of the gain itself."""

LEAST_WARM_UP = 10

_BLOCK_S = 3.0
_LEAST, _MOST, _FEWEST = 8, 400, 4
_RESUMED = 2
"""Iterations after a halt whose caches are cold."""


@dataclass(frozen=True)
class BlockPlan:
    """One length for the blocks of both settings, so that a pair has equal batches."""

    skipped: int
    """First iterations of a block that are left out."""
    measured: int

    @property
    def iterations(self) -> int:
        """Of a block."""
        return self.skipped + self.measured


@dataclass
class SideFigures:
    """What the blocks of one setting took."""

    steady_s: list[float] = field(default_factory=list)
    """Mean iteration of each block, first ones of epochs left out."""
    image_s: list[float] = field(default_factory=list)
    """The same per image; per batch where its size is unknown."""
    start_s: list[float] = field(default_factory=list)
    """What each first iteration of an epoch took beyond the others of its block."""

    def add(self, block: Block, skipped: int) -> None:
        """Add one block.

        Args:
            block: As it was trained.
            skipped: First iterations to leave out.
        """
        steady = [
            seconds
            for index, seconds in enumerate(block.seconds)
            if index >= skipped and index not in block.starts
        ]
        mean_s = statistics.fmean(steady or block.seconds)
        self.steady_s.append(mean_s)
        self.image_s.append(mean_s / (block.batch_size or 1))
        self.start_s += [block.seconds[index] - mean_s for index in block.starts]


def plan_blocks(
    warm_ups: Sequence[Block], workers: Sequence[int], left_s: float
) -> BlockPlan:
    """Blocks long enough to average over batches, short enough to share a moment.

    What a worker waits for while it is held (storage, a sleep) goes on, and comes as a
    gift to its next batch: a batch of each worker is left out, and two for the caches.

    Args:
        warm_ups: A block of each setting; their second halves tell the iteration.
        workers: Of each setting.
        left_s: Time budget left.
    """
    iteration_s = [
        statistics.fmean(block.seconds[len(block.seconds) // 2 :]) for block in warm_ups
    ]
    skipped = max(workers) + _RESUMED
    measured = min(math.ceil(_BLOCK_S / statistics.fmean(iteration_s)), _MOST)
    affordable = [left_s / math.fsum(iteration_s)]
    affordable += [block.left for block in warm_ups if block.left is not None]
    most = math.floor(min(affordable) / LEAST_PAIRS) - skipped
    return BlockPlan(skipped, max(min(max(measured, _LEAST), most), _FEWEST))


def is_settled(gain: Estimate | None) -> bool:
    """Whether more pairs would tell nothing that matters.

    Only after an even number of pairs: then each setting was first as often.
    """
    if gain is None or gain.count < LEAST_PAIRS or gain.count % 2:
        return False
    return gain.half_width <= max(SETTLED, SETTLED_SHARE * abs(gain.value))
