"""Plan of ``mmgpu sweep``: a short training per combination of settings.

A trial is never halted: it is asked for its next block before the last one ends.
Meanwhile its evidence is read and judged, and once the interval has settled no further
block is asked for. So it measures what a user's run would, with the same figures and
the same code.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mmgpu_hooks.config.edits import HOOK_ROOTS
from mmgpu_hooks.experiment.engine import Outcome, Plan, Turn
from mmgpu_hooks.experiment.save_bench import count_between_saves
from mmgpu_hooks.experiment.sweep_judge import (
    choose_best,
    complete_row,
    estimate_iter,
    fit_memory,
    is_iter_settled,
)
from mmgpu_hooks.experiment.trial import Progress, read_trial_run
from mmgpu_hooks.model.prediction import LoaderSetting
from mmgpu_hooks.model.workload import DEFAULT_PREFETCH
from mmgpu_hooks.recommend.settings import BY_NAME, SETTINGS
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.text import decode_text, encode_text, phrase, quoted
from mmgpu_hooks.schema.tried import (
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

_OF_WORKERS = frozenset(
    setting.name for setting in SETTINGS if setting.resting is not ...
)
_ALIKE = 2
"""Number of first trials after which a sweep ends if all failed with the same error."""
_LEAST_INTERVAL = 10
_BLOCK_S = 1.0
"""Approximate seconds between two checks if a sweep's trial may end."""


def list_settings(
    asked: Mapping[str, Sequence[Any]],
    *,
    amp: Sequence[bool] = (),
    gpus: Sequence[int] = (),
) -> tuple[SweepSetting, ...]:
    """Lists all combinations of the settings to try, in the order of the sweep's table.

    What PyTorch refuses without workers is left to the config there, so no workers are
    trained once for all of its values.

    Args:
        asked: Values by the name of the setting; no value, or ``None``, is the config's
            own.
        amp: On or off. Default, as for the next: the config's own.
        gpus: Processes that train.
    """
    # workers change fastest, batch sizes next
    last = [name for name in ('batch_size', 'num_workers') if name in asked]
    first = [name for name in asked if name not in last]
    values = {'gpus': gpus, 'amp': amp, **{name: asked[name] for name in first + last}}
    ordered = [
        sorted(set(given or (None,)), key=lambda value: -1 if value is None else value)
        for given in values.values()
    ]
    found = dict[SweepSetting, None]()
    for combination in product(*ordered):
        named = dict(zip(values, combination))
        amp_on, ranks = named.pop('amp'), named.pop('gpus')
        if not named['num_workers']:
            named = {
                name: None if name in _OF_WORKERS else value
                for name, value in named.items()
            }
        found[SweepSetting.of(named, amp=amp_on, gpus=ranks)] = None
    return tuple(found)


class IntervalPlan(NamedTuple):
    """Length of a trial's log intervals, in iterations, and how many are warm-up."""

    iterations: int
    """Number of iterations in each log interval."""
    warm_up: int
    """Number of log intervals at a trial's start that are left out of its results."""


def plan_intervals(loader: LoaderSetting) -> IntervalPlan:
    """Chooses a trial's log interval and warm-up, by its loader's workers and prefetch.

    An interval is a round of all workers at least, whose batches come in bursts. What
    workers make while the model is built comes all at once: that is the warm-up.
    """
    interval = max(_LEAST_INTERVAL, loader.num_workers)
    ahead = loader.num_workers * loader.prefetch_factor
    return IntervalPlan(interval, -(-max(LEAST_WARM_UP, ahead) // interval))


@dataclass
class SweepPlan(Plan):
    """Plan of a sweep's trials; each is trained until its iteration time is known."""

    config: str
    """Absolute path of the config to train."""
    folder: Path
    """Absolute path of the sweep's folder."""
    settings: Sequence[SweepSetting]
    measure_s: float
    """Seconds of training after warm-up at which a sweep's trial ends, if not earlier.

    It has three log intervals or more by then."""
    whole_s: float
    """Seconds from a trial's start after which it is killed."""
    lengthened: Mapping[str, Any] = field(default_factory=dict)
    """Config settings that keep a trial from running out of epochs, by dotted key."""
    saves: int = 0
    """Number of checkpoint saves to time at a trial's end, after a warm-up save."""
    prefetch_factor: int = DEFAULT_PREFETCH
    """Number of batches that a worker loads ahead, by the config."""
    notes: Sequence[str] = ()
    """Sentences on the settings to try, for the sweep's result."""

    def __post_init__(self) -> None:
        # a drift of the machine must not look like the effect of a setting
        order = random.Random(0).sample(self.settings, len(self.settings))
        self.turns = [self._make_turn(setting) for setting in order]

    def choose(self, trials: Sequence[Trial]) -> Turn | None:
        self._refuse_failing(trials)
        return super().choose(trials)

    def finish(self, outcome: Outcome) -> Sweep:
        """Makes the sweep's result from its trials: a table, and the best settings.

        Raises:
            UserError: If all of them fail.
        """
        self._refuse_failing(outcome.trials)
        found = {trial.name: trial for trial in outcome.trials}
        names = [setting.name for setting in self.settings if setting.name in found]
        rows = [
            msgspec.convert(found[name].figures['row'], SweepRow, dec_hook=decode_text)
            for name in names
        ]
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
        """Raises a `UserError` if the swept config itself does not train."""
        if not trials or any(trial.status != 'failed' for trial in trials):
            return
        is_alike = len(trials) == _ALIKE and len({trial.error for trial in trials}) == 1
        if is_alike or len(trials) == len(self.settings):
            last = trials[-1]
            raise UserError(
                phrase(
                    '{config}: expected a config that trains, found that {trials} '
                    'failed, the last with {name}: {error}; the whole output is in '
                    '{folder}.',
                    config=self.config,
                    trials=len(trials),
                    name=last.name,
                    error=last.error,
                    folder=last.folder,
                )
            )

    def _make_turn(self, setting: SweepSetting) -> Turn:
        prefetch = setting.prefetch_factor or self.prefetch_factor
        loader = LoaderSetting(setting.num_workers, prefetch, persistent_workers=True)
        intervals = plan_intervals(loader)
        asked: dict[str, Any] = {}
        hook: dict[str, Any] = {'interval': intervals.iterations}
        if setting.num_workers:
            # workers persist, so that short epochs do not make it a measurement of
            # their start
            asked[BY_NAME['persistent_workers'].key()] = True
        if self.saves:
            # a nice value that the config has must not make every save a niced one
            hook['worker_nice'] = None
        for key, value in setting.values.items():
            # the hook of a trial is its own
            is_of_hook = BY_NAME[key].place.startswith(HOOK_ROOTS)
            given, named = (hook, key) if is_of_hook else (asked, BY_NAME[key].key())
            given[named] = value
        if setting.amp is not None:
            asked[OPTIMIZER_KEY] = AMP_WRAPPER if setting.amp else PLAIN_WRAPPER
        name = setting.name.replace(', ', '-').replace(' ', '-')
        spec = TrialSpec(
            config=self.config,
            folder=str(self.folder / TRIALS_FOLDER / name),
            settings={**self.lengthened, **asked},
            hook=hook,
            last_saves=self.saves + 1 if self.saves else 0,
            save_gap=count_between_saves(setting.num_workers, prefetch),
            ranks=setting.gpus or 1,
        )
        return Turn(
            str(setting.name),
            spec,
            # the block that is judged is never the last one that it knows of
            blocks=(
                intervals.warm_up * intervals.iterations,
                intervals.iterations,
                intervals.iterations,
            ),
            more=lambda progress: self._add(intervals, progress),
            summarize=lambda progress, trial: self._summarize(
                setting, intervals.warm_up, progress, trial
            ),
            time_limit_s=self.whole_s,
        )

    def _add(self, planned: IntervalPlan, progress: Progress) -> int:
        """Returns how many iterations a trial trains next; 0 ends the trial."""
        iter_s = estimate_iter(read_trial_run(progress.folder), planned.warm_up)
        is_late = iter_s is not None and progress.measured_s >= self.measure_s
        if is_iter_settled(iter_s) or is_late:
            return 0
        seconds = progress.blocks[-1].seconds
        interval_s = math.fsum(seconds) / len(seconds) * planned.iterations
        intervals = max(math.ceil(_BLOCK_S / max(interval_s, 1e-6)), 1)
        return min(intervals, 1000) * planned.iterations

    def _summarize(
        self, setting: SweepSetting, warm_up: int, progress: Progress, trial: Trial
    ) -> dict[str, Any]:
        row = SweepRow(
            setting,
            trial.status,
            error=trial.error,
            seconds=trial.seconds,
            folder=trial.folder,
        )
        if trial.status == 'timed_out' and progress.is_enough:
            # what was to be measured was, before its saves took the rest of the time
            row = replace(row, status='completed', error=None)
            late = phrase('the time limit came before its saves')
            row = replace(row, save_unknown=late)
        if progress.save_error is not None:
            row = replace(row, save_unknown=quoted(progress.save_error))
        counted = (block.model_bytes for block in progress.blocks if block.model_bytes)
        row = replace(row, model_bytes=next(counted, None))
        is_finite = all(block.is_loss_finite for block in progress.blocks)
        if row.error is None and not is_finite:
            row = replace(row, status='loss_not_finite')
        run = read_trial_run(Path(trial.folder))
        until = progress.measured if self.saves else None
        row = complete_row(row, run, warm_up, until)
        body: dict[str, Any] = msgspec.to_builtins({'row': row}, enc_hook=encode_text)
        return body
