"""Recommends settings of validation's loader, from its recorded loops; no I/O."""

from __future__ import annotations

from dataclasses import replace

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.validation import ValidationLoops, find_loops
from mmgpu_hooks.model.prediction import LoaderSetting
from mmgpu_hooks.recommend.decided import (
    STALLS,
    list_changes,
    phrase_doubt,
    why_nothing,
)
from mmgpu_hooks.recommend.job import VALIDATION, Job, read_loader
from mmgpu_hooks.recommend.limits import LiveLoader
from mmgpu_hooks.recommend.search import decide
from mmgpu_hooks.recommend.settings import SETTINGS
from mmgpu_hooks.schema.judged import Change, Recommendation, ValidationOutlook
from mmgpu_hooks.schema.text import Text, phrase, sentences

VALIDATION_KEY = f'{VALIDATION}.'
"""Prefix ``val_dataloader.`` of the config keys of validation's DataLoader."""

_OF_LOADER = tuple(setting for setting in SETTINGS if setting.is_of_loader)


def advise_validation(run: Run, train: LoaderSetting | None = None) -> Recommendation:
    """Recommends settings of validation's loader, by the validations of a run.

    Judged on the loops of all validations of the training; what their metrics take,
    no loader changes.

    Args:
        run: One rank's, with its validations.
        train: The setting that the train loader will have; by default it keeps its
            own.

    Returns:
        The changes, and what is known of the loader.
    """
    if not run.validations:
        return Recommendation()
    count, validation = len(run.validations), find_loops(run)
    switches = run.evidence.switches_of('validation')
    is_tuned = bool(switches) and switches[-1].new != switches[0].old
    if validation is None:
        ran = ValidationOutlook(phrase('{validations} ran.', validations=count), count)
        why = phrase('Its loop does not show its iterations.')
        return stay(ran, why, is_tuned=is_tuned)
    now = _describe_now(validation)
    is_unclear = validation.is_stalled or not validation.figures.is_enough
    if validation.workload is None or is_unclear:
        return stay(now, validation.why_no_workload or STALLS, is_tuned=is_tuned)
    job = Job.of(
        validation,
        validation.workload,
        _OF_LOADER,
        loader=VALIDATION,
        beside=_live_on(run, train),
    )
    decision = decide(job)
    gain, loop_s = decision.gain, now.loop_s
    if gain is None or loop_s is None:
        return stay(
            now, phrase_doubt(decision) or why_nothing(decision), is_tuned=is_tuned
        )
    share = run.figures.run_share(gain.share * loop_s * count)
    if share < thresholds.VALIDATION_WORTH:
        why = phrase(
            'Other settings are predicted to save {run_share:.1%} of the run, which is '
            'too little.',
            run_share=share,
        )
        return stay(now, why, is_tuned=is_tuned)
    said = phrase(
        'The changes of val_dataloader are predicted to save {gain} in the loop, '
        '{run_share:.1%} of the run.',
        gain=gain.phrase,
        run_share=share,
    )
    said = sentences(now.sentence, said)
    outlook = replace(
        now, sentence=said, gain_s=gain.share * loop_s, run_gain_pct=100 * share
    )
    changes = tuple(map(_without_gain, list_changes(decision)))
    return Recommendation(changes, validation=outlook)


def _describe_now(validation: ValidationLoops) -> ValidationOutlook:
    """Describes the mean seconds of a validation, in total and in waits for batches."""
    count, alike = len(validation.training.validations), len(validation.records)
    figures = validation.figures
    loop_s = figures.duration_s / alike
    waits_s = figures.ledger_s['data_wait'] + figures.ledger_s['startup']
    whole_s = sum(record.wall_s for record in validation.records) / alike
    return ValidationOutlook(
        phrase(
            '{validations} took {whole_s:sum} each, {loop_s:sum} of it in the loop and '
            '{wait_s:sum} of that waiting for data.',
            validations=count,
            whole_s=whole_s,
            loop_s=loop_s,
            wait_s=waits_s / alike,
        ),
        count,
        loop_s,
    )


def _without_gain(change: Change) -> Change:
    """Copies a change without its gain, as only the total gain is shown."""
    return Change(
        key=change.key,
        old=change.old,
        new=change.new,
        reason=change.reason,
        confidence=change.confidence,
        rules=('MG302',),
    )


def stay(
    now: ValidationOutlook, why: Text, *, is_tuned: bool = False
) -> Recommendation:
    """Makes a recommendation that keeps the settings of validation's loader.

    Args:
        now: What is known of it.
        why: Why it stays, as a sentence.
        is_tuned: True if ``tune=True`` has changed it in the training.
    """
    stays = phrase('val_dataloader stays as it is.')
    if is_tuned:
        stays = phrase('val_dataloader stays as it was tuned in training.')
    said = sentences(now.sentence, stays, why)
    outlook = ValidationOutlook(said, now.validations, now.loop_s)
    return Recommendation(validation=outlook)


def leave_out(
    recommendation: Recommendation, keys: tuple[str, ...], why: Text
) -> Recommendation:
    """Removes from a recommendation the changes whose keys have given prefixes.

    Args:
        recommendation: With or without such changes.
        keys: What theirs start with.
        why: Nothing of them is needed or can be set, as a sentence.
    """
    changes = recommendation.changes
    kept = tuple(change for change in changes if not change.key.startswith(keys))
    outlook = recommendation.validation
    is_any_left_out = len(kept) < len(changes)
    if outlook is not None and is_any_left_out and VALIDATION_KEY in keys:
        outlook = stay(outlook, why).validation
    return replace(recommendation, changes=kept, validation=outlook)


def _live_on(run: Run, train: LoaderSetting | None) -> LiveLoader | None:
    """Returns the train loader if its workers live on in validation, or ``None``."""
    train = train or read_loader(run)
    stays = train.persistent_workers or run.meta.loop == 'iter'
    return LiveLoader(run, train) if stays else None
