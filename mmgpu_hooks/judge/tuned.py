"""Judges a change of DataLoader settings during training: before against after.

Of the train loader by its intervals, of validation's by whole validations.

AR(1) standard errors of the intervals' means, Welch's test for their difference; where
these are few, Student's t with one spread for both. The host must be the same before
and after: where other programs use other cores, nothing is said. On a card the step
must be the same, too, or the waits alone are compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

import numpy as np

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.columns import Column, filled
from mmgpu_hooks.judge.recorded import RecordedRun
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.validation import is_possible
from mmgpu_hooks.model.stats import (
    CONFIDENCE,
    estimate_difference,
    student_t,
    summarize_series,
)
from mmgpu_hooks.model.workload import DEFAULT_PREFETCH
from mmgpu_hooks.schema.judged import Estimate
from mmgpu_hooks.schema.recorded import (
    TunedReason,
    TunedRecord,
    TunedSettings,
    ValidationRecord,
)
from mmgpu_hooks.schema.run import RunEvidence

LEAST_INTERVALS, ENOUGH_INTERVALS = 3, 8
"""Fewest log intervals after a loader change to judge a clear, or unclear, effect."""

ENOUGH_VALIDATIONS = 3
"""Number of validations after a loader change to judge an unclear effect."""

CLEAR_LOSS = 0.25
"""Slow-down (share of iteration time) that is a loss after a single validation.

Validations are few and long: what cost so much is not waited for twice.
"""

LEAST_LOSS = 0.03
"""Slow-down (share of iteration time) above which a loader change counts as a loss.
"""

NO_LOSS = 0.01
"""Slow-down (share of iteration time) up to which new loader settings are kept."""

LEAST_SPREAD = 0.01
"""Least relative spread of iteration times assumed for a short series of intervals."""

SAME_STEP = 0.05
"""Largest relative difference of train step times that count as the same."""

SAME_HOST = 0.15
"""Largest change of other programs' CPU share (0 to 1) that leaves times comparable.

A share of the host's CPUs.
"""


@dataclass(frozen=True)
class ChangeVerdict:
    """Verdict on the last change of DataLoader settings during training."""

    reason: TunedReason
    """Reason of the verdict: ``gain``, ``loss``, ``unclear`` or ``other_load``."""
    before_s: float
    """Seconds per iteration before the change of DataLoader settings."""
    after_s: float
    """Seconds per iteration after the change of DataLoader settings."""
    gain: Estimate | None
    """Share (0 to 1) of iteration time that the loader change saves; below 0: a loss.

    ``None`` where the intervals are too few for an estimate.
    """

    predicted_low: float | None = None
    """Lower end of a loader change's predicted gain, as a share of iteration time."""

    @property
    def is_kept(self) -> bool:
        """True if the new loader settings are kept, False if the old ones are restored.

        The old ones are restored after a loss. After an unclear effect they are
        restored if iterations became longer by more than `NO_LOSS`, unless the gain may
        still be as large as predicted. Where the predicted gain was not sure, any
        slow-down restores them.
        """
        if self.reason != 'unclear':
            return self.reason != 'loss'
        gain, low = self.gain, self.predicted_low
        is_trial = low is not None and low <= 0.0
        if gain is not None and low is not None and not is_trial and gain.high >= low:
            return True
        most = 0.0 if is_trial else NO_LOSS
        return self.after_s <= self.before_s * (1.0 + most)


class _Stage(NamedTuple):
    """Stretch of a run in which the train loader had the same settings."""

    run: Run
    iter_s: Column
    """Seconds per iteration in each steady interval, waits at epoch starts left out."""
    wait_s: Column
    step_s: Column
    iterations: Column


def judge_change(
    evidence: RunEvidence, other_ranks: Sequence[RecordedRun] = ()
) -> ChangeVerdict | None:
    """Judges the last change of the train loader's settings in a run.

    Args:
        evidence: Of one rank.
        other_ranks: The others; what other programs use of their host follows from all.

    Returns:
        ``None`` where it is too early to say anything.
    """
    switches = evidence.switches
    if not switches:
        return None
    stages = (select_stage(evidence, len(switches) - n) for n in (1, 0))
    before, after = (
        _read_stage(
            stage, [_select_same(other.evidence, stage) for other in other_ranks]
        )
        for stage in stages
    )
    count, iterations = len(after.iter_s), after.iterations.sum()
    is_enough = count >= LEAST_INTERVALS and iterations >= thresholds.MIN_ITERATIONS
    if not is_enough or not len(before.iter_s):
        return None
    before_s = float(np.average(before.iter_s, weights=before.iterations))
    after_s = float(np.average(after.iter_s, weights=after.iterations))
    gain = _estimate_gain(before, after, before_s)
    reason: TunedReason = 'unclear'
    if gain is not None and gain.low > 0.0:
        reason = 'gain'
    elif gain is not None and gain.high < 0.0 and gain.value < -LEAST_LOSS:
        reason = 'loss'
    if _is_other_host(before.run, after.run):
        reason = 'other_load'
    if reason in ('unclear', 'other_load') and count < ENOUGH_INTERVALS:
        return None
    low_pct = switches[-1].gain_low_pct
    low = None if low_pct is None else low_pct / 100
    return ChangeVerdict(reason, before_s, after_s, gain, low)


def select_stage(evidence: RunEvidence, number: int) -> RunEvidence:
    """Selects the records between two changes of the train loader's settings.

    Args:
        evidence: Of the whole run.
        number: Changes before that part.
    """
    switches = evidence.switches
    until = switches[number].iteration if number < len(switches) else None
    since = switches[number - 1].iteration if number else 0
    return _cut(evidence, since, until, switches[:number])


def _select_same(other: RunEvidence, stage: RunEvidence) -> RecordedRun:
    """Selects another rank's records of the iterations that a rank's records span."""
    last = stage.intervals[-1].iteration if stage.intervals else 0
    since = stage.switches[-1].iteration if stage.switches else 0
    # one that could not make a change has no record of it
    made = tuple(record for record in other.switches if record.iteration <= since)
    return RecordedRun(_cut(other, since, last, made))


def _cut(
    evidence: RunEvidence,
    since: int,
    until: int | None,
    tuned: tuple[TunedRecord, ...],
) -> RunEvidence:
    """Copies the records of a range of iterations, with the given loader changes."""
    intervals = tuple(
        interval
        for interval in evidence.intervals
        if interval.iteration - interval.iterations >= since
        and (until is None or interval.iteration <= until)
    )
    return replace(evidence, intervals=intervals, tuned=tuned, end=None)


def _read_stage(evidence: RunEvidence, other_ranks: Sequence[RecordedRun]) -> _Stage:
    run = Run(evidence, other_ranks)
    steady = run.steady
    if calm := int(steady.calm().sum()):
        # a validation leaves caches cold, and a save has the cores for itself
        steady = steady.where(steady.calm()) if calm >= LEAST_INTERVALS else steady
    iterations = steady.column('iterations')
    first_s = filled(steady.column('first_wait_s'))
    return _Stage(
        run,
        (steady.column('iter.total_s') - first_s) / iterations,
        (steady.column('data_wait.total_s') - first_s) / iterations,
        steady.column('step.mean_s'),
        iterations,
    )


def _estimate_gain(before: _Stage, after: _Stage, before_s: float) -> Estimate | None:
    """Estimates the share (0 to 1) of iteration time that a loader change saves."""
    saved = _estimate_saved(before, after, 'iter_s')
    if before.run.meta.device != 'cpu':
        step = _estimate_saved(before, after, 'step_s')
        least_s = SAME_STEP * float(np.mean(before.step_s))
        if step is not None and abs(step.value) > max(least_s, step.half_width):
            # what is trained has changed: only the waits are the loader's
            saved = _estimate_saved(before, after, 'wait_s')
    return _as_share(saved, before_s)


def _as_share(saved: Estimate | None, before_s: float) -> Estimate | None:
    """Converts seconds saved per iteration into a share (0 to 1) of iteration time."""
    if saved is None or before_s <= 0.0:
        return None
    return Estimate(
        saved.value / before_s, saved.low / before_s, saved.high / before_s, saved.count
    )


def _estimate_saved(before: _Stage, after: _Stage, name: str) -> Estimate | None:
    old, new = (_listed(getattr(stage, name)) for stage in (before, after))
    series = [
        summarize_series(values, _listed(stage.iterations))
        for values, stage in ((new, after), (old, before))
    ]
    if series[0] is not None and series[1] is not None:
        return estimate_difference(series[0], series[1])
    return _estimate_short(old, new)


def _estimate_short(old: Sequence[float], new: Sequence[float]) -> Estimate | None:
    """Estimates seconds per iteration that a loader change saves, from few intervals.

    A loader is changed after few intervals; those after it show how they scatter.
    """
    degrees = len(old) + len(new) - 2
    old_s, new_s = fmean(old), fmean(new)
    if degrees < 2 or min(old_s, new_s) <= 0.0:
        return None
    away = [value / old_s - 1 for value in old] + [value / new_s - 1 for value in new]
    spread = max(math.hypot(*away) / math.sqrt(degrees), LEAST_SPREAD)
    error_s = spread * math.hypot(
        old_s / math.sqrt(len(old)), new_s / math.sqrt(len(new))
    )
    half_s = student_t((1 + CONFIDENCE) / 2, degrees) * error_s
    saved_s, count = old_s - new_s, min(len(old), len(new))
    return Estimate(saved_s, saved_s - half_s, saved_s + half_s, count)


def _listed(column: Column) -> Sequence[float]:
    values: list[float] = column.tolist()
    return values


def _is_other_host(before: Run, after: Run) -> bool:
    """True if other programs' core use changed too much to judge a loader change."""
    old, new = (run.figures.external_cpu_cores for run in (before, after))
    return _differ(old, new, before.meta.host.logical_cpus)


def _differ(old: float | None, new: float | None, cpus: int | None) -> bool:
    """True if other programs' core use differs too much for times to be comparable."""
    if old is None or new is None or not cpus:
        return False
    return abs(new - old) > SAME_HOST * cpus


def judge_validation_change(run: Run) -> ChangeVerdict | None:
    """Judges the last change of the settings of validation's loader in a run.

    Seconds per iteration are those of whole loops: workers that start anew in each
    validation count, the one start of workers that live on does not.

    Args:
        run: One rank's, with its validations.

    Returns:
        ``None`` where it is too early to say anything.
    """
    switches = run.evidence.switches_of('validation')
    if not switches:
        return None
    change = switches[-1]
    # the first one of a training finds cold caches
    seen = [record for record in run.validations[1:] if is_possible(record)]
    before = [
        record
        for record in seen
        if record.iteration < change.iteration and _has(record, change.old)
    ]
    after = [
        record
        for record in seen
        if record.iteration >= change.iteration and _has(record, change.new)
    ]
    if not before or not after:
        return None
    old, new = _list_loops_s(before), _list_loops_s(after)
    before_s, after_s = fmean(old), fmean(new)
    if run.meta.device != 'cpu':
        steps_s = [_mean_step_s(records) for records in (before, after)]
        if abs(steps_s[1] - steps_s[0]) > SAME_STEP * steps_s[0]:
            # what the model finds has changed: only the waits are the loader's
            new = [each_s + steps_s[0] - steps_s[1] for each_s in new]
            after_s = fmean(new)
    gain = _as_share(_estimate_short(old, new), before_s)
    reason: TunedReason = 'unclear'
    if gain is not None and gain.low > 0.0:
        reason = 'gain'
    elif after_s > before_s * (1 + LEAST_LOSS):
        is_sure = gain is not None and gain.high < 0.0
        if is_sure or after_s > before_s * (1 + CLEAR_LOSS):
            reason = 'loss'
    cores, cores_after = _count_other_cores(before), _count_other_cores(after)
    if _differ(cores, cores_after, run.meta.host.logical_cpus):
        reason = 'other_load'
    if reason in ('unclear', 'other_load') and len(after) < ENOUGH_VALIDATIONS:
        return None
    # of so few the interval refutes nothing: what is slower beyond NO_LOSS goes back
    return ChangeVerdict(reason, before_s, after_s, gain)


def _has(record: ValidationRecord, settings: TunedSettings) -> bool:
    """True if a validation's loader had given settings."""
    loader = record.loader
    workers = loader.num_workers or 0
    is_kept = bool(loader.persistent_workers and workers)
    prefetch = loader.prefetch_factor or DEFAULT_PREFETCH
    is_ahead = prefetch == (settings.prefetch_factor or DEFAULT_PREFETCH)
    return (
        workers == settings.num_workers
        and is_kept == settings.persistent_workers
        and (is_ahead or not workers)
    )


def _mean_step_s(records: Sequence[ValidationRecord]) -> float:
    """Returns the mean seconds of a validation's step."""
    total_s = sum(record.step.total_s for record in records if record.step is not None)
    return total_s / sum(record.iterations for record in records)


def _list_loops_s(records: Sequence[ValidationRecord]) -> list[float]:
    """Returns the seconds per iteration of each validation in a series.

    The first wait of the series is left out if its workers live on.
    """
    found = []
    for number, record in enumerate(records):
        assert record.iter is not None
        is_start = number == 0 and record.loader.persistent_workers
        start_s = record.first_wait_s if is_start else 0.0
        found.append((record.iter.total_s - start_s) / record.iterations)
    return found


def _count_other_cores(records: Sequence[ValidationRecord]) -> float | None:
    """Returns the mean number of cores that other programs used in validations."""
    known = [record for record in records if record.other_cpu_s is not None]
    wall_s = sum(record.wall_s for record in known)
    return (
        sum(record.other_cpu_s or 0.0 for record in known) / wall_s if known else None
    )
