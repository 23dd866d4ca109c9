"""The same policy for validation's loader, by what validations showed.

Nothing of the train loader's settings is carried over: a validation has batches, a
step and a rate of its own, and mostly starts with no batch made.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from mmgpu_hooks.judge.duration_text import format_sum
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.thresholds import VALIDATION_WORTH
from mmgpu_hooks.judge.validation import find_alike, is_timed, make_validation_run
from mmgpu_hooks.model.job import Setting
from mmgpu_hooks.recommend.changes import phrase_changes, why_nothing
from mmgpu_hooks.recommend.choice import Job, decide, read_setting
from mmgpu_hooks.schema.judged import Change, Recommendation, ValidationOutlook
from mmgpu_hooks.schema.plural import plural

VALIDATION_KEY = 'val_dataloader.'


class ValidationAdvice(NamedTuple):
    """What to change about validation's loader, and what is known of it."""

    changes: tuple[Change, ...] = ()
    outlook: ValidationOutlook | None = None
    """``None`` for a run without validations."""


def advise_validation(run: Run, train: Setting | None = None) -> ValidationAdvice:
    """Decide ``num_workers``, ``persistent_workers`` and prefetching of validation.

    Judged on the loops of all validations of the training; what their metrics take,
    no loader changes.

    Args:
        run: One rank's, with its validations.
        train: The setting that the train loader will have; by default it keeps its
            own.
    """
    if not run.validations:
        return ValidationAdvice()
    validation = make_validation_run(run)
    if validation is None:
        return _stay(run, None, 'Their loop does not show its iterations.')
    if validation.workload is None or validation.is_stalled or not validation.is_enough:
        slow = 'Its waits are not those of a loader that is too slow.'
        return _stay(run, validation, validation.why_no_workload or slow)
    decision = decide(Job(validation, validation.workload, _live_on(run, train)))
    if decision.gain is None:
        why = decision.doubt or why_nothing(decision)
        return _stay(run, validation, why)
    loop_s, gain, count = _loop_s(run, validation), decision.gain, len(run.validations)
    gain_s, low_s, high_s = (
        share * loop_s for share in (gain.share, gain.low, gain.high)
    )
    run_share = run.run_share(gain_s * count)
    saved = (
        f'are predicted to save {format_sum(gain_s)} of each validation '
        f'({format_sum(low_s)} to {format_sum(high_s)}, 9 times in 10), '
        f'{100 * run_share:.1f} % of the run'
    )
    if run_share < VALIDATION_WORTH:
        why = f'Other settings {saved}, which is too little.'
        return _stay(run, validation, why)
    said = f'{_phrase_now(run, validation)} The changes of val_dataloader {saved}.'
    outlook = ValidationOutlook(said, count, loop_s, gain_s, 100 * run_share)
    return ValidationAdvice(tuple(map(_rename, phrase_changes(decision))), outlook)


def _live_on(run: Run, train: Setting | None) -> tuple[Run, Setting] | None:
    """The train loader, where its workers live on while validation runs."""
    train = train or read_setting(run)
    stays = train.persistent_workers or run.run.loop == 'iter'
    return (run, train) if stays else None


def _rename(change: Change) -> Change:
    """A change of validation's loader; what it saves is in the outlook."""
    key = VALIDATION_KEY + change.key.rpartition('.')[2]
    reason, confidence = change.reason, change.confidence
    return Change(key, change.old, change.new, reason, confidence, ('MG302',))


def leave_validation(recommendation: Recommendation, why: str) -> Recommendation:
    """The recommendation without changes of validation's loader.

    Args:
        recommendation: With or without such changes.
        why: Nothing of them is needed or can be set, as a sentence.
    """
    kept = tuple(
        one for one in recommendation.changes if not one.key.startswith(VALIDATION_KEY)
    )
    outlook = recommendation.validation
    if outlook is not None and len(kept) < len(recommendation.changes):
        said = f'{outlook.sentence} val_dataloader stays as it is. {why}'
        outlook = ValidationOutlook(said, outlook.validations, outlook.loop_s)
    return replace(recommendation, changes=kept, validation=outlook)


def _stay(run: Run, validation: Run | None, why: str) -> ValidationAdvice:
    outlook = ValidationOutlook(
        f'{_phrase_now(run, validation)} val_dataloader stays as it is. {why}',
        validations=len(run.validations),
        loop_s=None if validation is None else _loop_s(run, validation),
    )
    return ValidationAdvice(outlook=outlook)


def _loop_s(run: Run, validation: Run) -> float:
    """Mean seconds of one validation's loop, however often it goes through its data."""
    return validation.duration_s / len(find_alike(run))


def _phrase_now(run: Run, validation: Run | None) -> str:
    """How long validations took, and what of it was their loader's."""
    walls_s = [one.wall_s for one in run.validations if is_timed(one)]
    if not walls_s:
        return f'How long {plural(len(run.validations), "validation")} took is unknown.'
    mean_s = math.fsum(walls_s) / len(walls_s)
    now = f'{plural(len(walls_s), "validation")} took {format_sum(mean_s)} on average'
    if validation is None:
        return f'{now}.'
    waits_s = validation.ledger_s['data_wait'] + validation.ledger_s['startup']
    return (
        f'{now}: {format_sum(_loop_s(run, validation))} in the loop, '
        f'{format_sum(waits_s / len(find_alike(run)))} of them waiting for data and '
        'for workers to start.'
    )
