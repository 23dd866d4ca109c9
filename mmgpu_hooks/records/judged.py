"""What is made of a run: findings, a verdict, changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Tuple


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


@dataclass(frozen=True)
class Diagnosis:
    """Everything judged about one run."""

    verdict: Verdict
    findings: Tuple[Finding, ...] = ()
    """Worst first."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Samples the judgement rests on, by name."""


@dataclass(frozen=True)
class Recommendation:
    """What to change, or why nothing."""

    changes: Tuple[Change, ...] = ()
    reason: Optional[str] = None
    """Why there is no change; ``None`` when there is one."""
