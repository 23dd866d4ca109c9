"""The plan of ``mmgpu save-bench``: saves beside several numbers of workers."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from mmgpu_hooks.experiment.engine import Outcome, Plan, Turn
from mmgpu_hooks.experiment.trial import (
    DEFAULT_TIME_LIMIT_S,
    Progress,
    read_trial_run,
)
from mmgpu_hooks.judge.save_experiment import judge_save_bench, summarize_saves
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.figures import plural
from mmgpu_hooks.schema.tried import (
    SaveBench,
    SaveBenchRow,
    SavePlan,
    TrialSpec,
)

SETTLING = 8
"""Least iterations between saves in which the workers' queue is what it usually is; as
many as there are workers where those are more, since their batches come in bursts."""


def plan_saves(
    num_workers: Sequence[int], *, saves: int, prefetch_factor: int
) -> tuple[SavePlan, ...]:
    """What each setting is to be trained for; each is there once.

    What workers make ahead during a save lasts for ``prefetch_factor x num_workers``
    iterations. A save in that time would meet workers that rest, so the next one comes
    a round of all workers later, :data:`SETTLING` iterations at least; and after the
    last one as many are trained as that takes, so that it is known what was won back.

    Args:
        num_workers: Numbers of workers.
        saves: To be measured of each.
        prefetch_factor: Of the loader.
    """
    plans = []
    for workers in sorted(set(num_workers)):
        ahead = prefetch_factor * workers
        between = ahead + max(SETTLING, workers)
        iterations = (saves + 1) * between + ahead
        plans.append(SavePlan(workers, saves, between, iterations))
    return tuple(plans)


@dataclass
class SaveBenchPlan(Plan):
    """A training for each setting, in random order: a drift of the machine is then not
    taken for the effect of a setting."""

    config: str
    """Absolute."""
    folder: Path
    """Where checkpoints go while it lasts."""
    plans: Sequence[SavePlan]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of every training, by dotted key."""
    time_limit_s: float = DEFAULT_TIME_LIMIT_S
    """Of each training, its start included."""

    def __post_init__(self) -> None:
        order = random.sample(self.plans, len(self.plans))
        self.turns = [self._make_turn(plan) for plan in order]

    def finish(self, outcome: Outcome) -> SaveBench:
        """Every setting against the one with the fewest workers.

        Raises:
            UserError: If nothing was measured without an interruption.
        """
        measured = [
            msgspec.convert(trial.figures['row'], SaveBenchRow)
            for trial in outcome.trials
        ]
        if not outcome.is_interrupted and not any(row.saves for row in measured):
            row = measured[0]
            raise UserError(
                'expected a config that trains and saves, found that it does not with '
                f'any of {plural(len(measured), "setting")}, with {row.name}: '
                f'{row.error or row.status}; make it train, or give it more time with '
                '--time-limit.'
            )
        return judge_save_bench(
            measured,
            asked=len(self.plans),
            seconds=outcome.seconds,
            is_interrupted=outcome.is_interrupted,
        )

    def _make_turn(self, plan: SavePlan) -> Turn:
        workers = plan.num_workers
        name = plural(workers, 'worker')
        spec = TrialSpec(
            config=self.config,
            folder=str(self.folder / str(workers)),
            settings={**self.settings, 'train_dataloader.num_workers': workers},
            # a nice value that the config has must not make every row niced
            hook={'interval': plan.interval, 'worker_nice': None},
            save_interval=plan.interval,
        )
        rounds, rest = divmod(plan.iterations, plan.interval)

        def summarize(progress: Progress) -> dict[str, Any]:
            trial = progress.end(name, self.time_limit_s, {})
            row = summarize_saves(plan, trial, read_trial_run(progress.folder))
            # the next one needs the space
            shutil.rmtree(progress.folder, ignore_errors=True)
            figures: dict[str, Any] = msgspec.to_builtins({'row': row})
            return figures

        return Turn(
            name,
            spec,
            blocks=(plan.interval,) * rounds + ((rest,) if rest else ()),
            summarize=summarize,
            time_limit_s=self.time_limit_s,
        )
