"""Computes the hours that changes save in a complete training and in its remainder.

Gains of the train loader are shares of training without its validations, as the model
predicts them; those of validation's loader are seconds of each validation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mmgpu_hooks.judge.ending import read_forecaster
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.validation import count_validations
from mmgpu_hooks.judge.validation_findings import find_whole
from mmgpu_hooks.recommend.settings import BY_NAME
from mmgpu_hooks.recommend.validation import VALIDATION_KEY
from mmgpu_hooks.schema.judged import Recommendation, SavedHours, TrainingEnd

FAST_METRIC_KEY = 'val_evaluator.type'
"""Dotted config key that is set to FastCocoMetric.

It is offered, and not among the changes.
"""

_HOUR_S = 3600.0
_NICE_KEY = BY_NAME['worker_nice'].key()


def forecast_end(run: Run) -> TrainingEnd | None:
    """Forecasts the end of a training that still runs or ended too early.

    Args:
        run: One rank's.
    """
    return None if run.status == 'completed' else read_forecaster(run).forecast()


class _Length(NamedTuple):
    """Hours of one part of a training, such as iterations: in total, and remaining."""

    whole: float
    """Hours that this part of the training takes from its start to its end."""
    rest: float | None
    """Hours of this part of the training still ahead; ``None`` if over or unknown."""

    def take(self, share: float) -> SavedHours:
        """Converts a saved share (0 to 1) of time to hours: in total, and remaining."""
        rest = None if self.rest is None else share * self.rest
        return SavedHours((), share * self.whole, rest)


def list_saved_hours(
    run: Run, found: Recommendation, ending: TrainingEnd | None
) -> tuple[SavedHours, ...]:
    """Lists the hours that each group of changes saves, and those FastCocoMetric saves.

    Args:
        run: The run that is judged.
        found: What is recommended for it, cures of saves included.
        ending: Of the run; ``None`` where it is over, or that is unknown.
    """
    return tuple(_list_saved(run, found, ending))


def _list_saved(
    run: Run, found: Recommendation, ending: TrainingEnd | None
) -> Iterator[SavedHours]:
    training = _find_training(run, ending)
    predicted = [
        change
        for change in found.changes
        if change.predicted_gain_pct is not None
        and not change.key.startswith(VALIDATION_KEY)
    ]
    for change in predicted[:1]:
        # each has the gain of all of them together
        saved = training.take((change.predicted_gain_pct or 0.0) / 100)
        keys = tuple(each.key for each in predicted)
        yield SavedHours(keys, saved.whole, saved.rest)
    outlook = found.validation
    if outlook is not None and outlook.gain_s:
        keys = tuple(
            change.key
            for change in found.changes
            if change.key.startswith(VALIDATION_KEY)
        )
        yield _save_each(run, ending, keys, outlook.gain_s)
    whole = find_whole(run)
    metric_s = None if whole is None else whole.fast_metric_s
    if metric_s:
        yield _save_each(run, ending, (FAST_METRIC_KEY,), metric_s)
    if any(change.key == _NICE_KEY for change in found.changes):
        net_s = sum(cure.run_net_s or 0.0 for cure in found.save_cures)
        share = run.figures.run_share(net_s)
        saved = training.take(share)
        yield SavedHours((_NICE_KEY,), saved.whole, saved.rest)


def _find_training(run: Run, ending: TrainingEnd | None) -> _Length:
    """Returns a training's hours without validations: in total, and remaining."""
    figures = run.figures
    spent_s = figures.duration_s - figures.ledger_s.get('validation', 0.0)
    if ending is None:
        return _Length(spent_s / _HOUR_S, None)
    rest = ending.training_hours + (ending.save_hours or 0.0)
    return _Length(spent_s / _HOUR_S + rest, rest)


def _save_each(
    run: Run, ending: TrainingEnd | None, keys: tuple[str, ...], gain_s: float
) -> SavedHours:
    """Computes the hours saved if each validation takes ``gain_s`` seconds less."""
    whole = count_validations(run) * gain_s / _HOUR_S
    rest = None
    if ending is not None:
        ahead = max(count_validations(run) - len(run.validations), 0)
        rest = ahead * gain_s / _HOUR_S
    return SavedHours(keys, whole, rest)
