"""The plan of ``mmgpu sweep``: a short training of each combination of settings."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from mmgpu_hooks.experiment.engine import Outcome, Plan, Turn
from mmgpu_hooks.experiment.save_bench import plan_blocks
from mmgpu_hooks.experiment.trial import Progress, read_trial_run
from mmgpu_hooks.recommend.choice import DEFAULT_PREFETCH
from mmgpu_hooks.recommend.policy import KEY
from mmgpu_hooks.recommend.sweep import (
    choose_best,
    complete_row,
    estimate_iter,
    fit_memory,
    is_iter_settled,
)
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.figures import plural
from mmgpu_hooks.schema.tried import (
    ModelBytes,
    Sweep,
    SweepRow,
    SweepSetting,
    Trial,
    TrialSpec,
)

LEAST_WARM_UP = 10
TRIALS_FOLDER = 'trials'
OPTIMIZER_KEY = 'optim_wrapper.type'
AMP_WRAPPER, PLAIN_WRAPPER = 'AmpOptimWrapper', 'OptimWrapper'

_ALIKE = 2
"""Trials, the first ones, that fail alike: the others would fail alike too."""
_LEAST_INTERVAL = 10
_BLOCK_S = 1.0
"""About as long as a block trains, after which the evidence is read again."""


def list_settings(
    num_workers: Sequence[int], batch_sizes: Sequence[int | None] = (None,), **more: Any
) -> tuple[SweepSetting, ...]:
    """Every combination once, in the order of the table.

    PyTorch refuses a ``prefetch_factor`` without workers, so no workers are trained
    once for all of them.

    Args:
        num_workers: Numbers of workers.
        batch_sizes: Images per batch; ``None`` keeps the config's own.
        **more: Values of other fields of a setting.
    """
    values = {
        'gpus': more.get('gpus'),
        'amp': more.get('amp'),
        'pin_memory': more.get('pin_memory'),
        'prefetch_factor': more.get('prefetch_factor'),
        'batch_size': batch_sizes,
        'num_workers': num_workers,
    }
    ordered = [
        sorted(set(some or (None,)), key=lambda one: -1 if one is None else one)
        for some in values.values()
    ]
    found = (SweepSetting(**dict(zip(values, one))) for one in product(*ordered))
    possible = (
        one if one.num_workers else replace(one, prefetch_factor=None) for one in found
    )
    return tuple(dict.fromkeys(possible))


def plan_intervals(
    num_workers: int, prefetch_factor: int = DEFAULT_PREFETCH
) -> tuple[int, int]:
    """Iterations of an interval of the evidence, and how many first ones to leave out.

    An interval is a round of all workers at least, whose batches come in bursts. What
    workers make while the model is built comes all at once: that is the warm-up.
    """
    interval = max(_LEAST_INTERVAL, num_workers)
    ahead = num_workers * prefetch_factor
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
    saves: int = 0
    """Of a checkpoint, to be measured at the end of each trial; one more is made."""
    prefetch_factor: int = DEFAULT_PREFETCH
    """The config's own."""
    notes: Sequence[str] = ()
    """What to say of the settings themselves."""

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
            notes=(*self.notes, *outcome.notes),
            memory_lines=fit_memory(rows),
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
        prefetch = setting.prefetch_factor or self.prefetch_factor
        interval, warm_up = plan_intervals(setting.num_workers, prefetch)
        # workers persist, so that short epochs do not make it a measurement of their
        # start
        named = {
            'num_workers': setting.num_workers,
            'persistent_workers': True if setting.num_workers else None,
            'batch_size': setting.batch_size,
            'prefetch_factor': setting.prefetch_factor,
            'pin_memory': setting.pin_memory,
        }
        asked: dict[str, Any] = {
            f'{KEY}{key}': v for key, v in named.items() if v is not None
        }
        if setting.amp is not None:
            asked[OPTIMIZER_KEY] = AMP_WRAPPER if setting.amp else PLAIN_WRAPPER
        name = setting.name.replace(', ', '-').replace(' ', '-')
        gap = plan_blocks(
            setting.num_workers, saves=self.saves, prefetch_factor=prefetch
        )[0]
        spec = TrialSpec(
            config=self.config,
            folder=str(self.folder / TRIALS_FOLDER / name),
            settings={**self.lengthened, **asked},
            # a nice value that the config has must not make every save a niced one
            hook={
                'interval': interval,
                **({'worker_nice': None} if self.saves else {}),
            },
            last_saves=self.saves + 1 if self.saves else 0,
            save_gap=gap,
            ranks=setting.gpus or 1,
        )
        return Turn(
            setting.name,
            spec,
            # the block that is judged is never the last one that it knows of
            blocks=(warm_up * interval, interval, interval),
            more=lambda progress: self._add(interval, warm_up, progress),
            summarize=lambda *ended: self._summarize(setting, warm_up, *ended),
            time_limit_s=self.whole_s,
        )

    def _add(self, interval: int, warm_up: int, progress: Progress) -> int:
        """Iterations until it is judged again; none when it is known well enough."""
        iter_s = estimate_iter(read_trial_run(progress.folder), warm_up)
        passed_s = progress.seconds - (progress.first_block_s or 0.0)
        is_late = iter_s is not None and passed_s >= self.measure_s
        if is_iter_settled(iter_s) or is_late:
            return 0
        seconds = progress.blocks[-1].seconds
        interval_s = math.fsum(seconds) / len(seconds) * interval
        intervals = max(math.ceil(_BLOCK_S / max(interval_s, 1e-6)), 1)
        return min(intervals, 1000) * interval

    def _summarize(
        self, setting: SweepSetting, warm_up: int, progress: Progress, trial: Trial
    ) -> dict[str, Any]:
        known = {name: getattr(trial, name) for name in ('error', 'seconds', 'folder')}
        row = SweepRow(setting, trial.status, **known)
        if trial.status == 'timed_out' and progress.is_enough:
            # what was to be measured was, before its saves took the rest of the time
            row = replace(row, status='completed', error=None)
            row = replace(row, save_unknown='the time limit came before its saves')
        if progress.save_error is not None:
            row = replace(row, save_unknown=progress.save_error)
        counted = next((b.model_bytes for b in progress.blocks if b.model_bytes), None)
        if counted is not None:
            row = replace(row, model_bytes=ModelBytes(**counted))
        if row.error is None and not all(one.is_loss_finite for one in progress.blocks):
            row = replace(row, status='loss_not_finite')
        run = read_trial_run(Path(trial.folder))
        until = progress.measured if self.saves else None
        row = complete_row(row, run, warm_up, until)
        body: dict[str, Any] = msgspec.to_builtins({'row': row})
        return body
