"""Forecasts when a training ends, from the time that its parts took so far; no I/O.

Iterations go on as they do since their time last changed, or along a line where they
grow steadily; validations take what the newest took, saves and starts of epochs their
mean. Light on purpose: the hook asks while training goes on.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mmgpu_hooks.judge.recorded import RecordedRun
from mmgpu_hooks.judge.schedule import Schedule
from mmgpu_hooks.judge.thresholds import MIN_ITERATIONS
from mmgpu_hooks.model.stats import find_last_change, fit_line
from mmgpu_hooks.schema.judged import JobLimit, TrainingEnd
from mmgpu_hooks.schema.recorded import (
    IntervalRecord,
    RunRecord,
    SaveRecord,
    ValidationRecord,
)

_HOUR_S = 3600.0
_MOST_BINS = 256
"""Maximum number of bins of consecutive iterations; beyond, bins are merged."""
_OUTSIDE = 'validation', 'checkpoint_save', 'startup', 'teardown', 'resume'
"""Parts of a run's time outside iterations: validation, saves, starts and others."""
_NEWEST = 3
"""Number of newest validations whose mean duration predicts the next one's."""
_LEAST_CHANGE = 0.05
"""Smallest relative change of an iteration's time that counts as a change."""
_LEAST_TREND, _SURE, _EVEN = 0.03, 6.0, 0.4
"""Least relative growth, t value and evenness of an iteration-time trend that counts.

Least relative growth, its least multiple of the standard error, and the least slope
of either half over that of the whole.
"""
_COVERAGE = 1.9
"""Half width of the forecast interval in standard errors (covers over 90 %)."""
_DRIFT = 0.02
"""Relative standard error assumed for the iteration time of a steady training."""
_FIRST, _LATER = 0.1, 0.03
"""Relative standard error of a validation's time, after one validation or several."""


@dataclass
class _Bin:
    """Consecutive iterations, and seconds without saves, validations, loader starts."""

    iterations: int
    seconds: float
    medians_s: float
    """Sum over log intervals of the median iteration seconds times the iterations.

    A hiccup moves a mean and no median, and a trend is a small part of either."""

    def add(self, other: _Bin) -> None:
        """Adds the iterations of another bin to this one."""
        self.iterations += other.iterations
        self.seconds += other.seconds
        self.medians_s += other.medians_s

    @property
    def each_s(self) -> float:
        return self.seconds / self.iterations


class _Rate(NamedTuple):
    """Linear forecast of the seconds per iteration."""

    now_s: float
    """Forecast seconds of the next iteration."""
    slope_s: float
    """Seconds by which each iteration is longer than the one before."""
    error: float
    """Relative standard error of the total time of the iterations ahead."""

    def sum_s(self, iterations: float) -> float:
        """Forecasts the total seconds of the next ``iterations`` iterations."""
        return iterations * (self.now_s + self.slope_s * iterations / 2)


class EndForecaster:
    """Forecasts when a training ends, from records of the run added in order.

    Args:
        run: Of the training.
    """

    def __init__(self, run: RunRecord) -> None:
        self.schedule = Schedule.of(run)
        self._start = self._done = run.start_iteration
        self._loader = run.loader
        self._bins: list[_Bin] = []
        self._each = 1
        """Number of log intervals that make up one bin of consecutive iterations."""
        self._filled = 0
        self._passed_s = run.build_s
        self._starts_s, self._starts = 0.0, 0
        self._first_start_s = 0.0
        self._has_warmed_up = False
        self._validations = deque[ValidationRecord](maxlen=_NEWEST)
        self._validated, self._saved, self._saves_s = 0, 0, 0.0

    def add_interval(self, record: IntervalRecord) -> None:
        """Adds an ended log interval's record to the data the forecast is made from."""
        ledger_s = record.ledger_s
        outside_s = sum(ledger_s.get(part, 0.0) for part in _OUTSIDE)
        start_s = ledger_s.get('startup', 0.0) + ledger_s.get('teardown', 0.0)
        self._done = record.iteration
        self._passed_s += record.duration_s
        firsts = record.first_waits
        if not self._has_warmed_up:
            # lazy initialisation, and the start of the run
            self._has_warmed_up, firsts = True, max(firsts - 1, 0)
            self._first_start_s = start_s
        elif record.iterations:
            self._starts_s += start_s
            count, seconds = record.iterations, max(record.duration_s - outside_s, 0.0)
            self._add(_Bin(count, seconds, count * record.iter.p50_s))
        self._starts += firsts

    def _add(self, interval: _Bin) -> None:
        bins = self._bins
        if self._filled % self._each and bins:
            bins[-1].add(interval)
        else:
            bins.append(interval)
        self._filled += 1
        if len(bins) > _MOST_BINS and not self._filled % (2 * self._each):
            for left, right in zip(bins[::2], bins[1::2]):
                left.add(right)
            self._bins = bins[::2]
            self._each *= 2

    def add_validation(self, record: ValidationRecord) -> None:
        """Adds an ended validation's record to the data the forecast is made from."""
        self._validations.append(record)
        self._validated += 1

    def add_save(self, record: SaveRecord) -> None:
        """Adds a checkpoint save to the forecast's data, except one of the best model.

        Saves of the best model belong to validations.
        """
        if record.error is None and not (record.name or '').startswith('best'):
            self._saved += 1
            self._saves_s += record.wall_s

    def forecast(self, done: int | None = None) -> TrainingEnd | None:
        """Forecasts the hours until the training ends.

        Args:
            done: Iterations of the whole training by now; by default those of the
                intervals.

        Returns:
            ``None`` where its length is unknown, or too little was seen, and of a
            training that is over.
        """
        self._done = max(self._done, done or 0)
        schedule, rate = self.schedule, self._find_rate()
        if schedule is None or rate is None or schedule.iterations <= self._done:
            return None
        training_s = self._reach_s(schedule, rate, schedule.iterations)
        validations = self._count_ahead(schedule.count_validations, self._validated)
        saves = self._count_ahead(schedule.count_saves, self._saved)
        validation_s = _times(validations, self._validation_s)
        saves_s = _times(saves, self._save_s)
        left_s = training_s + (validation_s or 0.0) + (saves_s or 0.0)
        error_s = self._error_s(rate, training_s, validation_s)
        return TrainingEnd(
            hours_left=left_s / _HOUR_S,
            hours_left_low=max(left_s - error_s, 0.0) / _HOUR_S,
            hours_left_high=(left_s + error_s) / _HOUR_S,
            training_hours=training_s / _HOUR_S,
            validation_hours=_in_hours(validation_s),
            metric_hours=_in_hours(_times(validations, self._metric_s)),
            save_hours=_in_hours(saves_s),
            whole_hours=(self._passed_s + left_s) / _HOUR_S,
        )

    def find_limit(self, left_s: float, done: int | None = None) -> JobLimit | None:
        """Finds how many epochs or iterations a job's time limit leaves undone.

        Args:
            left_s: Seconds until it.
            done: As in :meth:`forecast`.

        Returns:
            ``None`` where the training is expected to end before, or the schedule is
            unknown.
        """
        self._done = max(self._done, done or 0)
        schedule, rate = self.schedule, self._find_rate()
        events = None if schedule is None else schedule.list_events(self._done)
        if schedule is None or rate is None or events is None:
            return None
        spent_s, reached, saved = 0.0, self._done, None
        for event in events:
            cost_s = (self._save_s if event.is_save else self._validation_s) or 0.0
            if self._reach_s(schedule, rate, event.iteration) + spent_s > left_s:
                break
            spent_s, reached = spent_s + cost_s, event.iteration
            until_s = self._reach_s(schedule, rate, reached) + spent_s
            if event.is_save and until_s <= left_s:
                saved = reached
        most = schedule.iterations
        while reached < most:
            middle = (reached + most + 1) // 2
            if self._reach_s(schedule, rate, middle) + spent_s <= left_s:
                reached = middle
            else:
                most = middle - 1
        if reached == schedule.iterations:
            return None
        unit = schedule.unit
        return JobLimit(
            unit='iteration' if schedule.epoch is None else 'epoch',
            whole=schedule.iterations // unit,
            missing=schedule.iterations // unit - reached // unit,
            last_saved=None if saved is None else saved // unit,
        )

    def _reach_s(self, schedule: Schedule, rate: _Rate, iteration: int) -> float:
        """Forecasts the seconds until an iteration, validations and saves excluded."""
        starts = schedule.count_starts(self._done) - schedule.count_starts(iteration)
        return rate.sum_s(iteration - self._done) + starts * self._start_s

    def _count_ahead(self, count: Callable[[int], int | None], seen: int) -> int | None:
        """Counts the validations, or the saves, left in the training."""
        ahead, planned = count(self._done), count(self._start)
        if ahead is None or planned is None:
            # a loop of its own: as often as until now
            passed = self._done - self._start
            left = self.schedule.iterations - self._done if self.schedule else 0
            return round(seen * left / passed) if passed else None
        # the one that comes right after this iteration may not have been yet
        return min(max(planned - seen, ahead), ahead + 1)

    @property
    def _validation_s(self) -> float | None:
        """Estimates the seconds of the next validation; ``None`` before any."""
        walls_s = [record.wall_s for record in self._validations]
        return statistics.fmean(walls_s) if walls_s else None

    @property
    def _metric_s(self) -> float | None:
        """Estimates the seconds for metrics in the next validation, if known."""
        known = [record.parts_s for record in self._validations if record.parts_s]
        metrics_s = [parts_s.get('metric', 0.0) for parts_s in known]
        return statistics.fmean(metrics_s) if metrics_s else None

    @property
    def _save_s(self) -> float | None:
        return self._saves_s / self._saved if self._saved else None

    @property
    def _start_s(self) -> float:
        """Estimates the seconds to start an epoch: its workers and first batch."""
        if self._starts:
            return self._starts_s / self._starts
        # until one was seen: as the first, where workers start anew
        is_anew = bool(self._loader.num_workers) and not self._loader.persistent_workers
        return self._first_start_s if is_anew else 0.0

    def _find_rate(self) -> _Rate | None:
        """Forecasts the seconds per iteration; ``None`` after too few iterations."""
        bins = self._bins
        if sum(each.iterations for each in bins) < MIN_ITERATIONS:
            return None
        values = [each.each_s for each in bins]
        trend = _find_trend(bins)
        if trend is not None:
            return trend
        first = find_last_change(values, _LEAST_CHANGE) or 0
        since = bins[first:]
        count = sum(each.iterations for each in since)
        mean_s = math.fsum(each.seconds for each in since) / count
        spread_s = statistics.stdev(values[first:]) if len(since) > 1 else 0.0
        scatter = spread_s / math.sqrt(len(since)) / mean_s if mean_s else 0.0
        return _Rate(mean_s, 0.0, math.hypot(_DRIFT, scatter))

    def _error_s(
        self, rate: _Rate, training_s: float, validation_s: float | None
    ) -> float:
        """Computes the half width of the forecast's 90 % interval, in seconds."""
        seen = len(self._validations)
        of_validation = _LATER if seen > 1 else _FIRST
        errors_s = rate.error * training_s, of_validation * (validation_s or 0.0)
        return _COVERAGE * math.hypot(*errors_s)


def _find_trend(bins: list[_Bin]) -> _Rate | None:
    """Fits a steady growth of the iteration time; ``None`` if none is significant."""
    if len(bins) < 8:
        return None
    counts = np.array([each.iterations for each in bins], float)
    values = np.array([each.medians_s / each.iterations for each in bins])
    at = np.cumsum(counts) - counts / 2
    line = fit_line(at.tolist(), values.tolist())
    away = values - (line.constant + line.slope * at)
    scatter = float(np.sqrt((away**2).sum() / (len(bins) - 2)))
    error = scatter / float(np.sqrt(((at - at.mean()) ** 2).sum()))
    grown = line.slope * float(counts.sum())
    level = math.fsum(each.seconds for each in bins) / float(counts.sum())
    if grown < _LEAST_TREND * level or line.slope < _SURE * error:
        return None
    middle = len(bins) // 2
    halves = [
        fit_line(at[part].tolist(), values[part].tolist()).slope / line.slope
        for part in (slice(middle), slice(middle, None))
    ]
    if min(halves) < _EVEN:
        return None
    now_s = level + grown / 2
    # it may end to grow, or grow on: the interval says so
    return _Rate(now_s, line.slope, 2 * _DRIFT + error / line.slope)


def _times(count: int | None, each_s: float | None) -> float | None:
    """Multiplies seconds by a count; a count of 0 gives 0 even for unknown seconds."""
    if count == 0:
        return 0.0
    return None if count is None or each_s is None else count * each_s


def _in_hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / _HOUR_S


def read_forecaster(run: RecordedRun) -> EndForecaster:
    """Makes an `EndForecaster` from a recorded training run."""
    forecaster = EndForecaster(run.meta)
    for interval in run.intervals:
        forecaster.add_interval(interval)
    for validation in run.validations:
        forecaster.add_validation(validation)
    for save in run.save_records:
        forecaster.add_save(save)
    return forecaster
