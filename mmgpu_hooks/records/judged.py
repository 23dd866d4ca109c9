"""What is made of a run: findings, a verdict, changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Tuple

SAVE_CAUSES = ('workers', 'strangers', 'storage', 'memory', 'size', 'remote')
"""What can hold a checkpoint save: this run's loader workers or other programs on the
cores; storage of this host; memory that ran short; histories of the message hub in
the file; a backend that writes elsewhere."""


@dataclass(frozen=True)
class SaveJudgement:
    """One checkpoint save against itself, had nothing held it."""

    is_slow: bool
    """Whether it was delayed by enough to matter, whatever held it."""
    cause: Optional[str]
    """Out of :data:`SAVE_CAUSES`, where one is proven; ``None`` of a save that is not
    slow, or whose cause cannot be told (then the sentence says why)."""
    uncontended_s: Optional[float]
    """What it would have taken; ``None`` when nothing tells."""
    gross_delay_s: Optional[float]
    """Beyond that: how much longer training stood still."""
    net_delay_s: Optional[float]
    """What the job lost: the gross delay, less what the loader's workers won back by
    what they made meanwhile; ``None`` while the iterations after it are unknown."""
    sentence: str
    """All of it in a paragraph, with the numbers and what to do."""
    held_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the gross delay by proven cause; what is missing has none."""


@dataclass(frozen=True)
class Finding:
    """One judgement with the numbers it rests on."""

    code: str
    """Stable rule code, such as ``MG101``."""
    title: str
    severity: str
    """``problem``, ``notice``, ``ok`` or ``unknown`` (an input was missing)."""
    detail: str
    """One sentence with figures, units and sample counts."""
    share: Optional[float] = None
    """Share of training time at stake, 0 to 1."""


@dataclass(frozen=True)
class Verdict:
    """Where a run's time goes, in one word and one sentence."""

    name: str
    """A member of :data:`mmgpu_hooks.diagnosis.verdict.VERDICTS`."""
    sentence: str
    confidence: str
    """``high``, ``medium`` or ``low``."""
    headspace_pct: Optional[float] = None
    """At most this much faster if data cost no time; ``None`` when unknown."""


@dataclass(frozen=True)
class Change:
    """One setting to change, and why."""

    key: str
    """Dotted, as in ``--cfg-options``."""
    old: Any
    new: Any
    """``None`` removes the key where it would be rejected by PyTorch."""
    reason: str
    confidence: str
    rules: Tuple[str, ...] = ()
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
    """``polite_workers``, ``fewer_workers``, ``longer_interval`` or
    ``slimmer_checkpoint``."""
    sentence: str
    save_s: Optional[float]
    """Predicted length of a save, mean of those it helps."""
    saves: int
    """How many of the run's saves it helps, or spares."""
    run_gross_s: float
    """Seconds by which the saves of such a run are shorter in all."""
    run_net_s: Optional[float]
    """What the job gains of it; ``None`` while the net delays are unknown."""


@dataclass(frozen=True)
class Diagnosis:
    """Everything judged about one run."""

    verdict: Verdict
    findings: Tuple[Finding, ...] = ()
    """Worst first."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Samples the judgement rests on, by name."""
    saves: Tuple[SaveJudgement, ...] = ()
    """In the order of the run's ``save_records``."""


@dataclass(frozen=True)
class ValidationOutlook:
    """What a run's validations tell of their own loader."""

    sentence: str
    """How long they take, and what is changed or why nothing is."""
    validations: int
    """Recorded."""
    loop_s: Optional[float] = None
    """Mean seconds of a validation in its loop, metrics left out; ``None`` when its
    iterations were not seen."""
    gain_s: Optional[float] = None
    """Predicted saving of each validation; ``None`` where nothing is changed."""
    gain_low_s: Optional[float] = None
    """The truth is expected between low and high 9 times in 10."""
    gain_high_s: Optional[float] = None
    run_gain_pct: Optional[float] = None
    """The same over all validations, as a share of the run."""


@dataclass(frozen=True)
class LearningRate:
    """How a config's learning rate follows the batch size; ``None`` is not in it."""

    lr: Optional[float] = None
    base_batch_size: Optional[int] = None
    """Images of all ranks that ``lr`` is meant for (``auto_scale_lr``)."""
    is_auto: bool = False
    """Whether MMEngine scales the rate by itself when training starts."""


@dataclass(frozen=True)
class Recommendation:
    """What to change, or why nothing."""

    changes: Tuple[Change, ...] = ()
    reason: Optional[str] = None
    """Why there is no change; ``None`` when there is one."""
    save_cures: Tuple[SaveCure, ...] = ()
    """What would make saves cost less; the changes hold those that are applied."""
    advice: Tuple[str, ...] = ()
    """Sentences about what else would help, with the evidence; never applied."""
    batch_size: Tuple[str, ...] = ()
    """What was decided of the batch size, and what that means for the learning rate:
    sentences. Empty unless a change of it was allowed."""
    validation: Optional[ValidationOutlook] = None
    """What is known of validation's loader; ``None`` for a run without validations."""
