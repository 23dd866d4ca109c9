"""The plan of ``mmgpu sweep``: a short training of each combination of settings."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from mmgpu_hooks.experiment.engine import Outcome, Plan, Turn
from mmgpu_hooks.experiment.trial import Progress, read_trial_run
from mmgpu_hooks.recommend.choice import DEFAULT_PREFETCH
from mmgpu_hooks.recommend.policy import KEY
from mmgpu_hooks.recommend.sweep import (
    choose_best,
    complete_row,
    estimate_iter,
    is_settled,
)
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.figures import plural
from mmgpu_hooks.schema.tried import Sweep, SweepRow, SweepSetting, Trial, TrialSpec

LEAST_WARM_UP = 10
TRIALS_FOLDER = 'trials'

_ALIKE = 2
"""Trials, the first ones, that fail alike: the others would fail alike too."""
_LEAST_INTERVAL = 10
_BLOCK_S = 1.0
"""About as long as a block trains, after which the evidence is read again."""


def list_settings(
    num_workers: Sequence[int], batch_sizes: Sequence[int | None] = (None,)
) -> tuple[SweepSetting, ...]:
    """Every combination once, in the order of the table.

    Args:
        num_workers: Numbers of workers.
        batch_sizes: Images per batch; ``None`` keeps the config's own.
    """
    return tuple(
        SweepSetting(workers, batch)
        for batch in sorted(set(batch_sizes), key=lambda size: size or 0)
        for workers in sorted(set(num_workers))
    )


def plan_intervals(num_workers: int) -> tuple[int, int]:
    """Iterations of an interval of the evidence, and how many first ones to leave out.

    An interval is a round of all workers at least, whose batches come in bursts. What
    workers make while the model is built comes all at once: that is the warm-up.
    """
    interval = max(_LEAST_INTERVAL, num_workers)
    ahead = num_workers * DEFAULT_PREFETCH
    return interval, -(-max(LEAST_WARM_UP, ahead) // interval)


@dataclass
class SweepPlan(Plan):
    """What is swept, and when a trial is long enough."""

    config: str
    """Absolute."""
    folder: Path
    """Of the sweep; absolute."""
    settings: Sequence[SweepSetting]
    measure_s: float
    """Seconds of measuring, once there are three intervals."""
    whole_s: float
    """Seconds of a whole trial, its start included; then it is killed."""
    lengthened: Mapping[str, Any] = field(default_factory=dict)
    """Settings that keep a short training from ending early."""

    def __post_init__(self) -> None:
        # a drift of the machine must not look like the effect of a setting
        order = random.Random(0).sample(self.settings, len(self.settings))
        self.turns = [self._make_turn(setting) for setting in order]

    def choose(self, trials: Sequence[Trial]) -> Turn | None:
        self._refuse_failing(trials)
        return super().choose(trials)

    def finish(self, outcome: Outcome) -> Sweep:
        """The table.

        Raises:
            UserError: If all of them fail.
        """
        self._refuse_failing(outcome.trials)
        found = {trial.name: trial for trial in outcome.trials}
        names = [one.name for one in self.settings if one.name in found]
        rows = [msgspec.convert(found[name].figures['row'], SweepRow) for name in names]
        return Sweep(
            rows=tuple(rows),
            asked=len(self.settings),
            best=choose_best(rows),
            seconds=outcome.seconds,
            is_interrupted=outcome.is_interrupted,
            notes=outcome.notes,
        )

    def _refuse_failing(self, trials: Sequence[Trial]) -> None:
        """It is the config that does not train, not one setting of it."""
        if not trials or any(trial.status != 'failed' for trial in trials):
            return
        is_alike = len(trials) == _ALIKE and len({trial.error for trial in trials}) == 1
        if is_alike or len(trials) == len(self.settings):
            last = trials[-1]
            raise UserError(
                f'{self.config}: expected a config that trains, found that '
                f'{plural(len(trials), "trial")} failed, the last with {last.name}: '
                f'{last.error}; the whole output is in {last.folder}.'
            )

    def _make_turn(self, setting: SweepSetting) -> Turn:
        interval, warm_up = plan_intervals(setting.num_workers)
        # workers persist, so that short epochs do not make it a measurement of their
        # start
        named = {
            'num_workers': setting.num_workers,
            'persistent_workers': True if setting.num_workers else None,
            'batch_size': setting.batch_size,
        }
        asked = {f'{KEY}{key}': v for key, v in named.items() if v is not None}
        name = setting.name.replace(', ', '-').replace(' ', '-')
        spec = TrialSpec(
            config=self.config,
            folder=str(self.folder / TRIALS_FOLDER / name),
            settings={**self.lengthened, **asked},
            hook={'interval': interval},
        )
        return Turn(
            setting.name,
            spec,
            # the block that is judged is never the last one that it knows of
            blocks=(warm_up * interval, interval, interval),
            more=lambda progress: self._add(interval, warm_up, progress),
            summarize=lambda *ended: _summarize(setting, warm_up, *ended),
            time_limit_s=self.whole_s,
        )

    def _add(self, interval: int, warm_up: int, progress: Progress) -> int:
        """Iterations until it is judged again; none when it is known well enough."""
        iter_s = estimate_iter(read_trial_run(progress.folder), warm_up)
        passed_s = progress.seconds - (progress.first_block_s or 0.0)
        is_late = iter_s is not None and passed_s >= self.measure_s
        if is_settled(iter_s) or is_late:
            return 0
        seconds = progress.blocks[-1].seconds
        interval_s = math.fsum(seconds) / len(seconds) * interval
        intervals = max(math.ceil(_BLOCK_S / max(interval_s, 1e-6)), 1)
        return min(intervals, 1000) * interval


def _summarize(
    setting: SweepSetting, warm_up: int, progress: Progress, trial: Trial
) -> dict[str, Any]:
    known = {name: getattr(trial, name) for name in ('error', 'seconds', 'folder')}
    row = SweepRow(setting, trial.status, **known)
    if row.error is None and not all(one.is_loss_finite for one in progress.blocks):
        row = replace(row, status='loss_not_finite')
    row = complete_row(row, read_trial_run(Path(trial.folder)), warm_up)
    body: dict[str, Any] = msgspec.to_builtins({'row': row})
    return body
