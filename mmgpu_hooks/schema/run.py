"""One run as it is read back, and what its ranks come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from mmgpu_hooks.schema.recorded import (
    EndRecord,
    IntervalRecord,
    RunRecord,
    SaveAftermathRecord,
    SaveRecord,
    SourceOffRecord,
    StuckRecord,
    ValidationRecord,
)


@dataclass(frozen=True)
class RunEvidence:
    """One rank's evidence, read back."""

    path: str
    run: RunRecord
    intervals: Tuple[IntervalRecord, ...]
    end: Optional[EndRecord] = None
    sources_off: Tuple[SourceOffRecord, ...] = ()
    stuck: Tuple[StuckRecord, ...] = ()
    save_records: Tuple[SaveRecord, ...] = ()
    save_aftermaths: Tuple[SaveAftermathRecord, ...] = ()
    validations: Tuple[ValidationRecord, ...] = ()
    notes: Tuple[str, ...] = ()
    """Sentences about what was odd in the file, for the user."""


@dataclass(frozen=True)
class RankRow:
    """One rank over the iterations that all ranks recorded; seconds per iteration."""

    rank: int
    data_wait_s: float
    startup_s: float
    hooks_s: float
    """Hooks that wait for other ranks left out."""
    save_s: float
    own_s: float
    """All of the above: what the others wait for, when it is most."""
    step_s: float
    """Holds the wait for the slowest rank."""
    gpu_util_pct: Optional[float] = None


@dataclass(frozen=True)
class RanksSummary:
    """The ranks of one run side by side."""

    world_size: int
    why: str
    """Which rank is slowest and why, or why that cannot be said: a sentence."""
    rows: Tuple[RankRow, ...] = ()
    """By rank."""
    iterations: int = 0
    """Iterations compared, the warm-up left out."""
    slowest: Optional[int] = None
    """Rank; ``None`` when they differ by less than noise, or it is unknown."""
    part: Optional[str] = None
    """``data_wait``, ``startup``, ``hooks`` or ``checkpoint_save``."""
    lost_s: Optional[float] = None
    """What the slowest costs per iteration: its own time beyond the median of the
    others'."""
    noise_s: Optional[float] = None
    """What a difference must exceed to be one."""
    notes: Tuple[str, ...] = ()
    """Files left out, ranks missing, files cut short."""
