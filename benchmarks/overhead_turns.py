"""Trainings that live side by side in one thread and take turns.

A machine's speed drifts by more than a hook costs, within a second: what is compared
must have been measured within less. And it must have been measured in one thread: of
two equal trainings in threads of their own, one was faster by 1 % for a minute, because
the kernel had given it the better core.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

from mmengine.registry import LOOPS
from mmengine.runner import EpochBasedTrainLoop, Runner

from benchmarks.overhead_loop import train


@LOOPS.register_module()
class SteppedLoop(EpochBasedTrainLoop):
    """MMEngine's loop, of one epoch, whose iterations somebody else asks for."""

    on_begun: Callable[[], None]
    """Called when it has begun; the epoch ends when it returns."""

    def run_epoch(self) -> None:
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        self._batches: Any = enumerate(self.dataloader)
        self.on_begun()
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1

    def take(self) -> None:
        """Train one iteration, with the loading of its batch."""
        index, batch = next(self._batches)
        self.run_iter(index, batch)


def train_side_by_side(runners: Sequence[Runner], drive: Callable[[], None]) -> None:
    """Train all at once: one begins within the other, and the last one drives.

    Args:
        runners: With loops that have ``on_begun`` and ``take``.
        drive: Asks the loops for iterations; when it returns, all trainings end.
    """
    if not runners:
        drive()
        return
    first, *others = runners
    first.train_loop.on_begun = lambda: train_side_by_side(others, drive)
    train(first)
