"""What is answered of many runs: a row each, of facts alone."""

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
    """One run: what it was spent on, and what its newest verdict would have saved."""

    run: str
    """Folder of the run, as MMEngine names it by its start."""
    evidence: str
    """File of its rank 0."""
    owner: str
    """User that owns the folder; the number of one without a name."""
    started_unix_s: Optional[float] = None
    """``None`` where the evidence cannot be read, as is all below."""
    hostname: Optional[str] = None
    ranks: Optional[int] = None
    status: Optional[str] = None
    """``completed``, ``interrupted`` or ``failed``; ``None`` while it trains, and of a
    run that was killed."""
    verdict: Optional[str] = None
    """Its name; ``None`` of a run that was not judged."""
    confidence: Optional[str] = None
    is_judged_now: bool = False
    """True if ``--judge`` judged it; else its own record is read."""
    training_hours: Optional[float] = None
    gpu_hours: Optional[float] = None
    """Those times the ranks, each with a GPU; 0 on the CPU."""
    ledger_pct: Mapping[str, float] = {}
    """Share of ``training_hours`` by part of the time ledger."""
    changes: Tuple[RecommendedChange, ...] = ()
    saved_hours: Optional[float] = None
    """Predicted: by how much the changes had shortened ``training_hours``."""
    saved_low_hours: Optional[float] = None
    """The truth is expected between low and high 9 times in 10."""
    saved_high_hours: Optional[float] = None
    saved_gpu_hours: Optional[float] = None
    """``saved_hours`` times the ranks, each with a GPU."""
    slurm_job_id: Optional[int] = None
    reason: Optional[str] = None
    """Why there is no verdict: a sentence."""


class RunTotals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All rows added up, each figure over the runs where it is known."""

    runs: int
    judged: int
    """Runs with a verdict."""
    training_hours: float
    saved_hours: float
    gpu_hours: float
    saved_gpu_hours: float


class ManyRuns(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer of ``mmgpu runs``."""

    version: int = 1
    """Raised when a key changes its meaning or goes away."""
    found: int
    """Runs before filters."""
    unreadable: int
    """Folders and files that could not be read."""
    first_unreadable: Optional[str] = None
    """One of them, with the reason."""
    totals: RunTotals
    """Of the runs that the filters leave."""
    rows: Tuple[RunRow, ...] = ()
    """Those that waste most GPU hours first; those without a verdict last."""


def with_verdict(
    row: RunRow, verdict: VerdictRecord, *, is_judged_now: bool = False
) -> RunRow:
    """The row of a run with what a verdict says of it."""
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
    """Day on which a run began, by the clock of this host; ``None`` is unknown."""
    if row.started_unix_s is not None:
        # a file that was edited may name a year that no calendar has
        with contextlib.suppress(ValueError, OverflowError, OSError):
            return date.fromtimestamp(row.started_unix_s)
    return None


def add_up(rows: Sequence[RunRow]) -> RunTotals:
    """The sums over some rows."""

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
    """The rows that waste most GPU hours first; of equal ones the longer first."""

    def key(row: RunRow) -> Any:
        figures = (row.saved_gpu_hours, row.saved_hours, row.training_hours)
        # what is unknown wastes nothing that anybody could save
        least = (-(figure or 0.0) for figure in figures)
        return (row.verdict is None, *least, row.run)

    return sorted(rows, key=key)
