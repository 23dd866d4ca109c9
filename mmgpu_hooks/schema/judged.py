"""Results of judging runs: findings, verdicts, changes, predictions, comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Optional, Tuple

from mmgpu_hooks.schema.recorded import VerdictRecord
from mmgpu_hooks.schema.text import Text

SAVE_CAUSES = ('workers', 'other_load', 'storage', 'memory')
"""Names of the causes of a slow checkpoint save that can be proven.

They are this run's loader workers or other programs on the cores; slow storage, of this
host or of another; memory that ran short.
"""


@dataclass(frozen=True)
class SaveJudgement:
    """Judgement of one checkpoint save: its delay beyond a save without contention."""

    is_slow: bool
    """True if the checkpoint save was delayed notably, by whatever cause."""
    cause: Optional[str]
    """Proven cause of the slow checkpoint save, one of :data:`SAVE_CAUSES`.

    ``None`` of a save that is not slow, or whose cause is unknown (then the sentence
    says why)."""
    uncontended_s: Optional[float]
    """Predicted seconds of the save without contention; ``None`` when unknown."""
    gross_delay_s: Optional[float]
    """Seconds that the checkpoint save took beyond its time without contention."""
    net_delay_s: Optional[float]
    """Seconds lost to the save: its delay minus the data wait saved afterwards.

    The gross delay, less what the loader's workers won back by loading meanwhile;
    ``None`` while the iterations after it are unknown."""
    sentence: Text
    """Paragraph for the user on the checkpoint save, with numbers and what to do."""
    held_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds by which each proven cause delayed the checkpoint save, by cause.

    The rest of ``gross_delay_s`` has no proven cause."""


@dataclass(frozen=True)
class Finding:
    """Finding of a diagnostic rule on a training run, with the numbers behind it."""

    code: str
    """Stable code of the diagnostic rule, such as ``MG101``."""
    title: Text
    """Title of the diagnostic rule, for users."""
    severity: str
    """Severity of the finding: ``problem``, ``notice``, ``ok`` or ``unknown``.

    ``unknown`` where an input is missing."""
    detail: Text
    """Sentence of the finding, with measured values, units and sample counts."""
    share: Optional[float] = None
    """Share (0 to 1) of the training time that the found problem costs."""


@dataclass(frozen=True)
class Verdict:
    """Verdict on where the time of a training run goes: a name and a sentence."""

    name: str
    """Name of the verdict, one of :data:`mmgpu_hooks.judge.verdict_names.VERDICTS`."""
    sentence: Text
    """Sentence of the verdict: its title, a colon and the reason.

    :attr:`title` and :attr:`why` have them apart."""
    confidence: str
    """Confidence of the verdict: ``high``, ``medium`` or ``low``."""
    headspace_pct: Optional[float] = None
    """Upper bound of the speed-up, in per cent, if loading data cost no time at all.

    ``None`` when unknown."""

    @property
    def title(self) -> Text:
        """Title of the verdict, for users."""
        title: Text = self.sentence.facts['title']
        return title

    @property
    def why(self) -> Text:
        """Reason for the verdict: sentences with the measured values."""
        why: Text = self.sentence.facts['why']
        return why


@dataclass(frozen=True)
class Change:
    """Recommended change of one config setting, with its reason."""

    key: str
    """Dotted key of the config setting to change, as in ``--cfg-options``."""
    old: Any
    """Value of the setting in the judged run, before the change."""
    new: Any
    """Recommended value of the setting.

    ``None`` is what PyTorch takes for a setting that only workers have."""
    reason: Text
    """Reason for the change, one sentence."""
    confidence: str
    """Confidence of the change: ``high``, ``medium`` or ``low``."""
    rules: Tuple[str, ...] = ()
    """Codes of the diagnostic rules that ask for the change."""
    predicted_iter_s: Optional[float] = None
    """Predicted seconds of a steady iteration with all advised changes, or ``None``."""
    predicted_gain_pct: Optional[float] = None
    """Predicted time saved by all changes together, per cent of training's time."""
    predicted_gain_low_pct: Optional[float] = None
    """Lower end of the 90 % interval of ``predicted_gain_pct``, in per cent."""
    predicted_gain_high_pct: Optional[float] = None


@dataclass(frozen=True)
class SaveCure:
    """Change that shortens checkpoint saves, with its predicted effect in seconds."""

    name: str
    """Name of the config change that shortens saves: ``worker_nice``."""
    sentence: Text
    save_s: Optional[float]
    """Predicted mean seconds of the affected checkpoint saves after the change."""
    saves: int
    """Number of the run's checkpoint saves that the change would have shortened."""
    run_gross_s: float
    """Total seconds by which the change would have shortened the run's saves."""
    run_net_s: Optional[float]
    """Seconds by which the change to saves would have shortened the run's training.

    ``None`` while the net delays are unknown."""


@dataclass(frozen=True)
class EvidenceCounts:
    """Numbers of recorded iterations, GPU samples and saves that a run is judged by."""

    iterations: int = 0
    steady_iterations: int = 0
    gpu_samples: int = 0
    saves: int = 0


@dataclass(frozen=True)
class Diagnosis:
    """Findings, verdict and judged checkpoint saves of one training run."""

    verdict: Verdict
    findings: Tuple[Finding, ...] = ()
    """Findings on the run, worst first."""
    counts: EvidenceCounts = EvidenceCounts()
    """Numbers of recorded iterations, GPU samples and saves behind the diagnosis."""
    saves: Tuple[SaveJudgement, ...] = ()
    """Judged checkpoint saves, in the order of the run's ``save_records``."""


@dataclass(frozen=True)
class ValidationOutlook:
    """Seconds that a validation takes, and predicted saving by loader settings."""

    sentence: Text
    """Sentence on how long validations take, and why settings change or do not."""
    validations: int
    """Number of validations recorded."""
    loop_s: Optional[float] = None
    """Mean seconds of the loop over batches in one validation, metrics left out.

    ``None`` when its iterations were not seen."""
    gain_s: Optional[float] = None
    """Predicted seconds per validation that changes save; ``None`` without changes."""
    run_gain_pct: Optional[float] = None
    """Predicted saving over all validations, per cent of the run's time."""


@dataclass(frozen=True)
class HostSaving:
    """Predicted saving by one optimisation: host CPU time and share of training time.

    The figures of an iteration are those of this optimisation alone; ``None`` where
    the overhead was not measured.
    """

    name: str
    """Name of the optimisation, as given to GPUEfficiencyHook's ``optimize`` option."""
    found: Text
    """Sentence, without its full stop, on the host overhead that was counted."""
    host_s: Optional[float] = None
    """Measured CPU seconds per iteration of work that the optimisation speeds up."""
    optimized_host_s: Optional[float] = None
    """CPU seconds per iteration of the sped-up work with the optimisation on."""
    most_saved_s: Optional[float] = None
    """Upper bound of the host CPU seconds that the optimisation saves per iteration.

    Where the overhead was not measured."""
    predicted_iter_s: Optional[float] = None
    """Predicted seconds of a steady iteration with the optimisation switched on."""
    predicted_gain_pct: Optional[float] = None
    """Predicted saving of the optimisation, per cent of the whole training's time."""
    predicted_gain_low_pct: Optional[float] = None
    """Lower end of the 90 % interval of ``predicted_gain_pct``, in per cent."""
    predicted_gain_high_pct: Optional[float] = None


@dataclass(frozen=True)
class HostOverhead:
    """CPU time of the host that the hook's ``optimize`` option would save in a run."""

    savings: Tuple[HostSaving, ...]
    """Savings by each single optimisation that is worth switching on."""
    names: Tuple[str, ...]
    """Value to give to ``optimize``: names of useful optimisations, active ones too."""
    predicted_iter_s: Optional[float] = None
    """Predicted seconds of a steady iteration with all measured optimisations on."""
    predicted_gain_pct: Optional[float] = None
    """Predicted saving of all measured optimisations, per cent of training time.

    In per cent of the whole training's time."""
    predicted_gain_low_pct: Optional[float] = None
    predicted_gain_high_pct: Optional[float] = None
    predicted_gain_alone_pct: Optional[float] = None
    """Predicted saving, per cent of training time, on a host without other programs."""
    key: Optional[str] = None
    """Dotted config key that switches the optimisations on.

    ``None`` where the hook does not stand in ``default_hooks``."""
    switch_on: Optional[Text] = None
    """Config line that switches the optimisations on.

    ``None`` before the config is known."""
    measure: Optional[str] = None
    """Command that measures the effect of the optimisations.

    ``None`` before the config is known."""


@dataclass(frozen=True)
class Recommendation:
    """Recommended changes for a run, or the reason for none."""

    changes: Tuple[Change, ...] = ()
    reason: Optional[Text] = None
    """Reason why no setting is changed; ``None`` when there is a change."""
    save_cures: Tuple[SaveCure, ...] = ()
    """Changes that shorten checkpoint saves, with their predicted effects."""
    advice: Tuple[Text, ...] = ()
    """Sentences of advice on other ways to speed up training, applied by no command."""
    batch_size: Tuple[Text, ...] = ()
    """Sentences on the decision about the batch size.

    Empty unless a change of it was allowed."""
    validation: Optional[ValidationOutlook] = None
    """Seconds of a validation and what loader changes save; ``None`` if none ran."""
    host_overhead: Optional[HostOverhead] = None
    """CPU time of the host that the hook's ``optimize`` option would save in the run.

    ``None`` where that is not worth a line."""


@dataclass(frozen=True)
class TrainingEnd:
    """Forecast of the hours that a running training still takes: total and by part."""

    hours_left: float
    hours_left_low: float
    """Lower end of the 90 % interval of the hours from now to the training's end."""
    hours_left_high: float
    training_hours: float
    """Hours that iterations and epoch starts will take until the training ends."""
    validation_hours: Optional[float]
    """Hours that validations will take until the training ends; ``None``: unknown.

    That is until one was seen, where some are planned, or the plan is unknown; so are
    ``metric_hours`` and ``save_hours``."""
    metric_hours: Optional[float]
    """Hours that metrics (``compute_metrics``) will take in the coming validations."""
    save_hours: Optional[float]
    """Hours that scheduled checkpoint saves will take until the training ends.

    Saves of the best checkpoint are in ``validation_hours``."""
    whole_hours: float
    """Forecast hours from building the Runner to the training's end."""


@dataclass(frozen=True)
class JobLimit:
    """Number of epochs or iterations not trained when SLURM's time limit ends a job."""

    unit: str
    """Unit of the counted work: ``epoch`` or ``iteration``."""
    whole: int
    """Number of epochs or iterations from the training's start to its planned end."""
    missing: int
    """Number of planned epochs or iterations not ended at the job's time limit."""
    last_saved: Optional[int]
    """Number of the epoch or iteration of the last checkpoint before the time limit.

    ``None`` where none will be."""


@dataclass(frozen=True)
class JobEnd:
    """Time at which SLURM ends a job with unfinished training, and what is missing."""

    moment: datetime
    """Local time at which SLURM ends the job."""
    limit: JobLimit


@dataclass(frozen=True)
class SavedHours:
    """Hours that recommended config changes together take off a training."""

    keys: Tuple[str, ...]
    """Dotted config keys of the changes."""
    whole: float
    """Hours that the changes save from the training's start to its end."""
    rest: Optional[float]
    """Hours that the changes save from the newest log interval to the training's end.

    ``None`` where training is over, or its end is unknown."""


@dataclass(frozen=True)
class MendedStart:
    """Cores, recommended settings and speed if ``srun`` gave a task all of its CPUs."""

    command: str
    """Command that replaces ``srun``, so that a task gets all of its CPUs."""
    cores: float
    """Number of cores a rank may use once its SLURM task gets all of its CPUs."""
    changes: Tuple[Change, ...] = ()
    """Recommended changes for a start with all CPUs of the SLURM task.

    No file has them."""
    no_change_reason: Optional[Text] = None
    """Reason why no setting is changed; ``None`` when there is a change."""
    predicted_iter_s: Optional[float] = None
    """Predicted seconds of a steady iteration with all CPUs and all changes.

    ``None`` is no claim."""


@dataclass(frozen=True)
class NextJob:
    """Number of CPUs that the next SLURM job of a training should ask for."""

    cpus_per_task: int
    """Number of CPUs to ask SLURM for per task, with ranks per task as before."""
    asked_cpus: Optional[int]
    """CPUs per task that the measured run's SLURM job had asked for, if known."""
    used_cores: Optional[float]
    """Mean number of cores that a task's ranks used in steady iterations.

    ``None`` is unknown."""
    predicted_iter_s: float
    """Predicted seconds of a steady iteration with the CPUs to ask SLURM for.

    With the recommended settings for them."""
    num_workers: int
    """Number of loader workers recommended for the CPUs to ask SLURM for."""


@dataclass(frozen=True)
class RunAdvice:
    """Verdict and recommended config, from the child process that judged a run."""

    recommendation: Recommendation = Recommendation()
    """Recommendation for the run, without changes that its config cannot take."""
    config: Optional[str] = None
    """Absolute path of the recommended config; ``None`` when none was written."""
    reason: Optional[Text] = None
    """Reason why no config was written, although settings are to change.

    Or why there is no answer; else ``None``."""
    left_out: Tuple[str, ...] = ()
    """Dotted keys of recommended changes that the run's config cannot take."""
    worker_nice: Optional[int] = None
    """Recommended nice value of the loader's workers.

    It is an option of the command that added the hook. ``None`` where it is not
    recommended, or is in a config."""
    verdict: Optional[VerdictRecord] = None
    """Verdict on the run, as a record to write to a file; ``None`` if there is none."""


@dataclass(frozen=True)
class Estimate:
    """Value with its 95 % confidence interval, and the number of samples behind it."""

    value: float
    low: float
    """Lower end of the interval that holds the true value 95 times in 100."""
    high: float
    count: int
    """Number of samples that the value was computed from, such as log intervals."""

    @property
    def half_width(self) -> float:
        """Half of the width of the 95 % confidence interval, in the value's unit."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class FigureComparison:
    """Comparison of one measured value in two runs; unknown if either is unknown."""

    name: str
    """Name of the compared value with its unit, such as ``iter_s``.

    It is ``iter_s``, ``images_per_s``, or a part of the time ledger as ``data_wait_s``;
    seconds are per iteration."""
    before: Optional[Estimate]
    after: Optional[Estimate]
    difference: Optional[Estimate]
    """Difference between the values of the two runs: ``after - before``."""


FASTER = 'faster'
SLOWER = 'slower'
NO_DIFFERENCE = 'no_difference'
"""Verdict on two runs whose seconds per iteration do not differ beyond noise.

With :data:`FASTER` and :data:`SLOWER` it is about an iteration of the second run.
"""


class SettingTexts(NamedTuple):
    """Values of one setting in two runs, as text; ``None`` is unknown or absent."""

    before: Optional[str]
    after: Optional[str]


@dataclass(frozen=True)
class RunComparison:
    """Differences between two training runs, with their confidence intervals."""

    before: str
    """Path of the first run's evidence file."""
    after: str
    """Path of the second run's evidence file."""
    verdict: Optional[str]
    """Verdict on the second run's speed: ``faster``, ``slower`` or ``no_difference``.

    It is about the length of an iteration, beyond noise; ``None`` when the speeds
    cannot be compared."""
    figures: Tuple[FigureComparison, ...]
    """Comparisons of iteration time, images per second, and time per iteration part."""
    settings: Mapping[str, SettingTexts]
    """Settings, limits and versions that differ between the runs, by dotted name.

    Such as ``loader.num_workers``."""
    obstacles: Tuple[Text, ...]
    """Reasons why the speeds of the runs cannot be compared, as sentences.

    Empty when they can."""
    notes: Tuple[Text, ...]
    """Remarks on the comparison, as sentences for the user."""


@dataclass(frozen=True)
class Verification:
    """Result of training with two settings in alternating blocks of iterations."""

    gain: Estimate
    """Speed-up of the second setting in images per second: 0.3 is 30 %."""
    before_s: float
    """Mean seconds of an iteration, except epochs' first, with the first setting."""
    after_s: float
    """Mean seconds of an iteration, except epochs' first, with the second setting."""
    before_start_s: Optional[float] = None
    """Extra seconds of an epoch's first iteration over others, with the first setting.

    ``None`` when none was seen."""
    after_start_s: Optional[float] = None
    iterations: int = 0
    """Number of iterations timed with each of the two settings, warm-up left out."""
    seconds: float = 0.0
    """Seconds from verification's start to its end, starts of trainings included."""
    ending: str = ''
    """Reason why the verification ended: a sentence."""
    external_cpu_cores: Optional[float] = None
    """Mean number of host cores that other processes used during the verification.

    ``None`` is unknown."""
    predicted_gain: Optional[float] = None
    """Predicted relative speed-up by the second setting in images/s: 0.3 is 30 %."""
    notes: Tuple[Text, ...] = ()
    before: Mapping[str, Any] = field(default_factory=dict)
    """Config settings of the first side of the comparison, by dotted key.

    Of two configs those that differ, where a key that one lacks is missing, and lists,
    dicts and classes are texts."""
    after: Mapping[str, Any] = field(default_factory=dict)
    folder: str = ''
    """Folder with the logs of the compared trainings."""
    batches_per_epoch: Optional[int] = None
    """Number of iterations per epoch with the first setting; ``None`` if unknown."""
    after_batches_per_epoch: Optional[int] = None
    iteration_change: Optional[Estimate] = None
    """Relative change of an iteration's seconds from the first to the second setting.

    -0.2 is 20 % less time."""
    before_images_per_s: Optional[float] = None
    """Images trained on per second with the first setting.

    ``None`` where the batch size is unknown: the gain is in iterations then."""
    after_images_per_s: Optional[float] = None
    before_config: str = ''
    """Path of the first of the two configs that were compared."""
    after_config: str = ''
    other_work: Tuple[str, ...] = ()
    """Differences between the two configs that change the work of an iteration.

    ``model``, ``data set``, ``batch size``, ``pipeline``, ``sampler``."""
    untrained: Tuple[str, ...] = ()
    """Differing config keys whose effect is not visible in short trial trainings."""


@dataclass(frozen=True)
class FlightRecord:
    """First collective that the ranks did not all join, by NCCL's flight recorder."""

    name: str
    """Name of the collective, such as ``all_reduce``."""
    number: int
    """Sequence number of the unfinished collective within its process group."""
    group: str
    behind: Tuple[int, ...] = ()
    """Ranks that never began the collective, by their flight recorder dumps."""
    others: Mapping[int, str] = field(default_factory=dict)
    """Name of the collective that each mismatched rank began, by rank.

    Its type, tensor sizes or data type differ from those of ``name``."""
    without_dump: Tuple[int, ...] = ()
    """Ranks of the process group that left no dump of the flight recorder."""
    calls: Tuple[str, ...] = ()
    """Call stack of the collective on ranks that wait in it, innermost call first."""


@dataclass(frozen=True)
class MetricCheck:
    """Comparison of CocoMetric and FastCocoMetric on the same results."""

    images: int
    """Number of images whose results were compared."""
    rows: int
    """Number of boxes or masks that were compared."""
    differing: Tuple[str, ...]
    """Arrays and values of CocoMetric and FastCocoMetric that differ in any bit."""
    plain_cpu_s: float
    """CPU seconds of CocoMetric's ``compute_metrics``."""
    fast_cpu_s: float
    plain_reason: Optional[Text]
    """Reason why FastCocoMetric fell back to CocoMetric's own evaluation.

    ``None`` if it did not."""


@dataclass(frozen=True)
class HostNow:
    """State of the host and process of a run that ended, or stands still."""

    is_alive: Optional[bool] = None
    """True if the run's process still exists; ``None`` on another host."""
    oom_kills: Optional[int] = None
    """Number of processes in the run's control group killed for lack of memory."""
    kernel: Tuple[str, ...] = ()
    """Lines of the kernel's log on killed processes and on lost GPUs.

    Since the run's process began."""
    stack: Tuple[str, ...] = ()
    """Call stack of the training thread, written while C code holds Python's GIL.

    Innermost first."""
    is_stopped: bool = False
    """True if the run's process is stopped as a whole, by SIGSTOP or Ctrl-Z."""


@dataclass(frozen=True)
class Proof:
    """One line of a log or file that proves why a run ended badly or stands still."""

    source: str
    """Source of the proof: ``console``, ``log``, ``evidence``, ``kernel`` or ``host``.

    ``log`` is MMEngine's own."""
    line: Optional[int]
    """Line number of the proof in its log or file, from 1; ``None`` without a line."""
    text: str


@dataclass(frozen=True)
class Why:
    """Diagnosis of why a run ended badly or stands still."""

    state: str
    """State of the run: ``completed``, ``running``, ``ended``, or ``unknown``."""
    cause: Optional[str]
    """Name, for ``mmgpu explain``, of the cause of a bad end or standstill, if any."""
    certainty: str
    """Certainty of the diagnosis: ``sure``, ``likely`` or ``unknown``."""
    sentence: Text
    """Sentence that says what happened to the run."""
    proof: Tuple[Proof, ...] = ()
    """Lines of logs and files that prove the diagnosis."""
    do: Tuple[Text, ...] = ()
    """Advice in sentences: what helps against the cause, or what to run next."""
    rank: Optional[int] = None
    """Rank that failed first, or that the cause concerns; ``None`` if unknown."""
    sample: Optional[str] = None
    """Sample whose loading raised an exception: index or path."""
    run: Optional[str] = None
    """Folder of the run that is judged; ``None`` if there is only a log."""
    started: Optional[str] = None
    """Start time of the judged run, by its host's clock, as text."""
    notes: Tuple[Text, ...] = ()
    """Sentences on the folder's other runs, and on evidence files that were skipped."""


@dataclass(frozen=True)
class Prediction:
    """Predicted speed and bottleneck of a training with given DataLoader settings."""

    num_workers: int
    prefetch_factor: Optional[int]
    """Number of batches in flight per worker; ``None`` without workers."""
    batch_size: Optional[int]
    iter_time_s: float
    """Predicted seconds of a steady iteration, without epochs' first iterations."""
    iter_time_low_s: float
    """Lower end of the 90 % interval of ``iter_time_s``, in seconds."""
    iter_time_high_s: float
    data_wait_s: float
    """Predicted seconds of data wait in an iteration, as a part of ``iter_time_s``."""
    images_per_s: Optional[float]
    """Predicted images per second; ``None`` when the batch size is unknown."""
    limit: str
    """Bottleneck of an iteration: ``step``, ``workers`` or ``cores``."""
    training_s: Optional[float] = None
    """Predicted seconds of the training as configured, first to last iteration.

    ``None`` where only an iteration was asked for."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Values, by name, of the config settings that the prediction is for."""


@dataclass(frozen=True)
class LogFigures:
    """Figures of a training without GPUEfficiencyHook, read from its log file."""

    lines: int
    """Number of lines on training iterations in the log, the first line included."""
    iter_s: Optional[float]
    """Mean logged ``time`` in seconds; ``None`` if the log has too few iterations."""
    data_time_s: Optional[float]
    """Mean logged ``data_time``, in seconds: data wait, hooks, saves, worker starts."""
    data_time_share: Optional[float]
    """Share of logged ``data_time`` in ``time``, 0 to 1."""
    peak_memory_bytes: Optional[int]
    """Peak bytes of torch's allocator on the fullest GPU; ``None``: not logged."""
    num_workers: Optional[int]
    """Number of workers in the run's copy of its config; ``None`` if it names none."""
    batch_size: Optional[int]
    """Batch size per GPU in the run's copy of its config; ``None`` if it names none."""
    switch_on: str
    """Command that trains with GPUEfficiencyHook switched on."""


@dataclass(frozen=True)
class FirstAnswer:
    """Diagnosis of a training without GPUEfficiencyHook, from its log file alone."""

    log: str
    """Path of the log file that was judged."""
    source: str
    """Framework that wrote the log: ``mmengine`` or ``mmcv``."""
    verdict: Verdict
    """Verdict on the training from its log, always of low confidence."""
    evidence: EvidenceCounts
    no_change_reason: Text
    """Reason why no setting is recommended."""
    figures: LogFigures
    advice: Tuple[Text, ...] = ()
    notes: Tuple[Text, ...] = ()
