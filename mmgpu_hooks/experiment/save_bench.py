"""Plan of ``mmgpu save-bench``: times checkpoint saves with several worker counts."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from mmgpu_hooks.experiment.engine import Outcome, Plan, Turn
from mmgpu_hooks.experiment.save_bench_judge import judge_save_bench, summarize_saves
from mmgpu_hooks.experiment.trial import DEFAULT_TIME_LIMIT_S, Progress, read_trial_run
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.figures import plural
from mmgpu_hooks.schema.text import decode_text, encode_text, phrase
from mmgpu_hooks.schema.tried import SaveBench, SaveBenchRow, Trial, TrialSpec

SETTLING = 8
"""Minimum number of iterations between two saves, to refill the batch queue.

With more workers it is their number, since their batches come in bursts."""


def count_between_saves(num_workers: int, prefetch_factor: int) -> int:
    """Returns the number of iterations from one checkpoint save to the next.

    What workers make ahead during a save lasts for ``prefetch_factor x num_workers``
    iterations. A save in that time would meet workers that rest, so the next one comes
    a round of all workers later, :data:`SETTLING` iterations at least.
    """
    return prefetch_factor * num_workers + max(SETTLING, num_workers)


def plan_blocks(num_workers: int, *, saves: int, prefetch_factor: int) -> list[int]:
    """Returns numbers of iterations before each checkpoint save and after the last one.

    After the last save as many are trained as what was made ahead lasts, so that it is
    known what was won back.

    Args:
        num_workers: Of the loader.
        saves: To be measured; one more is made before.
        prefetch_factor: Of the loader.
    """
    blocks = [count_between_saves(num_workers, prefetch_factor)] * (saves + 1)
    ahead = prefetch_factor * num_workers
    return [*blocks, ahead] if ahead else blocks


@dataclass
class SaveBenchPlan(Plan):
    """Plan of trainings that time checkpoint saves, one for each number of workers.

    A drift of the machine is then not taken for the effect of a setting.
    """

    config: str
    """Absolute path of the config to train."""
    folder: Path
    """Path of the folder for the trials and their checkpoints."""
    num_workers: Sequence[int]
    saves: int
    """Number of checkpoint saves to time with each number of workers."""
    prefetch_factor: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Config settings to set in every training, by dotted key."""
    time_limit_s: float = DEFAULT_TIME_LIMIT_S
    """Seconds from a training's start after which it is killed."""

    def __post_init__(self) -> None:
        numbers = set(self.num_workers)
        order = random.sample(sorted(numbers), len(numbers))
        self.turns = [self._make_turn(workers) for workers in order]

    def finish(self, outcome: Outcome) -> SaveBench:
        """Compares checkpoint save times of each worker count to those of the smallest.

        Raises:
            UserError: If nothing was measured without an interruption.
        """
        rows = [trial.figures['row'] for trial in outcome.trials]
        measured = msgspec.convert(rows, list[SaveBenchRow], dec_hook=decode_text)
        if not outcome.is_interrupted and not any(row.saves for row in measured):
            row = measured[0]
            raise UserError(
                phrase(
                    'expected a config that trains and saves, found that it does not '
                    'with any of {settings}, with {name}: {error}; make it train, or '
                    'give it more time with --time-limit.',
                    settings=len(measured),
                    name=row.name,
                    error=row.error or row.status,
                )
            )
        return judge_save_bench(
            measured,
            asked=len(self.turns),
            seconds=outcome.seconds,
            is_interrupted=outcome.is_interrupted,
        )

    def _make_turn(self, workers: int) -> Turn:
        blocks = plan_blocks(
            workers, saves=self.saves, prefetch_factor=self.prefetch_factor
        )
        between = count_between_saves(workers, self.prefetch_factor)
        spec = TrialSpec(
            config=self.config,
            folder=str(self.folder / str(workers)),
            settings={**self.settings, 'train_dataloader.num_workers': workers},
            # a nice value that the config has must not make every row niced
            hook={'interval': between, 'worker_nice': None},
            save_interval=between,
        )

        def summarize(progress: Progress, trial: Trial) -> dict[str, Any]:
            run = read_trial_run(progress.folder)
            row = summarize_saves(workers, self.saves, trial, run)
            # the next one needs the space
            shutil.rmtree(progress.folder, ignore_errors=True)
            figures: dict[str, Any] = msgspec.to_builtins(
                {'row': row}, enc_hook=encode_text
            )
            return figures

        return Turn(
            plural(workers, 'worker'),
            spec,
            tuple(blocks),
            summarize=summarize,
            time_limit_s=self.time_limit_s,
        )
