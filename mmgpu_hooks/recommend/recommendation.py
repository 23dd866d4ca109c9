"""Recommends loader settings, and cures for slow checkpoint saves, with reasons.

Pure, so that every decision can be tested as a table and repeated from the recorded
evidence alone, on any machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import count_missing
from mmgpu_hooks.model.batches import CardMemory
from mmgpu_hooks.recommend.advice import advise
from mmgpu_hooks.recommend.decided import (
    AT_HAND,
    STALLS,
    limit_confidence,
    list_changes,
    phrase_doubt,
    why_nothing,
)
from mmgpu_hooks.recommend.job import TRAIN, VALIDATION, Job
from mmgpu_hooks.recommend.search import decide
from mmgpu_hooks.recommend.settings import BY_NAME, SETTINGS
from mmgpu_hooks.recommend.validation import advise_validation
from mmgpu_hooks.schema.judged import Change, Recommendation
from mmgpu_hooks.schema.recorded import TunedLoader
from mmgpu_hooks.schema.text import Text, phrase, sentences


def recommend_settings(run: Run, memory: CardMemory | None = None) -> Recommendation:
    """Recommends values for a run's tuned settings, such as ``num_workers``.

    The train loader is judged on the whole job: its iterations, the starts of its
    epochs and its saves; validation's on what its own loops showed.

    Args:
        run: One rank's, with the live settings and the host's limits.
        memory: Of the card against the batch size; given, another batch size may be
            recommended too.

    Returns:
        The changes, or the reason why there is none.
    """
    advice = tuple(advise(run))
    said: tuple[Text, ...] = ()
    train = None
    if run.workload is None or run.is_stalled:
        changes, reason = list(_list_unpredicted(run)), _why_unpredicted(run)
        if memory is not None:
            said = (sentences(phrase('The batch size stays as it is.'), reason),)
    else:
        job = Job.of(run, run.workload, SETTINGS, memory=memory)
        decision = decide(job)
        changes, reason = list(list_changes(decision)), why_nothing(decision)
        if doubt := phrase_doubt(decision):
            advice = (doubt, *advice)
        changed = list(decision.changed)
        said = tuple(
            setting.why(decision) if setting in changed else setting.why_not(decision)
            for setting in SETTINGS
            if setting.is_asked(job)
        )
        train = job.at(decision.new).loader
    validation = advise_validation(run, train)
    together = (
        *_since_config(run, changes, 'train'),
        *_since_config(run, validation.changes, 'validation'),
    )
    return replace(
        validation,
        changes=together,
        reason=None if together else reason,
        advice=advice,
        batch_size=said,
    )


_KEYS: Mapping[TunedLoader, str] = {'train': TRAIN, 'validation': VALIDATION}
"""Config key of each loader that ``tune=True`` may have changed."""

_OF_BOTH = ('num_workers', 'prefetch_factor', 'persistent_workers')
_TUNED: Mapping[TunedLoader, tuple[str, ...]] = {
    'train': ('opencv_num_threads', *_OF_BOTH, 'worker_nice'),
    'validation': _OF_BOTH,
}
"""Names of the settings of each loader that ``tune=True`` may have changed."""


def _since_config(
    run: Run, changes: Sequence[Change], loader: TunedLoader
) -> Iterator[Change]:
    """Lists setting changes relative to the config, not to values that tuning set.

    Args:
        run: The run.
        changes: Those of one loader, or of all that is not of the other one.
        loader: The loader.
    """
    switches = run.evidence.switches_of(loader)
    if not switches:
        yield from changes
        return
    began, found = switches[0].old, {change.key: change for change in changes}
    for name in _TUNED[loader]:
        key, old = BY_NAME[name].key(_KEYS[loader]), getattr(began, name)
        change, new = found.pop(key, None), getattr(switches[-1].new, name)
        if change is not None:
            new = change.new
        elif name in ('opencv_num_threads', 'worker_nice') and new is None:
            # they were left alone
            continue
        if new != old:
            yield replace(
                change or _describe_tuned(run, loader, name), old=old, new=new
            )
    yield from found.values()


def _describe_tuned(run: Run, loader: TunedLoader, name: str) -> Change:
    """Describes how ``tune=True`` changed one setting of a loader during the run."""
    judged = [
        record for record in run.evidence.tuned_of(loader) if record.action == 'keep'
    ]
    reason = phrase('Found while training.')
    if judged and loader == 'validation':
        reason = phrase(
            'Found while training: an iteration of validation took {iter_s} before it '
            'and {measured_iter_s} with it.',
            judged[-1],
        )
    elif judged:
        reason = phrase(
            'Found while training: an iteration took {iter_s} before it and '
            '{measured_iter_s} with it.',
            judged[-1],
        )
    is_gain = bool(judged) and judged[-1].reason == 'gain'
    return Change(
        key=BY_NAME[name].key(_KEYS[loader]),
        old=None,
        new=None,
        reason=reason,
        confidence='high' if is_gain else 'medium',
        rules=BY_NAME[name].rules,
    )


def _list_unpredicted(run: Run) -> Iterator[Change]:
    """Lists changes that measurements justify, for runs that cannot be predicted."""
    for setting in SETTINGS:
        found = setting.judge_unpredicted(run)
        if found is not None:
            yield Change(
                key=setting.key(),
                old=setting.read(run),
                new=found.new,
                reason=found.reason,
                confidence=limit_confidence(run, found.gain.low >= 0.0),
                rules=setting.rules,
                predicted_gain_pct=100 * found.gain.share,
                predicted_gain_low_pct=100 * found.gain.low,
                predicted_gain_high_pct=100 * found.gain.high,
            )


def _why_unpredicted(run: Run) -> Text:
    if not run.figures.is_enough:
        return sentences(
            run.why_no_workload,
            phrase(
                'Train at least {missing_iterations:d} more.',
                missing_iterations=count_missing(run),
            ),
        )
    if run.is_stalled:
        return STALLS
    if not run.is_data_bound and run.figures.data_wait_share is not None:
        return AT_HAND
    return run.why_no_workload


def with_save_cures(recommendation: Recommendation, run: Run) -> Recommendation:
    """Adds the changes that shorten slow checkpoint saves to a recommendation.

    Args:
        recommendation: Settings of the loader.
        run: The run it was made of.

    Returns:
        With ``save_cures``, and with niced workers among the changes where the job
        gains enough by them and its new number of workers leaves no core free.
    """
    new = {change.key: change.new for change in recommendation.changes}
    at = {
        setting.name: new.get(setting.key(), setting.read(run)) for setting in SETTINGS
    }
    changes, cures = recommendation.changes, recommendation.save_cures
    for setting in SETTINGS:
        found = setting.judge_alone(run, at)
        if found is None:
            continue
        cures = (*cures, found.cure)
        if found.new is not None:
            change = Change(
                key=setting.key(),
                old=setting.read(run),
                new=found.new,
                reason=found.reason,
                confidence='medium',
                rules=setting.rules,
            )
            changes = (*changes, change)
    reason = None if changes else recommendation.reason
    return replace(recommendation, changes=changes, reason=reason, save_cures=cures)
