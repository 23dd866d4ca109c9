"""Hooks that take long now and then, beside one that does not, all at one point."""

from __future__ import annotations

import time
from typing import Any

from mmengine.hooks import Hook

from benchmarks.planted import TAPE

STEP_S = 0.005
"""Shorter than usual, since many iterations are needed."""


class _Planted(Hook):
    """Sleeps after each iteration that is its turn."""

    seconds = 0.0
    every = 1
    first = 0

    def after_train_iter(self, runner: Any, batch_idx: int, **rest: Any) -> None:
        if runner.iter % self.every == self.first:
            with TAPE.stamp(type(self).__name__):
                time.sleep(self.seconds)


class PlantedRare(_Planted):
    """Say, draws an image now and then."""

    seconds, every, first = 0.06, 40, 33


class PlantedOften(_Planted):
    """Takes long more often, and not so long."""

    seconds, every, first = 0.005, 7, 3


class PlantedBeside(_Planted):
    """Is never long."""

    seconds = 0.0003


RARE_HOOKS = (PlantedRare, PlantedOften, PlantedBeside)


def plant_rare(runner: Any) -> None:
    """Register all of them with a runner, and make its steps short."""
    runner.model.step_s = STEP_S
    for hook in RARE_HOOKS:
        runner.register_hook(hook())
