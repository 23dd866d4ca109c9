"""The two settings that verifying a recommendation trains. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.changes import KEY
from mmgpu_hooks.schema import Recommendation

_LIVE = ('num_workers', 'persistent_workers', 'prefetch_factor', 'pin_memory')
_OF_WORKERS = ('persistent_workers', 'prefetch_factor')


class SettingPair(NamedTuple):
    """Settings of the train loader by dotted key; ``None`` takes a key out."""

    before: dict[str, Any]
    """Those the run was trained with: they may be in no file."""
    after: dict[str, Any]


def fold_settings(run: Run, recommendation: Recommendation) -> SettingPair | None:
    """What the run had, and what it is recommended.

    Returns:
        ``None`` when nothing about the train loader is recommended.
    """
    changes = {
        change.key: change.new
        for change in recommendation.changes
        if change.key.startswith(KEY)
    }
    if not changes:
        return None
    loader = run.run.loader
    live = {KEY + name: getattr(loader, name) for name in _LIVE}
    before = {key: value for key, value in live.items() if value is not None}
    return SettingPair(_tidy(before, {}), _tidy({**before, **changes}, changes))


def _tidy(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Without workers, PyTorch takes nothing of what only they can have."""
    if settings.get(KEY + 'num_workers'):
        return settings
    worn = {KEY + name for name in _OF_WORKERS} - changes.keys()
    return {key: value for key, value in settings.items() if key not in worn}


def fold_predicted_gain(run: Run, recommendation: Recommendation) -> float | None:
    """The gain in images per second that was predicted of all changes together."""
    predicted = [
        change.predicted_iter_s
        for change in recommendation.changes
        if change.predicted_iter_s
    ]
    if not predicted or not run.iter_s:
        return None
    sizes = [
        change.new / change.old
        for change in recommendation.changes
        if change.key == KEY + 'batch_size'
    ]
    larger = sizes[0] if sizes else 1.0
    return larger * run.iter_s / predicted[-1] - 1
