"""Computes the time that a run's validations take, and the time that could be saved."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.schedule import Schedule
from mmgpu_hooks.judge.validation import count_validations
from mmgpu_hooks.judge.validation_parts import ValidationCosts, find_costs
from mmgpu_hooks.schema.values import FAST_METRIC

_HOUR_S = 3600.0

COCO_METRIC = 'CocoMetric'
"""Name of the metric class that FastCocoMetric can replace."""

SET_FAST_METRIC = f'mmgpu set CONFIG val_evaluator.type={FAST_METRIC}'
"""Command that writes FastCocoMetric into a config."""

FAST_METRIC_GAIN = 0.94
"""Share (0 to 1) of ``compute_metrics`` time that FastCocoMetric saves.

Nine tenths at least for masks, nineteen twentieths and more for boxes (``make
bench-metric``).
"""

SET_IN_LIST = f"type='{FAST_METRIC}'"
"""Config text that selects FastCocoMetric, to write by hand in a list of evaluators."""

_WANTED_SHARE = 0.1
"""Largest share (0 to 1) of training time in validation at a recommended interval."""


@dataclass(frozen=True)
class WholeValidation:
    """Seconds of the recorded validations, and their number in the whole training."""

    costs: ValidationCosts
    count: int
    """Number of validations from the training's start to its end, future ones too."""
    share: float
    """Share (0 to 1) of the recorded run's time that was validation."""
    fast_metric: str | None = None
    """Way to set FastCocoMetric: by a ``key``, by hand in a ``list``, or ``no`` way."""

    def whole_hours(self, seconds: float) -> float:
        """Scales seconds of recorded validations to hours of all planned ones."""
        return seconds / self.costs.count * self.count / _HOUR_S

    def run_share(self, part: str) -> float:
        """Returns the share (0 to 1) of the run's time in one part of validations."""
        return self.share * self.costs.share(part)

    @property
    def fast_metric_s(self) -> float | None:
        """Estimated seconds that FastCocoMetric saves in each validation.

        ``None`` where it would evaluate as CocoMetric does.
        """
        if self.fast_metric == 'no':
            return None
        seconds = self.costs.metrics_s.get(COCO_METRIC)
        return seconds and FAST_METRIC_GAIN * seconds / self.costs.count


def find_whole(run: Run) -> WholeValidation | None:
    """Finds seconds and planned number of a run's validations; ``None`` if unknown."""
    costs = find_costs(run)
    if costs is None:
        return None
    # saving the best is a save to the time ledger
    share = run.figures.run_share(costs.wall_s)
    return WholeValidation(
        costs, count_validations(run), min(share, 1.0), run.meta.fast_metric
    )


@dataclass(frozen=True)
class RarerValidation:
    """Longer validation interval, and the time that validating less often saves."""

    unit: str
    """Unit of validation intervals: ``epoch`` or ``iteration``."""
    interval: int
    """Validation interval of the run, in epochs or iterations."""
    training_s: float
    """Seconds of training between two validations at the run's interval."""
    rarer: int
    """Recommended longer validation interval, in epochs or iterations.

    With it, validation takes about 10 % of the run's time, or the run validates once.
    """
    saved_s: float
    """Seconds that the longer validation interval saves in the complete training."""


def find_rarer(run: Run, whole: WholeValidation) -> RarerValidation | None:
    """Finds a longer validation interval, to spend about 10 % of the time validating.

    Returns:
        ``None`` where the plan is unknown, the interval changes while it trains, or is
        so long already.
    """
    schedule, iter_s = Schedule.of(run.meta), run.figures.iter_s
    spans = schedule.plan.val_intervals if schedule and schedule.plan else ()
    if schedule is None or len(spans) != 1 or not iter_s:
        return None
    each_s = whole.costs.wall_s / whole.costs.count
    unit_s, interval = schedule.unit * iter_s, spans[0].interval
    wanted_s = each_s * (1 - _WANTED_SHARE) / _WANTED_SHARE
    rarer = min(math.ceil(wanted_s / unit_s), schedule.iterations // schedule.unit)
    if rarer <= interval:
        return None
    units = schedule.iterations // schedule.unit
    fewer = whole.count - math.ceil(units / rarer)
    return RarerValidation(
        unit='iteration' if schedule.epoch is None else 'epoch',
        interval=interval,
        training_s=interval * unit_s,
        rarer=rarer,
        saved_s=max(fewer, 0) * each_s,
    )
