"""Types of the settings search: `Setting`, `Job` (a run to be tuned) and `Decision`.

A setting maps a :class:`Prospect` to a :class:`Prospect`; the search asks all settings
alike. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.batches import CardMemory
from mmgpu_hooks.model.prediction import JobPlan, LoaderSetting
from mmgpu_hooks.model.prospect import Prospect
from mmgpu_hooks.model.workload import DEFAULT_PREFETCH, Workload
from mmgpu_hooks.recommend.limits import Limits, LiveLoader, WorkerCap
from mmgpu_hooks.schema.judged import SaveCure
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.schema.values import Values

TRAIN, VALIDATION = 'train_dataloader', 'val_dataloader'
"""Config keys of the DataLoaders that are tuned."""

SAME_SPEED = 0.02
"""Relative time difference (0.02: 2 %) up to which settings count as equally fast.

The first one wins.
"""

Choice = Mapping[str, Any]
"""Type: value for each setting by name; ``None`` is the setting's default.

Never changed in place.
"""

_NOTHING = Text('')


class Setting:
    """Base class of a tuned config setting: its key, values, effect on training time.

    A subclass says what differs from the defaults here; :mod:`mmgpu_hooks.recommend.
    settings` lists all of them.
    """

    name: ClassVar[str]
    """Name of the setting, as in options of commands and columns of tables.

    It is the key of a :data:`Choice`, too."""
    noun: ClassVar[Text]
    """Noun phrase that names the setting in ``--help``."""
    values: ClassVar[Values]
    """Type and range of the setting's values in a config."""
    most: ClassVar[int | None] = None
    """Largest value that a user may enter; larger ones are treated as typos.

    Where no config has a larger one."""
    place: ClassVar[str] = ''
    """Dotted config key of the dict that holds the setting.

    Empty where each loader has its own."""
    resting: ClassVar[Any] = ...
    """Value that PyTorch demands of the setting without workers; ``...``: any value."""
    near: ClassVar[float] = SAME_SPEED
    """Relative time difference to the fastest value up to which values count as equal.

    The first one wins."""
    is_nested: ClassVar[bool] = False
    """True if the search tunes all later settings anew for each value of this one.

    Such a setting changes the work of a batch."""
    is_bounded: ClassVar[bool] = False
    """True if the workload's lower time bound holds for every value of the setting.

    Such a setting leaves the work of a batch alone."""
    must_be_sure: ClassVar[bool] = False
    """True if this setting's own predicted gain must be sure for it to be changed.

    Not only that of all changes together."""
    is_recipe: ClassVar[bool] = False
    """True if another value of the setting changes the trained model.

    No change is of high confidence, and none is trained to verify the others."""
    is_alone: ClassVar[bool] = False
    """True if a separate rule decides the setting's value instead of the search.

    No iteration shows its effect."""
    rules: ClassVar[tuple[str, ...]] = ()
    """Codes of the diagnostic rules that ask for a change of the setting."""

    @property
    def is_of_loader(self) -> bool:
        """True if each DataLoader has its own value of the setting."""
        return not self.place

    def key(self, loader: str = TRAIN) -> str:
        """Returns the dotted config key of the setting, as in ``--cfg-options``."""
        return f'{self.place or loader}.{self.name}'

    def read(self, run: Run) -> Any:
        """Reads the setting's value in a run; ``None`` if not set or not recorded."""
        raise NotImplementedError

    def candidates(self, job: Job, at: Choice) -> Iterable[Any]:
        """Lists values to try within the host's limits, lowest resource use first.

        By default none but its own: it follows from others, or its effect is unknown.
        """
        return (at[self.name],)

    def settle(self, job: Job, at: Choice) -> Any:
        """Returns the value that other settings imply, else the current value."""
        return at[self.name]

    def assume(self, job: Job, at: Choice) -> Any:
        """Returns the value to assume while another setting's values are compared.

        It is given back where it gains nothing itself.
        """
        return at[self.name]

    def fill_in(self, job: Job, at: Choice) -> Any:
        """Returns the value to predict with if the user gave none."""
        return at[self.name]

    def apply(self, job: Job, then: Prospect, new: Any, slip: float = 0.0) -> Prospect:
        """Predicts training time (a `Prospect`) with one value of the setting.

        Args:
            job: The run, and the values that it had.
            then: The training with the settings before this one.
            new: The value.
            slip: Standard errors by which the effect is smaller than expected.
        """
        return then

    def why_unknown(self, job: Job, new: Any) -> Text | None:
        """Says why a value's effect cannot be predicted; ``None`` if it can."""
        return None

    def score_s(self, then: Prospect) -> float:
        """Returns predicted seconds per image: the value with the fewest is best."""
        return then.image_s

    def handicap(self, job: Job, new: Any) -> float:
        """Returns the share of training time a new value must save to be chosen."""
        return 0.0

    def may_be_needed(self, job: Job, at: Choice) -> bool:
        """True if the run may need another value of the setting, whatever the gain."""
        return False

    def is_needed(self, job: Job, before: Choice, after: Choice) -> bool:
        """True if host limits require the setting to change, even without a gain."""
        return False

    def why(self, decision: Decision) -> Text:
        """Phrases the reason for a decided change of the setting, as a sentence."""
        raise NotImplementedError

    def is_asked(self, job: Job) -> bool:
        """True if the user asked for a change; keeping the value needs a reason."""
        return False

    def why_not(self, decision: Decision) -> Text:
        """Phrases why the setting stays although the user asked for a change."""
        raise NotImplementedError

    def cite(self, decision: Decision) -> tuple[str, ...]:
        """Returns the codes of rules, like MG101, that ask for the decided change."""
        return self.rules

    def judge_alone(self, run: Run, at: Choice) -> LoneChange | None:
        """Returns a value that shortens checkpoint saves, and its effect, or ``None``.

        Args:
            run: The run.
            at: The values that are recommended of the others.
        """
        return None

    def judge_unpredicted(self, run: Run) -> Unpredicted | None:
        """Returns a change that measurements justify if no prediction is possible."""
        return None

    def advise(self, run: Run) -> Text | None:
        """Returns advice on an unmeasured effect of the setting; it is not applied."""
        return None


@dataclass(frozen=True)
class Unpredicted:
    """Change of a setting that measurements justify, without a prediction."""

    new: Any
    gain: Gain
    reason: Text


@dataclass(frozen=True)
class LoneChange:
    """Recommended value of a setting, chosen for its effect on checkpoint saves."""

    cure: SaveCure
    """Predicted seconds by which the setting shortens checkpoint saves."""
    new: Any = None
    """Recommended value of the setting; ``None`` if it is not to be changed."""
    reason: Text = _NOTHING


@dataclass(frozen=True)
class Gain:
    """Predicted saving by a change, as a share (0 to 1) of the training's time."""

    share: float
    low: float
    """Lower end of the interval that holds the true share saved 9 times in 10."""
    high: float
    noise: float = 0.0
    """Standard error of the saved share of time due to the scatter of measurements."""

    @property
    def is_worthwhile(self) -> bool:
        """True if the gain is at least the threshold for changes and its own error."""
        return self.share >= max(thresholds.WORTHWHILE_GAIN, self.noise)

    @property
    def phrase(self) -> Text:
        """Clause on the gain: ``9 % of the time (4 to 14 %, 9 times in 10)``."""
        return phrase(
            '{share} of the time ({low_pct:.0f} to {high_pct}, 9 times in 10)',
            share=self.share,
            low_pct=100 * self.low,
            high_pct=100 * self.high,
        )


@dataclass(frozen=True)
class Job:
    """A run to be tuned: its settings, their old values, and its predicted time."""

    run: Run
    base: Prospect
    """Predicted training time (a `Prospect`) with the run's own settings."""
    old: Choice
    """Values of all settings that the run was trained with, by name."""
    limits: Limits
    settings: Sequence[Setting]
    """Settings that the search tunes, in search order."""
    loader: str = TRAIN
    memory: CardMemory | None = None
    """Fitted line of GPU memory bytes against batch size.

    ``None`` where no other size is asked for."""

    @classmethod
    def of(
        cls,
        run: Run,
        workload: Workload,
        settings: Sequence[Setting],
        *,
        loader: str = TRAIN,
        beside: LiveLoader | None = None,
        memory: CardMemory | None = None,
    ) -> Job:
        """Makes the `Job` of a run, by predicting the run's time with its own settings.

        Args:
            run: The run.
            workload: Its own, or the one fitted to several runs.
            settings: Those that are tuned.
            loader: The one that they are of.
            beside: A loader whose workers live on meanwhile.
            memory: Of the card against the batch size.
        """
        old = {setting.name: setting.read(run) for setting in settings}
        nothing = LoaderSetting(0, DEFAULT_PREFETCH, persistent_workers=False)
        base = Prospect(workload, nothing, plan_job(run))
        limits = Limits(run, beside, 'validation' if loader == VALIDATION else 'train')
        job = cls(run, base, old, limits, settings, loader, memory)
        return replace(job, base=job.at(old))

    def at(
        self, choice: Choice, workload: Workload | None = None, slipping: str = ''
    ) -> Prospect:
        """Predicts the training's time, as a `Prospect`, with given setting values.

        Args:
            choice: Of every setting.
            workload: In place of the run's.
            slipping: The setting whose effect is a standard error less than expected.
        """
        then = self.base
        if workload is not None:
            then = replace(then, workload=workload)
        for setting in self.settings:
            slip = float(setting.name == slipping)
            then = setting.apply(self, then, choice[setting.name], slip)
        return then

    def settle(self, choice: Choice) -> Choice:
        """Recomputes the values of settings that follow from other settings."""
        for setting in self.settings:
            choice = {**choice, setting.name: setting.settle(self, choice)}
        return choice

    def rest(self, choice: Choice) -> Choice:
        """Resets the values of settings that need workers, if ``num_workers`` is 0."""
        if self.at(choice).loader.num_workers:
            return choice
        resting = {
            setting.name: setting.resting
            for setting in self.settings
            if setting.resting is not ...
        }
        return {**choice, **resting}

    def assume(self, choice: Choice) -> Choice:
        """Sets the values that predictions assume while another setting is compared."""
        for setting in self.settings:
            choice = {**choice, setting.name: setting.assume(self, choice)}
        return choice

    def cap(self, choice: Choice) -> WorkerCap:
        """Returns the largest number of workers that the host allows."""
        then, size = self.at(choice), self.base.workload.batch_size
        larger = (then.workload.batch_size or 1) / (size or 1)
        ahead = max(then.loader.prefetch_factor, DEFAULT_PREFETCH)
        return self.limits.cap(ahead, larger)

    @cached_property
    def cores(self) -> int:
        """Number of whole cores that this rank may use."""
        usable = self.run.meta.host.usable_cores
        return 1 if usable is None else max(math.floor(usable), 1)

    @property
    def without_other_load(self) -> Job:
        """Copy of the job with times predicted for a host without other programs."""
        return replace(self, base=self.base.without_other_load)


def plan_job(run: Run) -> JobPlan:
    """Returns a run's configured length: iterations per epoch, epochs, save seconds.

    A loop that counts iterations says nothing of its epochs (a sampler may have no
    end): it is one long epoch.
    """
    record = run.meta
    done, epochs = max(run.figures.iterations, 1), 1
    iterations = record.max_iters or done
    if record.loop == 'epoch' and record.loader.batches_per_epoch:
        iterations = record.loader.batches_per_epoch
        epochs = record.max_epochs or max(run.figures.epoch_starts, 1)
    saves_s = (
        run.figures.ledger_s.get('checkpoint_save', 0.0) * iterations * epochs / done
    )
    return JobPlan(iterations, epochs, saves_s)


def read_loader(run: Run) -> LoaderSetting:
    """Reads a run's DataLoader settings in the form that predictions take."""
    loader = run.meta.loader
    workers = loader.num_workers or 0
    persistent = bool(loader.persistent_workers) and workers > 0
    prefetch = loader.prefetch_factor or DEFAULT_PREFETCH
    return LoaderSetting(workers, prefetch, persistent)


@dataclass(frozen=True)
class Rejection:
    """Setting values whose predicted gain is not sure enough for a change."""

    choice: Choice
    gain: Gain
    alone: Gain
    """Predicted gain of the rejected values on a host without other programs."""


@dataclass(frozen=True)
class Decision:
    """Decided values of all settings; those without a sure gain keep the old value."""

    job: Job
    new: Choice
    gain: Gain | None = None
    """Share of training time (0 to 1) that all changes save; ``None`` if none."""
    rejected: Mapping[str, Rejection] = field(default_factory=dict)
    """Values rejected because their gain is unsure, by name of the setting.

    All together by ``''``."""

    @property
    def old(self) -> Choice:
        """Values of all settings that the run was trained with, by name."""
        return self.job.old

    @property
    def changed(self) -> Iterator[Setting]:
        """Settings whose decided value differs from the run's, in search order."""
        for setting in self.job.settings:
            if self.old[setting.name] != self.new[setting.name]:
                yield setting
