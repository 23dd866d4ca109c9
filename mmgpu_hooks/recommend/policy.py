"""Decides the loaders' settings. Pure, so that every decision can be tested as a table
and repeated from the recorded evidence alone, on any machine.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import count_missing
from mmgpu_hooks.model.batches import MemoryFit
from mmgpu_hooks.model.job import Setting
from mmgpu_hooks.recommend.advice import advise
from mmgpu_hooks.recommend.batch_size import choose_batch_size
from mmgpu_hooks.recommend.changes import (
    AT_HAND,
    KEY,
    WORKERS_KEY,
    keep_workers,
    phrase_changes,
    why_nothing,
)
from mmgpu_hooks.recommend.choice import Job, decide, starts_cost
from mmgpu_hooks.recommend.validation import advise_validation
from mmgpu_hooks.schema.judged import THREADS_KEY, Change, Recommendation
from mmgpu_hooks.schema.predicted import NoPrediction


def recommend_settings(
    run: Run, memory: MemoryFit | NoPrediction | None = None
) -> Recommendation:
    """Decide num_workers, prefetch_factor and persistent_workers.

    The train loader is judged on the whole job: its iterations, the starts of its
    epochs and its saves; validation's on what its own loops showed.

    Args:
        run: One rank's, with the live settings and the host's limits.
        memory: Of the card against the batch size, or why that is not known; given,
            another batch size may be recommended too.

    Returns:
        The changes, or the reason why there is none.
    """
    advice = advise(run)
    train: Setting | None = None
    said: tuple[str, ...] = ()
    if run.workload is None or run.is_stalled:
        changes, reason = _unpredicted(run), _why_unpredicted(run)
        if memory is not None:
            said = (f'The batch size stays as it is. {reason}',)
    else:
        decision = decide(Job(run, run.workload))
        changes, reason = phrase_changes(decision), why_nothing(decision)
        train = decision.new
        if decision.doubt:
            advice = (decision.doubt, *advice)
        if memory is not None:
            choice = choose_batch_size(decision, memory)
            said = (choice.sentence,)
            if choice.decision is not None:
                changes, train = list(choice.changes), choice.decision.new
    validation = advise_validation(run, train)
    together = (*changes, *validation.changes)
    return Recommendation(
        changes=together,
        reason=None if together else reason,
        advice=advice,
        batch_size=said,
        validation=validation.outlook,
    )


def _unpredicted(run: Run) -> list[Change]:
    """Fallback when there is too little data to predict: judge start-up only."""
    loader = run.run.loader
    if not run.is_enough or not loader.num_workers:
        return []
    if loader.persistent_workers is not False or not starts_cost(run):
        return []
    return [keep_workers(run)]


def _why_unpredicted(run: Run) -> str:
    if not run.is_enough:
        return f'{run.why_no_workload} Train at least {count_missing(run)} more.'
    if run.is_stalled:
        return 'The waits are not those of a loader that cannot keep up.'
    if not run.is_data_bound and run.data_wait_share is not None:
        return AT_HAND
    return run.why_no_workload


_LIVE = ('num_workers', 'persistent_workers', 'prefetch_factor', 'pin_memory')
_OF_WORKERS = ('persistent_workers', 'prefetch_factor')


class SettingPair(NamedTuple):
    """Settings of the train loader by dotted key; ``None`` takes a key out."""

    before: dict[str, Any]
    """Those the run was trained with: they may be in no file."""
    after: dict[str, Any]


def pair_settings(run: Run, recommendation: Recommendation) -> SettingPair | None:
    """What the run had, and what it is recommended.

    Returns:
        ``None`` when nothing about the train loader is recommended.
    """
    changes = {
        change.key: change.new
        for change in recommendation.changes
        if change.key.startswith(KEY) or change.key == THREADS_KEY
    }
    if not changes:
        return None
    live = {KEY + name: getattr(run.run.loader, name) for name in _LIVE}
    if THREADS_KEY in changes and run.loader is not None:
        live[THREADS_KEY] = run.loader.opencv_threads
    before = {key: value for key, value in live.items() if value is not None}
    after = {**before, **changes}
    for settings, asked in ((before, {}), (after, changes)):
        # without workers, PyTorch takes nothing of what only they can have
        if not settings.get(WORKERS_KEY):
            for key in {KEY + name for name in _OF_WORKERS} - asked.keys():
                settings.pop(key, None)
    return SettingPair(before, after)


def sum_predicted_gain(run: Run, recommendation: Recommendation) -> float | None:
    """The gain in images per second that was predicted of all changes together."""
    larger, predicted_s = 1.0, None
    for change in recommendation.changes:
        predicted_s = change.predicted_iter_s or predicted_s
        if change.key == KEY + 'batch_size':
            larger = change.new / change.old
    if not predicted_s or not run.iter_s:
        return None
    return larger * run.iter_s / predicted_s - 1
