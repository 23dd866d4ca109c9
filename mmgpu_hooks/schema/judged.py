"""What is made of runs: findings, a verdict, changes, what other settings would give;
how two runs differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Optional, Tuple

from mmgpu_hooks.schema.recorded import VerdictRecord
from mmgpu_hooks.schema.text import Text

SAVE_CAUSES = ('workers', 'other_load', 'storage', 'memory')
"""What can hold a checkpoint save: this run's loader workers or other programs on the
cores; slow storage, of this host or of another; memory that ran short."""


@dataclass(frozen=True)
class SaveJudgement:
    """One checkpoint save against itself, had nothing held it."""

    is_slow: bool
    """True if it was delayed by enough to matter, whatever held it."""
    cause: Optional[str]
    """Out of :data:`SAVE_CAUSES`, where one is proven; ``None`` of a save that is not
    slow, or whose cause is unknown (then the sentence says why)."""
    uncontended_s: Optional[float]
    """What it would have taken; ``None`` when it is unknown."""
    gross_delay_s: Optional[float]
    """Beyond that: how much longer training stood still."""
    net_delay_s: Optional[float]
    """What the job lost: the gross delay, less what the loader's workers won back by
    what they made meanwhile; ``None`` while the iterations after it are unknown."""
    sentence: Text
    """All of it in a paragraph, with the numbers and what to do."""
    held_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the gross delay by proven cause; what is missing has none."""


@dataclass(frozen=True)
class Finding:
    """One judgement with the numbers it rests on."""

    code: str
    """Stable rule code, such as ``MG101``."""
    title: Text
    """What the rule is called."""
    severity: str
    """``problem``, ``notice``, ``ok`` or ``unknown`` (an input was missing)."""
    detail: Text
    """One sentence with figures, units and sample counts."""
    share: Optional[float] = None
    """Share of training time at stake, 0 to 1."""


@dataclass(frozen=True)
class Verdict:
    """Where a run's time goes, in one word and one sentence."""

    name: str
    """A member of :data:`mmgpu_hooks.judge.verdict_names.VERDICTS`."""
    sentence: Text
    """Its title, a colon and why; :attr:`title` and :attr:`why` have them apart."""
    confidence: str
    """``high``, ``medium`` or ``low``."""
    headspace_pct: Optional[float] = None
    """At most this much faster if data cost no time; ``None`` when unknown."""

    @property
    def title(self) -> Text:
        """What the verdict is called."""
        title: Text = self.sentence.facts['title']
        return title

    @property
    def why(self) -> Text:
        """The reason, with its figures: sentences."""
        why: Text = self.sentence.facts['why']
        return why


@dataclass(frozen=True)
class Change:
    """One setting to change, and why."""

    key: str
    """Dotted, as in ``--cfg-options``."""
    old: Any
    """The run's value."""
    new: Any
    """``None`` is what PyTorch takes for a setting that only workers have."""
    reason: Text
    """A sentence."""
    confidence: str
    """``high``, ``medium`` or ``low``."""
    rules: Tuple[str, ...] = ()
    """Codes of the rules that ask for it."""
    predicted_iter_s: Optional[float] = None
    """Predicted iteration time with all changes made; ``None`` is no claim."""
    predicted_gain_pct: Optional[float] = None
    """What all changes together save of the whole job's time."""
    predicted_gain_low_pct: Optional[float] = None
    """The truth is expected between low and high 9 times in 10."""
    predicted_gain_high_pct: Optional[float] = None


@dataclass(frozen=True)
class SaveCure:
    """One way to make saves cost less, and what it is predicted to give."""

    name: str
    """``polite_workers``."""
    sentence: Text
    save_s: Optional[float]
    """Predicted length of a save, mean of those it helps."""
    saves: int
    """How many of the run's saves it helps, or spares."""
    run_gross_s: float
    """Seconds by which the saves of such a run are shorter in all."""
    run_net_s: Optional[float]
    """What the job gains of it; ``None`` while the net delays are unknown."""


@dataclass(frozen=True)
class EvidenceCounts:
    """How much of each kind a judgement rests on."""

    iterations: int = 0
    steady_iterations: int = 0
    gpu_samples: int = 0
    saves: int = 0


@dataclass(frozen=True)
class Diagnosis:
    """Everything judged about one run."""

    verdict: Verdict
    findings: Tuple[Finding, ...] = ()
    """Worst first."""
    counts: EvidenceCounts = EvidenceCounts()
    """Samples the judgement rests on."""
    saves: Tuple[SaveJudgement, ...] = ()
    """In the order of the run's ``save_records``."""


@dataclass(frozen=True)
class ValidationOutlook:
    """What a run's validations show of their own loader."""

    sentence: Text
    """How long they take, and what is changed or why nothing is."""
    validations: int
    """Recorded."""
    loop_s: Optional[float] = None
    """Mean seconds of a validation in its loop, metrics left out; ``None`` when its
    iterations were not seen."""
    gain_s: Optional[float] = None
    """Predicted saving of each validation; ``None`` where nothing is changed."""
    run_gain_pct: Optional[float] = None
    """The same over all validations, as a share of the run."""


@dataclass(frozen=True)
class HostSaving:
    """Host overhead that an optimisation takes off, and what that makes of a training.

    The figures of an iteration are those of this optimisation alone; ``None`` where
    the overhead was not measured.
    """

    name: str
    """As ``optimize`` takes it."""
    found: Text
    """What was counted: a sentence without its full stop."""
    host_s: Optional[float] = None
    """Host CPU of it in an iteration, measured."""
    optimized_host_s: Optional[float] = None
    """What is left of that."""
    most_saved_s: Optional[float] = None
    """Where it was not measured: the most that is taken off."""
    predicted_iter_s: Optional[float] = None
    """An iteration with it."""
    predicted_gain_pct: Optional[float] = None
    """What it saves of the whole training's time."""
    predicted_gain_low_pct: Optional[float] = None
    """The truth is expected between low and high 9 times in 10."""
    predicted_gain_high_pct: Optional[float] = None


@dataclass(frozen=True)
class HostOverhead:
    """What ``optimize`` would take off a run; all bits that are trained stay."""

    savings: Tuple[HostSaving, ...]
    """Those that are worth it, one by one."""
    names: Tuple[str, ...]
    """What ``optimize`` is to be: these, and those that are on."""
    predicted_iter_s: Optional[float] = None
    """An iteration with all that was measured."""
    predicted_gain_pct: Optional[float] = None
    """What these save together of the whole training's time."""
    predicted_gain_low_pct: Optional[float] = None
    predicted_gain_high_pct: Optional[float] = None
    key: Optional[str] = None
    """Dotted key of the config that switches them on; ``None`` where the hook does not
    stand in ``default_hooks``."""
    switch_on: Optional[Text] = None
    """The line that switches them on; ``None`` before the config is known."""
    measure: Optional[str] = None
    """The command that measures it; likewise."""


@dataclass(frozen=True)
class Recommendation:
    """What to change, or why nothing."""

    changes: Tuple[Change, ...] = ()
    reason: Optional[Text] = None
    """Why there is no change; ``None`` when there is one."""
    save_cures: Tuple[SaveCure, ...] = ()
    """What would make saves cost less; the changes hold those that are applied."""
    advice: Tuple[Text, ...] = ()
    """Sentences about what else would help, with the evidence; never applied."""
    batch_size: Tuple[Text, ...] = ()
    """What was decided of the batch size: sentences. Empty unless a change of it was
    allowed."""
    validation: Optional[ValidationOutlook] = None
    """What is known of validation's loader; ``None`` for a run without validations."""
    host_overhead: Optional[HostOverhead] = None
    """What ``optimize`` would take off; ``None`` where that is not worth a line."""


@dataclass(frozen=True)
class TrainingEnd:
    """When a training ends that goes on, by what it took so far."""

    hours_left: float
    hours_left_low: float
    """The truth is expected between low and high 9 times in 10."""
    hours_left_high: float
    training_hours: float
    """Of those left: iterations, and the starts of epochs."""
    validation_hours: Optional[float]
    """``None`` until a validation was seen, where some are planned, or the plan is
    unknown; so are the next two."""
    metric_hours: Optional[float]
    """Of validation, in ``compute_metrics``."""
    save_hours: Optional[float]
    """Of the schedule; those of the best are in validation."""
    whole_hours: float
    """From the start of this run to its end."""


@dataclass(frozen=True)
class JobLimit:
    """What the time limit of a job leaves undone."""

    unit: str
    """``epoch`` or ``iteration``: what the next ones count."""
    whole: int
    """Of the training."""
    missing: int
    """That will not have ended."""
    last_saved: Optional[int]
    """After which the last checkpoint is saved; ``None`` where none will be."""


@dataclass(frozen=True)
class JobEnd:
    """When a job is ended that a training does not fit into."""

    moment: datetime
    """Local time."""
    limit: JobLimit


@dataclass(frozen=True)
class SavedHours:
    """Hours that some changes take off a training, all of them together."""

    keys: Tuple[str, ...]
    """Dotted."""
    whole: float
    """Of a whole run."""
    rest: Optional[float]
    """Of what was left when the evidence ends; ``None`` where training is over, or its
    end is unknown."""


@dataclass(frozen=True)
class MendedStart:
    """What a run would have on a start that srun does not narrow."""

    command: str
    """What to write in the place of ``srun``."""
    cores: float
    """Usable cores of a rank then."""
    changes: Tuple[Change, ...] = ()
    """Settings for that start; no file has them."""
    no_change_reason: Optional[Text] = None
    """Why there is no change; ``None`` when there is one."""
    predicted_iter_s: Optional[float] = None
    """Iteration on that start, with the changes; ``None`` is no claim."""


@dataclass(frozen=True)
class NextJob:
    """CPUs that the next SLURM job of a training should ask for."""

    cpus_per_task: int
    """Of a task with as many ranks as it had."""
    asked_cpus: Optional[int]
    """What the task had asked for; ``None`` is unknown."""
    used_cores: Optional[float]
    """What its ranks used on average in steady iterations; ``None`` is unknown."""
    predicted_iter_s: float
    """Iteration with so many CPUs and the recommended settings for them."""
    num_workers: int
    """That those settings have."""


@dataclass(frozen=True)
class RunAdvice:
    """Answer of the adviser's process about a run."""

    recommendation: Recommendation = Recommendation()
    """What is in the config, where one was written."""
    config: Optional[str] = None
    """The config that was written, absolute; ``None`` when none was."""
    reason: Optional[Text] = None
    """Why none was written although something is to change, or why there is no answer;
    else ``None``."""
    left_out: Tuple[str, ...] = ()
    """Keys that are recommended, too, and that this config cannot take."""
    worker_nice: Optional[int] = None
    """Recommended as an option of the command that added the hook: no config has the
    hook. ``None`` where it is not recommended, or is in a config."""
    verdict: Optional[VerdictRecord] = None
    """All of it as a record of the evidence; ``None`` where there is no answer."""


@dataclass(frozen=True)
class Estimate:
    """A figure that was measured, and where the truth is expected."""

    value: float
    low: float
    """The truth is expected between low and high 95 times in 100."""
    high: float
    count: int
    """What it is taken over: pairs of blocks, intervals."""

    @property
    def half_width(self) -> float:
        """Half of the interval."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class FigureComparison:
    """One figure of both runs; a change is unknown when either side is."""

    name: str
    """With its unit: ``iter_s``, ``images_per_s``, or a part of the time ledger as
    ``data_wait_s``; seconds are per iteration."""
    before: Optional[Estimate]
    after: Optional[Estimate]
    difference: Optional[Estimate]
    """``after - before``."""


FASTER = 'faster'
SLOWER = 'slower'
NO_DIFFERENCE = 'no_difference'
"""Verdicts of a comparison, about an iteration of the second run."""


class SettingTexts(NamedTuple):
    """Text of one setting in two runs; ``None`` is unknown or absent."""

    before: Optional[str]
    after: Optional[str]


@dataclass(frozen=True)
class RunComparison:
    """What differs between two runs, and how sure that is."""

    before: str
    """Evidence file of the first."""
    after: str
    """Evidence file of the second."""
    verdict: Optional[str]
    """An iteration of the second run is ``faster``, ``slower``, or shows
    ``no_difference`` beyond noise; ``None`` when the speeds cannot be compared."""
    figures: Tuple[FigureComparison, ...]
    """The iteration first, images per second, then the parts of the ledger."""
    settings: Mapping[str, SettingTexts]
    """Settings, limits and versions that differ, by dotted name such as
    ``loader.num_workers``."""
    obstacles: Tuple[Text, ...]
    """Why the speeds cannot be compared: sentences. Empty when they can."""
    notes: Tuple[Text, ...]
    """Sentences for the reader."""


@dataclass(frozen=True)
class Verification:
    """Two settings that were trained in alternating blocks."""

    gain: Estimate
    """How much faster the second is, in images per second: 0.3 is 30 %."""
    before_s: float
    """Mean iteration with the first setting, first ones of epochs left out."""
    after_s: float
    """The same with the second."""
    before_start_s: Optional[float] = None
    """What the first iteration of an epoch takes longer; ``None`` when none was
    seen."""
    after_start_s: Optional[float] = None
    iterations: int = 0
    """Measured iterations of each, warm-up left out."""
    seconds: float = 0.0
    """Of the whole verification."""
    ending: str = ''
    """Why it ended: a sentence."""
    external_cpu_cores: Optional[float] = None
    """Cores of the host that others used meanwhile; ``None`` is unknown."""
    predicted_gain: Optional[float] = None
    """What was predicted of the gain; ``None`` without a prediction."""
    notes: Tuple[Text, ...] = ()
    before: Mapping[str, Any] = field(default_factory=dict)
    """Settings by dotted key; of two configs those that differ, where a key that one
    lacks is missing, and lists, dicts and classes are texts."""
    after: Mapping[str, Any] = field(default_factory=dict)
    folder: str = ''
    """Logs of the trainings."""
    batches_per_epoch: Optional[int] = None
    """Iterations of an epoch of the first."""
    after_batches_per_epoch: Optional[int] = None
    iteration_change: Optional[Estimate] = None
    """How much longer an iteration of the second takes: -0.2 is 20 % less time."""
    before_images_per_s: Optional[float] = None
    """``None`` where the batch size is unknown; the gain is in iterations then."""
    after_images_per_s: Optional[float] = None
    before_config: str = ''
    """The config that the first trained."""
    after_config: str = ''
    other_work: Tuple[str, ...] = ()
    """What makes an iteration of the second another work: ``model``, ``data set``,
    ``batch size``, ``pipeline``, ``sampler``."""
    untrained: Tuple[str, ...] = ()
    """Keys that differ, too, and of which such a training shows nothing."""


@dataclass(frozen=True)
class FlightRecord:
    """The first collective in which ranks do not meet, by NCCL's flight recorder."""

    name: str
    """Such as ``all_reduce``."""
    number: int
    """Its place among the collectives of its group."""
    group: str
    behind: Tuple[int, ...] = ()
    """Ranks that never began it, by their dumps."""
    others: Mapping[int, str] = field(default_factory=dict)
    """Ranks that began another one in its place, or with other sizes, and which."""
    without_dump: Tuple[int, ...] = ()
    """Ranks of the group of which there is no dump."""
    calls: Tuple[str, ...] = ()
    """Where the others began it, the innermost first."""


@dataclass(frozen=True)
class MetricCheck:
    """How two evaluations of the same results compare."""

    images: int
    """That have results."""
    rows: int
    """Boxes or masks of all of them."""
    differing: Tuple[str, ...]
    """Arrays and figures that are not the same to the last bit."""
    plain_cpu_s: float
    """CPU of CocoMetric's ``compute_metrics``."""
    fast_cpu_s: float
    plain_reason: Optional[str]
    """Why FastCocoMetric evaluated as CocoMetric does; ``None`` if it did not."""


@dataclass(frozen=True)
class HostNow:
    """What the host shows of a run that ended, or stands still."""

    is_alive: Optional[bool] = None
    """True if its process is there; ``None`` on another host."""
    oom_kills: Optional[int] = None
    """Processes that the kernel has killed in its control group for memory."""
    kernel: Tuple[str, ...] = ()
    """What the kernel's log says since then of processes killed and of lost cards."""
    stack: Tuple[str, ...] = ()
    """Calls of the thread that trains while C code holds Python's lock for long, the
    innermost first."""


@dataclass(frozen=True)
class Proof:
    """One line that says why."""

    source: str
    """``console``, ``log`` (MMEngine's own), ``evidence``, ``kernel`` or ``host``."""
    line: Optional[int]
    """In that file, from 1 on; ``None`` where there is none."""
    text: str


@dataclass(frozen=True)
class Why:
    """Why a run ended badly or stands still."""

    state: str
    """``completed``, ``running``, ``ended``, or ``unknown``."""
    cause: Optional[str]
    """A name of ``mmgpu explain``; ``None`` where nothing ended badly."""
    certainty: str
    """``sure``, ``likely`` or ``unknown``."""
    sentence: Text
    """What happened."""
    proof: Tuple[Proof, ...] = ()
    """Lines that say why."""
    do: Tuple[Text, ...] = ()
    """What helps: sentences."""
    rank: Optional[int] = None
    """Whose line it is, where the log says so."""
    sample: Optional[str] = None
    """The sample that raised: index or path."""
    run: Optional[str] = None
    """Folder of the run that is judged; ``None`` where a log alone is."""
    started: Optional[str] = None
    """When that run began, by its host's clock."""
    notes: Tuple[Text, ...] = ()
    """Sentences on other runs of the folder, and on what was left out."""


@dataclass(frozen=True)
class Prediction:
    """What one setting of the loader would give on the same host."""

    num_workers: int
    prefetch_factor: Optional[int]
    """``None`` without workers."""
    batch_size: Optional[int]
    iter_time_s: float
    """A steady iteration, first waits of epochs left out."""
    iter_time_low_s: float
    """The truth is expected between low and high 9 times in 10."""
    iter_time_high_s: float
    data_wait_s: float
    """Part of ``iter_time_s``."""
    images_per_s: Optional[float]
    """``None`` when the batch size is unknown."""
    limit: str
    """What keeps it from being faster: a member of
    :data:`mmgpu_hooks.model.prediction.LIMITS`."""
    training_s: Optional[float] = None
    """The whole training as it was configured; ``None`` where only an iteration was
    asked for."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Values of all settings that were asked for, by name."""
