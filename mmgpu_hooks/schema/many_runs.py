"""Records of ``mmgpu runs``: one row for each training run, and totals."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any, Optional, Tuple

import msgspec
from msgspec.structs import replace

from mmgpu_hooks.schema.recorded import RecommendedChange, VerdictRecord
from mmgpu_hooks.schema.text import Text


class RunRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One training run: its verdict, hours, and hours that changes would have saved."""

    run: str
    """Folder of the training run, which MMEngine names by the start time."""
    evidence: str
    """Path of the evidence file of the run's rank 0."""
    owner: str
    """User that owns the run's folder; the user id if the user has no name."""
    started_unix_s: Optional[float] = None
    """Unix time of the run's start; ``None`` if its evidence file is unreadable.

    The figures below are ``None`` then, too."""
    hostname: Optional[str] = None
    ranks: Optional[int] = None
    status: Optional[str] = None
    """Way the training run ended: ``completed``, ``interrupted`` or ``failed``.

    ``None`` while it trains, and of a run that was killed."""
    verdict: Optional[str] = None
    """Name of the run's verdict; ``None`` for a run that was not judged."""
    confidence: Optional[str] = None
    is_judged_now: bool = False
    """True if the verdict was made now, by ``--judge``; False if it was recorded."""
    training_hours: Optional[float] = None
    gpu_hours: Optional[float] = None
    """GPU hours: ``training_hours`` times the number of ranks; 0 on the CPU."""
    ledger_pct: Mapping[str, float] = {}
    """Per cent of ``training_hours`` by part of training, such as ``data_wait``."""
    changes: Tuple[RecommendedChange, ...] = ()
    saved_hours: Optional[float] = None
    """Predicted hours that the recommended changes would have saved the training."""
    saved_low_hours: Optional[float] = None
    """Lower end of the 90 % interval of ``saved_hours``; below zero it is a loss."""
    saved_high_hours: Optional[float] = None
    saved_gpu_hours: Optional[float] = None
    """Predicted GPU hours that changes would save: ``saved_hours`` times the ranks."""
    slurm_job_id: Optional[int] = None
    reason: Optional[Text] = None
    """Reason why the run has no verdict, as a sentence."""


class RunTotals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Number of runs; sums of their hours, GPU hours, and hours that changes save."""

    runs: int
    judged: int
    """Number of training runs that have a verdict."""
    training_hours: float
    saved_hours: float
    gpu_hours: float
    saved_gpu_hours: float


class ManyRuns(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Answer of ``mmgpu runs``: totals, one row per run, and what was unreadable."""

    version: int = 1
    """Version of the JSON format, raised when a key goes or changes its meaning."""
    found: int
    """Number of training runs that were found, before filters."""
    unreadable: int
    """Number of folders and files that could not be read."""
    first_unreadable: Optional[str] = None
    """First folder or file that could not be read, with the reason."""
    totals: RunTotals
    """Sums of hours over the training runs that the filters leave."""
    rows: Tuple[RunRow, ...] = ()
    """Rows of the runs, most wasted GPU hours first, runs without a verdict last."""


def with_verdict(
    row: RunRow, verdict: VerdictRecord, *, is_judged_now: bool = False
) -> RunRow:
    """Returns a run's `RunRow` with verdict, hours and changes of a verdict record."""
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
    """Finds the day on which a run began, by this host's clock; ``None`` if unknown."""
    if row.started_unix_s is not None:
        # a file that was edited may name a year that no calendar has
        with contextlib.suppress(ValueError, OverflowError, OSError):
            return date.fromtimestamp(row.started_unix_s)
    return None


def add_up(rows: Sequence[RunRow]) -> RunTotals:
    """Sums the hours and GPU hours of training runs, and counts the runs."""

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
    """Sorts runs by GPU hours that changes would have saved, most first."""

    def key(row: RunRow) -> Any:
        # what is unknown wastes nothing that anybody could save
        return (
            row.verdict is None,
            -(row.saved_gpu_hours or 0.0),
            -(row.saved_hours or 0.0),
            -(row.training_hours or 0.0),
            row.run,
        )

    return sorted(rows, key=key)
