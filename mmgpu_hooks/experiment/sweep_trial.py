"""Trains one setting of a sweep until its iteration time is known well enough."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable

from mmgpu_hooks.experiment.sweep_plan import SweepPace, TrialLimits
from mmgpu_hooks.experiment.trial import RunningTrial
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.recommend.sweep_rows import fold_iter, is_settled
from mmgpu_hooks.schema import Estimate, TrialSpec
from mmgpu_hooks.schema.run_folder import EvidenceError, read_run_folder

_LOOK_S = 1.0
"""About so long trains a block, after which the evidence is read again."""


@dataclass
class SweepOutcome:
    """What became of the trial of one setting."""

    status: str = 'timed_out'
    error: str | None = None
    seconds: float = 0.0
    iterations: int = 0
    """Trained so far, warm-up included."""
    is_settled: bool = False
    is_loss_finite: bool | None = None
    peak_rss_bytes: int | None = None
    iter_s: Estimate | None = None
    """As last seen."""
    evidence: Path | None = None


@dataclass
class _Measuring:
    """A trial on its way."""

    trial: RunningTrial
    pace: SweepPace
    limits: TrialLimits
    clock: Clock
    outcome: SweepOutcome = field(default_factory=SweepOutcome)
    begin_s: float | None = None
    """When the warm-up was over."""
    is_ending: bool = False

    def heed(self, event: dict[str, Any]) -> bool:
        """Take one event in; whether the trial is over."""
        outcome = self.outcome
        if event['event'] == 'over':
            outcome.status, outcome.error = event['status'], event['error']
            return True
        outcome.iterations += len(event['seconds'])
        outcome.is_loss_finite = event['is_loss_finite']
        outcome.peak_rss_bytes = event['peak_rss_bytes'] or outcome.peak_rss_bytes
        if self.begin_s is None:
            # the next block is already being trained
            self.begin_s = self.clock()
            self.trial.send(self.pace.interval)
        elif not self.is_ending:
            self._judge(event['seconds'])
        return False

    def _judge(self, seconds: list[float]) -> None:
        outcome = self.outcome
        run = read_run(Path(self.trial.spec.folder))
        outcome.iter_s = fold_iter(run, self.pace.warm_up)
        outcome.is_settled = is_settled(outcome.iter_s)
        passed_s = self.clock() - (self.begin_s or 0.0)
        is_late = outcome.iter_s is not None and passed_s >= self.limits.measure_s
        if outcome.is_settled or is_late:
            self.is_ending = True
            self.trial.finish()
            return
        interval_s = math.fsum(seconds) / len(seconds) * self.pace.interval
        intervals = max(math.ceil(_LOOK_S / max(interval_s, 1e-6)), 1)
        self.trial.send(min(intervals, 1000) * self.pace.interval)


def run_sweep_trial(
    spec: TrialSpec,
    pace: SweepPace,
    limits: TrialLimits,
    *,
    on_progress: Callable[[SweepOutcome], None] = lambda outcome: None,
    environ: Mapping[str, str] | None = None,
    clock: Clock = monotonic_s,
) -> SweepOutcome:
    """Train one setting, and leave none of it running.

    It is never halted: it has the word for its next block before the last one ends,
    and meanwhile what it has recorded is judged.

    Args:
        spec: What to train; limits in it are not heeded.
        pace: Of its intervals.
        limits: When it ends at the latest.
        on_progress: Told now and then how far it is. What it raises ends the training.
        environ: Environment variables to add.
        clock: Monotonic.

    Returns:
        How it ended. Whatever goes wrong in the training is a result, no exception.

    Raises:
        OSError: If its folder or its process cannot be made.
        KeyboardInterrupt: As pressed; the training is ended first.
    """
    spec = replace(spec, iterations=None, seconds=None)
    warm_up = pace.warm_up * pace.interval
    with contextlib.closing(
        RunningTrial(spec, block=warm_up, environ=environ)
    ) as trial:
        trial.send(pace.interval)
        measuring = _Measuring(trial, pace, limits, clock)
        outcome, is_over = measuring.outcome, False
        while not is_over and trial.elapsed_s < limits.whole_s:
            for event in trial.read_events():
                is_over = measuring.heed(event)
            on_progress(outcome)
        outcome.seconds = trial.elapsed_s
    if not is_over:
        outcome.error = f'killed after {limits.whole_s:g} s'
    outcome.evidence = _find_path(Path(spec.folder))
    return outcome


def read_run(folder: Path) -> Run | None:
    """What a trial has recorded so far; ``None`` when that cannot be read."""
    path = _find_path(folder)
    try:
        return Run.read(path) if path is not None else None
    except EvidenceError:
        return None


def _find_path(folder: Path) -> Path | None:
    try:
        return read_run_folder(folder).evidence
    except EvidenceError:
        return None
