"""Pairs old and recommended settings for ``mmgpu verify``, with their gain; no I/O."""

from __future__ import annotations

from typing import Any, NamedTuple

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.settings import BY_NAME, SETTINGS
from mmgpu_hooks.schema.judged import Recommendation


class SettingPair(NamedTuple):
    """Train loader settings before and after a recommendation, by dotted config key.

    ``None`` takes a key out.
    """

    before: dict[str, Any]
    after: dict[str, Any]


def pair_settings(run: Run, recommendation: Recommendation) -> SettingPair | None:
    """Pairs a run's train loader settings with the recommended ones.

    Those of the run may be in no file.

    Returns:
        ``None`` when nothing about the train loader is recommended.
    """
    trained = {setting.key(): setting for setting in SETTINGS if not setting.is_alone}
    changes = {
        change.key: change.new
        for change in recommendation.changes
        if change.key in trained
    }
    if not changes:
        return None
    # a run that was tuned began with others than it has
    tuned = recommendation.changes if run.last_switch else ()
    began = {change.key: change.old for change in tuned}
    before = {
        key: began.get(key, setting.read(run))
        for key, setting in trained.items()
        # what the run left to a default goes without saying, unless it changes
        if key in changes or (setting.is_of_loader and not setting.is_recipe)
    }
    before = {key: value for key, value in before.items() if value is not None}
    return SettingPair(before, {**before, **changes})


def sum_predicted_gain(run: Run, recommendation: Recommendation) -> float | None:
    """Returns the relative gain in images/s by all changes together: 0.1 is 10 %."""
    larger, predicted_s = 1.0, None
    for change in recommendation.changes:
        predicted_s = change.predicted_iter_s or predicted_s
        if change.key == BY_NAME['batch_size'].key():
            larger = change.new / change.old
    if not predicted_s or not run.figures.iter_s:
        return None
    return larger * run.figures.iter_s / predicted_s - 1
