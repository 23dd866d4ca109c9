"""Answer about many runs: a row each, of facts alone."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any, Optional, Tuple

import msgspec
from msgspec.structs import replace

from mmgpu_hooks.schema.recorded import RecommendedChange, VerdictRecord


class RunRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One run: hours by part, and hours that its newest verdict would have saved."""

    run: str
    """Folder of the run, as MMEngine names it by its start."""
    evidence: str
    """Evidence file of the run's rank 0."""
    owner: str
    """User that owns the folder; the number of one without a name."""
    started_unix_s: Optional[float] = None
    """Start of the run; ``None`` where the evidence cannot be read, as is all below."""
    hostname: Optional[str] = None
    ranks: Optional[int] = None
    status: Optional[str] = None
    """Ending: ``completed``, ``interrupted`` or ``failed``; ``None`` while it trains,
    and of a run that was killed."""
    verdict: Optional[str] = None
    """Name of the verdict; ``None`` of a run that was not judged."""
    confidence: Optional[str] = None
    is_judged_now: bool = False
    """True if ``--judge`` judged the run; else its own record is read."""
    training_hours: Optional[float] = None
    gpu_hours: Optional[float] = None
    """Hours of ``training_hours`` times the ranks, each with a GPU; 0 on the CPU."""
    ledger_pct: Mapping[str, float] = {}
    """Share of ``training_hours`` by part of the time ledger."""
    changes: Tuple[RecommendedChange, ...] = ()
    saved_hours: Optional[float] = None
    """Predicted hours by which the changes had shortened ``training_hours``."""
    saved_low_hours: Optional[float] = None
    """Lower end of the interval that holds the true saving 9 times in 10."""
    saved_high_hours: Optional[float] = None
    saved_gpu_hours: Optional[float] = None
    """``saved_hours`` times the ranks, each with a GPU."""
    slurm_job_id: Optional[int] = None
    reason: Optional[str] = None
    """Reason for no verdict: a sentence."""


class RunTotals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Sums over all rows, each figure over the runs where it is known."""

    runs: int
    judged: int
    """Number of runs with a verdict."""
    training_hours: float
    saved_hours: float
    gpu_hours: float
    saved_gpu_hours: float


class ManyRuns(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer of ``mmgpu runs``."""

    version: int = 1
    """Version of the answer, raised when a key changes its meaning or goes away."""
    found: int
    """Number of runs before filters."""
    unreadable: int
    """Number of folders and files that could not be read."""
    first_unreadable: Optional[str] = None
    """One folder or file that could not be read, with the reason."""
    totals: RunTotals
    """Sums over the runs that the filters leave."""
    rows: Tuple[RunRow, ...] = ()
    """Rows, those that waste most GPU hours first; those without a verdict last."""


def with_verdict(
    row: RunRow, verdict: VerdictRecord, *, is_judged_now: bool = False
) -> RunRow:
    """Add a verdict's figures to the row of a run."""
    saved_gpu_hours = None
    # the ranks, where each has a GPU
    if verdict.saved_hours is not None and verdict.gpu_hours is not None:
        share = verdict.gpu_hours / max(verdict.training_hours, 1e-9)
        saved_gpu_hours = verdict.saved_hours * share
    return replace(
        row,
        verdict=verdict.verdict,
        confidence=verdict.confidence,
        is_judged_now=is_judged_now,
        training_hours=verdict.training_hours,
        gpu_hours=verdict.gpu_hours,
        ledger_pct=verdict.ledger_pct,
        changes=verdict.changes,
        saved_hours=verdict.saved_hours,
        saved_low_hours=verdict.saved_low_hours,
        saved_high_hours=verdict.saved_high_hours,
        saved_gpu_hours=saved_gpu_hours,
        slurm_job_id=verdict.slurm_job_id,
        reason=None,
    )


def find_start_day(row: RunRow) -> Optional[date]:
    """Find the day on which a run began, on this host's clock; ``None`` is unknown."""
    if row.started_unix_s is not None:
        # a file that was edited may name a year that no calendar has
        with contextlib.suppress(ValueError, OverflowError, OSError):
            return date.fromtimestamp(row.started_unix_s)
    return None


def add_up(rows: Sequence[RunRow]) -> RunTotals:
    """Sum up some rows."""

    def total(name: str) -> float:
        known = (getattr(row, name) for row in rows)
        return math.fsum(value for value in known if value is not None)

    return RunTotals(
        runs=len(rows),
        judged=sum(row.verdict is not None for row in rows),
        training_hours=total('training_hours'),
        saved_hours=total('saved_hours'),
        gpu_hours=total('gpu_hours'),
        saved_gpu_hours=total('saved_gpu_hours'),
    )


def by_waste(rows: Iterable[RunRow]) -> list[RunRow]:
    """Sort rows by the GPU hours that they waste, most first; ties by length."""

    def key(row: RunRow) -> Any:
        figures = (row.saved_gpu_hours, row.saved_hours, row.training_hours)
        # what is unknown wastes nothing that anybody could save
        least = (-(figure or 0.0) for figure in figures)
        return (row.verdict is None, *least, row.run)

    return sorted(rows, key=key)
