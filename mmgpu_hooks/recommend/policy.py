"""Decides the settings of both loaders and what makes saves cost less, and says why.

Pure, so that every decision can be tested as a table and repeated from the recorded
evidence alone, on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.thresholds import (
    SAVE_CURE_WORTH,
    VALIDATION_WORTH,
    WORTHWHILE_GAIN,
)
from mmgpu_hooks.judge.validation import find_alike, is_timed, make_validation_run
from mmgpu_hooks.judge.verdict import count_missing, judge_confidence
from mmgpu_hooks.model.batches import MemoryFit
from mmgpu_hooks.model.prediction import COVERAGE, START_ERROR, Setting
from mmgpu_hooks.recommend.advice import advise
from mmgpu_hooks.recommend.choice import (
    ONE_THREAD,
    Decision,
    Gain,
    Job,
    count_starts,
    decide,
    read_setting,
    starts_cost,
)
from mmgpu_hooks.schema.figures import format_seconds, format_sum, plural
from mmgpu_hooks.schema.judged import (
    THREADS_KEY,
    Change,
    Recommendation,
    SaveCure,
    ValidationOutlook,
)
from mmgpu_hooks.schema.predicted import NoPrediction

if TYPE_CHECKING:
    from mmgpu_hooks.recommend.batch_size import BatchChoice

KEY = 'train_dataloader.'
WORKERS_KEY = f'{KEY}num_workers'
BATCH_KEY = f'{KEY}batch_size'
VALIDATION_KEY = 'val_dataloader.'
NICE_KEY = 'default_hooks.gpu_efficiency.worker_nice'
"""Where ``mmgpu enable`` puts the hook."""

NICE = 10
"""Of niced workers: a tenth of the weight, which starves nothing."""

_AT_HAND = 'In steady iterations data is at hand when it is needed.'


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
        changes, reason = list(_list_changes(decision)), _why_nothing(decision)
        if decision.doubt:
            advice = (decision.doubt, *advice)
        if memory is not None:
            # late: nothing else needs it
            from mmgpu_hooks.recommend.batch_size import choose_batch_size

            choice = choose_batch_size(decision, memory)
            said = (choice.sentence,)
            if choice.decision is not None:
                decision = choice.decision
                changes = [_change_batch_size(choice), *_list_changes(decision)]
        train = decision.new
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
    ends = bool(loader.num_workers) and loader.persistent_workers is False
    if not run.is_enough or not ends or not starts_cost(run):
        return []
    starts = max(count_starts(run), 1)
    share = run.run_share(run.startup_s) * (starts - 1) / starts
    reach = COVERAGE * START_ERROR * share
    gain, reason = Gain(share, share - reach, share + reach), _why_keep(run)
    key = f'{KEY}persistent_workers'
    return [_make_change(run, gain, None, key, False, True, reason, 'MG104')]


def _why_unpredicted(run: Run) -> str:
    if not run.is_enough:
        return f'{run.why_no_workload} Train at least {count_missing(run)} more.'
    if run.is_stalled:
        return 'The waits are not those of a loader that cannot keep up.'
    if not run.is_data_bound and run.data_wait_share is not None:
        return _AT_HAND
    return run.why_no_workload


def _list_changes(decision: Decision) -> Iterator[Change]:
    """Every setting that changes, each with the gain of all of them together."""
    job, old, new = decision.job, decision.job.old, decision.new
    run, found = job.run, job.freed
    change = partial(_make_change, run, decision.gain, job.iter_s(new))
    if found is not None:
        reason = (
            f'{found.workers} workers run up to {found.threads} threads each on '
            f'{found.cores:g} cores and wait {format_seconds(found.delay_s)} per batch '
            f'for one; an iteration now takes {format_seconds(run.iter_s)} and is '
            f'predicted to take {format_seconds(job.iter_s(new))}'
        )
        yield change(THREADS_KEY, found.opencv, ONE_THREAD, reason, 'MG115')
    if new.num_workers != old.num_workers:
        why = _why_workers(decision)
        yield change(WORKERS_KEY, old.num_workers, new.num_workers, *why)
    key, prefetch = f'{KEY}prefetch_factor', run.run.loader.prefetch_factor
    if not new.num_workers and old.num_workers and prefetch is not None:
        yield change(key, prefetch, None, 'there are no workers to make batches ahead')
    elif new.num_workers and new.prefetch_factor != old.prefetch_factor:
        reason = 'batches vary; more of them made ahead carry the loop over slow ones'
        yield change(key, prefetch, new.prefetch_factor, reason, 'MG101')
    key, persists = f'{KEY}persistent_workers', new.persistent_workers
    if persists == old.persistent_workers:
        return
    if not persists:
        yield change(key, True, False, 'there are no workers to keep')
        return
    starts = count_starts(run)
    reason = f'the new workers would otherwise be started {starts} times over'
    yield change(
        key, False, True, _why_keep(run) if old.num_workers else reason, 'MG104'
    )


def _change_batch_size(choice: BatchChoice) -> Change:
    decision = choice.decision
    assert decision is not None  # the caller has seen to it
    job, iter_s = decision.job, decision.job.iter_s(decision.new)
    change = _make_change(
        job.run, decision.gain, iter_s, BATCH_KEY, *choice.sizes, choice.reason
    )
    is_guess = change.confidence == 'high' and not choice.is_measured
    return replace(change, confidence='medium') if is_guess else change


def _make_change(
    run: Run,
    gain: Gain | None,
    iter_s: float | None,
    key: str,
    old: Any,
    new: Any,
    reason: str,
    *rules: str,
) -> Change:
    """One setting, with the gain of all together."""
    confidence = judge_confidence(run)
    # never high where the interval of the gain holds a loss
    if confidence == 'high' and gain is not None and gain.low < 0.0:
        confidence = 'medium'
    gains = [100 * g for g in (gain.share, gain.low, gain.high)] if gain else []
    return Change(key, old, new, reason, confidence, rules, iter_s, *gains)


def _why_workers(decision: Decision) -> tuple[str, ...]:
    """The reason, and the rules that say so."""
    job, run = decision.job, decision.job.run
    old, new = job.old.num_workers, decision.new.num_workers
    now = f'now takes {format_seconds(run.iter_s)}'
    if job.workload.measured_batch_size is not None:
        old_s = format_seconds(job.iter_s(job.old))
        now = f'with batch_size={job.workload.batch_size} would take {old_s}'
    after = f'{format_seconds(job.iter_s(decision.new))} with {plural(new, "worker")}'
    if new < old and run.worker_run_delay_s and old > job.cores:
        reason = (
            f'{old} workers share {job.cores} usable cores and spent '
            f'{format_seconds(run.worker_run_delay_s)} per batch waiting for one, '
            f'beside {format_seconds(run.worker_cpu_s)} on it; an iteration {now} and '
            f'is predicted to take {after}'
        )
        return reason, 'MG105', 'MG106'
    reason = (
        f'an iteration {now}, of which the step needs '
        f'{format_seconds(job.workload.ready_s)}; it is predicted to take '
        f'{after} (the host carries at most {job.cap.workers}: {job.cap.reason})'
    )
    if new > job.cores:
        reason += (
            f'; they wait for {100 * run.waiting_share:.0f} % of a batch, so they may '
            f'outnumber the {job.cores} usable cores: PyTorch will warn about '
            'this many workers, which is expected here'
        )
    return reason, 'MG101'


def _why_keep(run: Run) -> str:
    took = format_sum(run.startup_s)
    return f'starting workers took {took} in {plural(run.epoch_starts, "start")}'


def _why_nothing(decision: Decision) -> str:
    """Why no setting is changed, as a sentence."""
    run, cap = decision.job.run, decision.job.cap
    if decision.doubt:
        return 'What is predicted to help is not sure enough to be written.'
    if not run.is_data_bound:
        return _AT_HAND
    if cap.workers == 0:
        return f'The host carries no worker: {cap.reason}.'
    if run.is_cpu_the_wall:
        return (
            f'The CPU is the wall: no number of workers is faster than '
            f'{format_seconds(run.cpu_floor_s)} per iteration on this host.'
        )
    return (
        f'No other safe setting is predicted to be {100 * WORTHWHILE_GAIN:.0f} % '
        f'faster (at most {plural(cap.workers, "worker")}: {cap.reason}).'
    )


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
        why = decision.doubt or _why_nothing(decision)
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
    return ValidationAdvice(tuple(map(_rename, _list_changes(decision))), outlook)


def _live_on(run: Run, train: Setting | None) -> tuple[Run, Setting] | None:
    """The train loader, where its workers live on while validation runs."""
    train = train or read_setting(run)
    stays = train.persistent_workers or run.run.loop == 'iter'
    return (run, train) if stays else None


def _rename(change: Change) -> Change:
    """A change of validation's loader; what it saves is in the outlook."""
    key = VALIDATION_KEY + change.key.rpartition('.')[2]
    # what is said of an iteration is of one of validation
    reason = change.reason.replace('an iteration', 'an iteration of validation', 1)
    confidence = change.confidence
    return Change(key, change.old, change.new, reason, confidence, ('MG302',))


def leave_out(
    recommendation: Recommendation, keys: tuple[str, ...], why: str
) -> Recommendation:
    """The recommendation without some changes.

    Args:
        recommendation: With or without such changes.
        keys: What theirs start with.
        why: Nothing of them is needed or can be set, as a sentence.
    """
    kept = tuple(one for one in recommendation.changes if not one.key.startswith(keys))
    outlook, count = recommendation.validation, len(recommendation.changes)
    if outlook is not None and len(kept) < count and VALIDATION_KEY in keys:
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


def with_save_cures(recommendation: Recommendation, run: Run) -> Recommendation:
    """Add the cure for saves that workers hold up to what is recommended anyway.

    Args:
        recommendation: Settings of the loader.
        run: The run it was made of.

    Returns:
        With ``save_cures``, and with niced workers among the changes where the job
        gains enough by them and its new number of workers leaves no core free.
    """
    changes, old = recommendation.changes, run.run.loader.num_workers
    cores = run.run.host.cores_had
    cure = None if run.run.worker_nice else _cure_by_nice(run)
    if cure is None or cores is None:
        return recommendation
    new = next((one.new for one in changes if one.key == WORKERS_KEY), old) or 0
    if new + 1 > cores and cure.run_net_s and _is_worth(run, cure.run_net_s):
        change = Change(
            key=NICE_KEY,
            old=run.run.worker_nice,
            new=NICE,
            reason='loader workers had the cores while checkpoints were saved; '
            f'{cure.sentence}',
            confidence='medium',
            rules=('MG304',),
        )
        changes = (*changes, change)
    reason = None if changes else recommendation.reason
    return replace(recommendation, changes=changes, reason=reason, save_cures=(cure,))


def _cure_by_nice(run: Run) -> SaveCure | None:
    """The saving thread goes first: what workers were proven to hold up is spared.

    Delays that make no single save slow count too, as soon as they add up to something.

    Returns:
        ``None`` where workers delay no save by enough.
    """
    held = [
        (save, judged)
        for save, judged in zip(run.save_records, run.judged_saves)
        if judged.held_s.get('workers', 0.0) > 0.0
    ]
    gross_s = sum(judged.held_s['workers'] for _, judged in held)
    if not held or not (_is_worth(run, gross_s) or run.saves_held_by('workers')):
        return None
    nets = [
        judged.net_delay_s * judged.held_s['workers'] / judged.gross_delay_s
        for _, judged in held
        if judged.net_delay_s is not None and judged.gross_delay_s
    ]
    net_s, count = sum(nets) if nets else None, len(held)
    walls_s = sum(save.wall_s for save, _ in held)
    gains = 'the net delay is not known'
    if net_s is not None:
        gains = f'the job gains {net_s:.1f} s (net)'
    return SaveCure(
        name='polite_workers',
        sentence=f'niced workers, GPUEfficiencyHook(worker_nice={NICE}): {count} saves '
        f'are predicted to take {(walls_s - gross_s) / count:.2f} s each, now '
        f'{walls_s / count:.2f} s; {gross_s:.1f} s less in all (gross), {gains}',
        save_s=(walls_s - gross_s) / count,
        saves=count,
        run_gross_s=gross_s,
        run_net_s=net_s,
    )


def _is_worth(run: Run, net_s: float) -> bool:
    return run.run_share(net_s) >= SAVE_CURE_WORTH


_LIVE = ('num_workers', 'persistent_workers', 'prefetch_factor', 'pin_memory')


def pair_settings(
    run: Run, recommendation: Recommendation
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """What the run had, which may be in no file, and what it is recommended.

    Returns:
        Settings of the train loader by dotted key, where ``None`` takes a key out; or
        ``None`` when nothing about it is recommended.
    """
    loader = run.run.loader
    changes = {
        change.key: change.new
        for change in recommendation.changes
        if change.key.startswith(KEY) or change.key == THREADS_KEY
    }
    if not changes:
        return None
    live = {KEY + name: getattr(loader, name) for name in _LIVE}
    if THREADS_KEY in changes and run.loader is not None:
        live[THREADS_KEY] = run.loader.opencv_threads
    if not loader.num_workers:
        # a default of older PyTorch, that no worker is there to use
        del live[f'{KEY}prefetch_factor']
    before = {key: value for key, value in live.items() if value is not None}
    return before, {**before, **changes}


def sum_predicted_gain(run: Run, recommendation: Recommendation) -> float | None:
    """The gain in images per second that was predicted of all changes together."""
    larger, predicted_s = 1.0, None
    for change in recommendation.changes:
        predicted_s = change.predicted_iter_s or predicted_s
        if change.key == BATCH_KEY:
            larger = change.new / change.old
    if not predicted_s or not run.iter_s:
        return None
    return larger * run.iter_s / predicted_s - 1
