"""The plan of ``mmgpu demo``: a config as it is, then what is recommended after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmgpu_hooks.experiment.engine import Plan, Turn
from mmgpu_hooks.experiment.trial import ENDLESS
from mmgpu_hooks.schema import Trial, TrialSpec

NAMES = ('before', 'after')
"""Of the two trials, and of their folders."""


@dataclass
class DemoPlan(Plan):
    """Two whole trainings; the config of the second follows from the first."""

    config: str = ''
    folder: Path = Path()
    rewrite: Callable[[Trial], str | None] = lambda trial: None
    """The config to train after a trial; ``None`` when there is none."""

    @property
    def count(self) -> int:
        return len(NAMES)

    def choose(self, trials: Sequence[Trial]) -> Turn | None:
        done = len(trials)
        if done == len(NAMES) or any(one.error for one in trials):
            return None
        config = self.rewrite(trials[0]) if trials else self.config
        if config is None:
            return None
        name = NAMES[done]
        spec = TrialSpec(config, str(self.folder / name), is_whole=True)
        return Turn(name, spec, blocks=(ENDLESS,), time_limit_s=float('inf'))
