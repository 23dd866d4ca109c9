"""A short real training: what it was to be, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional

TRIAL_STATUSES = (
    'completed',
    'failed',
    'timed_out',
    'out_of_memory',
    'interrupted',
)
"""How a trial can end."""


@dataclass(frozen=True)
class TrialSpec:
    """One training of a user's config with some settings of its own."""

    config: str
    """The config file, absolute: a trial may run elsewhere."""
    folder: str
    """Where everything it leaves goes, its log too; used by no other trial."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """By dotted key, as in ``--cfg-options``; ``None`` takes the key out."""
    iterations: Optional[int] = None
    """Iterations after which it ends; ``None`` sets no such limit."""
    seconds: Optional[float] = None
    """Seconds of training, from the end of the first iteration on, after which it
    ends; ``None`` sets no such limit."""
    seed: Optional[int] = None
    """``None`` keeps the config's own, or takes 0 where it has none."""
    interval: Optional[int] = None
    """Iterations per evidence interval; ``None`` keeps that of the config's hook."""
    saves: bool = False
    """Whether the config's checkpoint hooks stay in."""
    save_interval: Optional[int] = None
    """Iterations from one save into the trial's folder to the next, in the place of the
    config's checkpoint hooks; the newest is kept. ``None`` asks for none."""
    evidence: bool = True
    """Whether GPUEfficiencyHook records."""
    hook: Mapping[str, Any] = field(default_factory=dict)
    """Its arguments in this trial; the others stay as the config has them."""
    ranks: int = 1
    """Processes on this host that train together, a card each."""


@dataclass(frozen=True)
class TrialResult:
    """What became of a trial; a training that fails is a result like any other."""

    settings: Mapping[str, Any]
    status: str
    """One of :data:`TRIAL_STATUSES`."""
    folder: str
    """With the log, and the evidence to be read again."""
    seconds: float
    """Of the whole trial, imports and the building of the model included."""
    iterations: int = 0
    """Iterations trained, whatever the status."""
    error: Optional[str] = None
    """The decisive line; ``None`` when it completed."""
