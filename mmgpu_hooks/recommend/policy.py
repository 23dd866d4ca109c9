"""Decides the settings of both loaders and what makes saves cost less, and says why.

Pure, so that every decision can be tested as a table and repeated from the recorded
evidence alone, on any machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.validation import find_alike, make_validation_run
from mmgpu_hooks.judge.verdict import count_missing, judge_confidence
from mmgpu_hooks.model.batches import CardMemory
from mmgpu_hooks.model.prediction import COVERAGE, START_ERROR, LoaderSetting
from mmgpu_hooks.recommend.advice import advise
from mmgpu_hooks.recommend.choice import (
    ONE_THREAD,
    Decision,
    Gain,
    Job,
    LiveLoader,
    count_starts,
    decide,
    phrase_gain,
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

KEY = 'train_dataloader.'
WORKERS_KEY = f'{KEY}num_workers'
PERSISTENT_KEY = f'{KEY}persistent_workers'
BATCH_KEY = f'{KEY}batch_size'
VALIDATION_KEY = 'val_dataloader.'
NICE_KEY = 'default_hooks.gpu_efficiency.worker_nice'
"""Where ``mmgpu enable`` puts the hook."""

NICE = 10
"""Niceness of niced workers: a tenth of the weight, which starves nothing."""

_AT_HAND = 'In steady iterations data is at hand when it is needed.'
_STALLS = 'The waits are not those of a loader that cannot keep up.'


def recommend_settings(run: Run, memory: CardMemory | None = None) -> Recommendation:
    """Decide num_workers, prefetch_factor and persistent_workers.

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
    train: LoaderSetting | None = None
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
                changes = list(_list_changes(decision, choice.sentence))
        train = decision.new
    validation = advise_validation(run, train)
    together = (*changes, *validation.changes)
    return replace(
        validation,
        changes=together,
        reason=None if together else reason,
        advice=advice,
        batch_size=said,
    )


def _unpredicted(run: Run) -> list[Change]:
    """Fallback when there is too little data to predict: judge start-up only."""
    figures = run.figures
    loader = run.meta.loader
    ends = bool(loader.num_workers) and loader.persistent_workers is False
    if not figures.is_enough or not ends or not starts_cost(run):
        return []
    starts = count_starts(run)
    share = figures.run_share(figures.startup_s) * (starts - 1) / starts
    reach = COVERAGE * START_ERROR * share
    gain = Gain(share, share - reach, share + reach)
    change = partial(_make_change, run, gain, None)
    return [change(PERSISTENT_KEY, False, True, _why_keep(run))]


def _why_unpredicted(run: Run) -> str:
    if not run.figures.is_enough:
        return f'{run.why_no_workload} Train at least {count_missing(run)} more.'
    if run.is_stalled:
        return _STALLS
    if not run.is_data_bound and run.figures.data_wait_share is not None:
        return _AT_HAND
    return run.why_no_workload


def _list_changes(decision: Decision, why_batch: str = '') -> Iterator[Change]:
    """Every setting that changes, each with the gain of all of them together."""
    job, old, new = decision.job, decision.job.old, decision.new
    run, found = job.run, job.freed
    change = partial(_make_change, run, decision.gain, job.iter_s(new))
    if why_batch:
        workload = job.workload
        why = _Why(why_batch)
        yield change(BATCH_KEY, workload.measured_batch_size, workload.batch_size, why)
    if found is not None:
        reason = (
            f'{found.workers} workers run up to {found.threads} threads each on '
            f'{found.cores:g} cores and wait {format_seconds(found.delay_s)} per batch '
            f'for one; an iteration now takes '
            f'{format_seconds(run.figures.iter_s)} and is '
            f'predicted to take {format_seconds(job.iter_s(new))}'
        )
        why = _Why(reason, ('MG115',))
        yield change(THREADS_KEY, found.opencv, ONE_THREAD, why)
    if new.num_workers != old.num_workers:
        why = _why_workers(decision)
        yield change(WORKERS_KEY, old.num_workers, new.num_workers, why)
    key, prefetch = f'{KEY}prefetch_factor', run.meta.loader.prefetch_factor
    if not new.num_workers and old.num_workers and prefetch is not None:
        why = _Why('there are no workers to make batches ahead')
        yield change(key, prefetch, None, why)
    elif new.num_workers and new.prefetch_factor != old.prefetch_factor:
        reason = 'batches vary; more of them made ahead carry the loop over slow ones'
        why = _Why(reason, ('MG101',))
        yield change(key, prefetch, new.prefetch_factor, why)
    if old.persistent_workers and not new.persistent_workers:
        why = _Why('there are no workers to keep')
        yield change(PERSISTENT_KEY, True, False, why)
    elif new.persistent_workers and not old.persistent_workers:
        reason = f'new workers would otherwise be started {count_starts(run)} times'
        why = _why_keep(run) if old.num_workers else _Why(reason, ('MG104',))
        yield change(PERSISTENT_KEY, False, True, why)


class _Why(NamedTuple):
    """Why a setting changes."""

    reason: str
    rules: tuple[str, ...] = ()
    """Codes of the rules that say so."""


def _make_change(
    run: Run,
    gain: Gain | None,
    iter_s: float | None,
    key: str,
    old: Any,
    new: Any,
    why: _Why,
) -> Change:
    """One setting, with the gain of all together."""
    confidence = judge_confidence(run)
    # never high where the gain may be a loss, nor for another recipe
    is_sure = key != BATCH_KEY and (gain is None or gain.low >= 0.0)
    if confidence == 'high' and not is_sure:
        confidence = 'medium'
    return Change(
        key=key,
        old=old,
        new=new,
        reason=why.reason,
        confidence=confidence,
        rules=why.rules,
        predicted_iter_s=iter_s,
        predicted_gain_pct=100 * gain.share if gain else None,
        predicted_gain_low_pct=100 * gain.low if gain else None,
        predicted_gain_high_pct=100 * gain.high if gain else None,
    )


def _why_workers(decision: Decision) -> _Why:
    """Why another number of workers is better, with the figures of both."""
    job, run = decision.job, decision.job.run
    old, new = job.old.num_workers, decision.new.num_workers
    is_resized = job.workload.measured_batch_size is not None
    now_s = job.iter_s(job.old) if is_resized else run.figures.iter_s
    reason = (
        f'an iteration takes {format_seconds(now_s)} with {plural(old, "worker")}, of '
        f'which the step needs {format_seconds(job.workload.ready_s)}; it is predicted '
        f'to take {format_seconds(job.iter_s(decision.new))} with '
        f'{plural(new, "worker")} (the host carries at most {job.cap.workers}: '
        f'{job.cap.reason})'
    )
    if new < old and run.figures.worker_run_delay_s and old > job.cores:
        reason += (
            f'; {old} workers share {job.cores} usable cores and waited '
            f'{format_seconds(run.figures.worker_run_delay_s)} per batch for one'
        )
        return _Why(reason, ('MG105', 'MG106'))
    if new > job.cores:
        reason += (
            f'; they wait for {100 * run.waiting_share:.0f} % of a batch, so they may '
            f'outnumber the {job.cores} usable cores: PyTorch will warn about '
            'this many workers, which is expected here'
        )
    return _Why(reason, ('MG101',))


def _why_keep(run: Run) -> _Why:
    took = format_sum(run.figures.startup_s)
    starts = plural(run.figures.epoch_starts, 'start')
    return _Why(f'starting workers took {took} in {starts}', ('MG104',))


def _why_nothing(decision: Decision) -> str:
    """Why no setting is changed, as a sentence."""
    run, cap = decision.job.run, decision.job.cap
    if decision.doubt:
        return 'What is predicted to help is not sure enough to be written.'
    if not run.is_data_bound:
        return _AT_HAND
    if run.is_cpu_the_wall:
        floor = format_seconds(run.cpu_floor_s)
        return f'The CPU is the wall: no setting is faster than {floor} per iteration.'
    much = f'{100 * thresholds.WORTHWHILE_GAIN:.0f} % faster'
    most = f'at most {plural(cap.workers, "worker")}: {cap.reason}'
    return f'No other safe setting is predicted to be {much} ({most}).'


def advise_validation(run: Run, train: LoaderSetting | None = None) -> Recommendation:
    """Decide ``num_workers``, ``persistent_workers`` and prefetching of validation.

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
    count, validation = len(run.validations), make_validation_run(run)
    taken = plural(count, 'validation')
    if validation is None:
        why = 'Its loop does not show its iterations.'
        return _stay(ValidationOutlook(f'{taken} ran.', count), why)
    alike = len(find_alike(run))
    loop_s = validation.figures.duration_s / alike
    waits_s = (
        validation.figures.ledger_s['data_wait']
        + validation.figures.ledger_s['startup']
    )
    whole_s = sum(record.wall_s for record in find_alike(run)) / alike
    now = ValidationOutlook(
        f'{taken} took {format_sum(whole_s)} each, {format_sum(loop_s)} of it in the '
        f'loop and {format_sum(waits_s / alike)} of that waiting for data.',
        count,
        loop_s,
    )
    if (
        validation.workload is None
        or validation.is_stalled
        or not validation.figures.is_enough
    ):
        return _stay(now, validation.why_no_workload or _STALLS)
    decision = decide(Job(validation, validation.workload, _live_on(run, train)))
    gain = decision.gain
    if gain is None:
        return _stay(now, decision.doubt or _why_nothing(decision))
    share = run.figures.run_share(gain.share * loop_s * count)
    if share < thresholds.VALIDATION_WORTH:
        why = f'Other settings are predicted to save {100 * share:.1f} % of the run, '
        return _stay(now, f'{why}which is too little.')
    said = f'{now.sentence} The changes of val_dataloader are predicted to save '
    said += f'{phrase_gain(gain)} in the loop, {100 * share:.1f} % of the run.'
    outlook = replace(
        now, sentence=said, gain_s=gain.share * loop_s, run_gain_pct=100 * share
    )
    changes = tuple(map(_rename, _list_changes(decision)))
    return Recommendation(changes, validation=outlook)


def _stay(now: ValidationOutlook, why: str) -> Recommendation:
    """Validation's loader as it is."""
    said = f'{now.sentence} val_dataloader stays as it is. {why}'
    outlook = ValidationOutlook(said, now.validations, now.loop_s)
    return Recommendation(validation=outlook)


def _live_on(run: Run, train: LoaderSetting | None) -> LiveLoader | None:
    """The train loader, where its workers live on while validation runs."""
    train = train or read_setting(run)
    stays = train.persistent_workers or run.meta.loop == 'iter'
    return LiveLoader(run, train) if stays else None


def _rename(change: Change) -> Change:
    """A change of validation's loader; what it saves is in the outlook."""
    key = VALIDATION_KEY + change.key.rpartition('.')[2]
    # what is said of an iteration is of one of validation
    reason = change.reason.replace('an iteration', 'an iteration of validation', 1)
    return Change(
        key=key,
        old=change.old,
        new=change.new,
        reason=reason,
        confidence=change.confidence,
        rules=('MG302',),
    )


def leave_out(
    recommendation: Recommendation, keys: tuple[str, ...], why: str
) -> Recommendation:
    """The recommendation without some changes.

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
        outlook = _stay(outlook, why).validation
    return replace(recommendation, changes=kept, validation=outlook)


def with_save_cures(recommendation: Recommendation, run: Run) -> Recommendation:
    """Add the cure for saves that workers hold up to what is recommended anyway.

    Args:
        recommendation: Settings of the loader.
        run: The run it was made of.

    Returns:
        With ``save_cures``, and with niced workers among the changes where the job
        gains enough by them and its new number of workers leaves no core free.
    """
    changes, cores = recommendation.changes, run.meta.host.cores_had
    cure = None if run.meta.worker_nice else _cure_by_nice(run)
    if cure is None or cores is None:
        return recommendation
    settings = {WORKERS_KEY: run.meta.loader.num_workers or 0}
    settings.update((change.key, change.new) for change in changes)
    is_full = settings[WORKERS_KEY] + 1 > cores
    if (
        is_full
        and run.figures.run_share(cure.run_net_s or 0.0) >= thresholds.SAVE_CURE_WORTH
    ):
        why = 'loader workers had the cores while checkpoints were saved'
        change = Change(
            key=NICE_KEY,
            old=run.meta.worker_nice,
            new=NICE,
            reason=f'{why}; {cure.sentence}',
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
    gross_s, count = sum(judged.held_s['workers'] for _, judged in held), len(held)
    is_much = run.figures.run_share(gross_s) >= thresholds.SAVE_CURE_WORTH
    if not held or not (is_much or run.saves_held_by('workers')):
        return None
    nets = [
        judged.net_delay_s * judged.held_s['workers'] / judged.gross_delay_s
        for _, judged in held
        if judged.net_delay_s is not None and judged.gross_delay_s
    ]
    net_s = sum(nets) if nets else None
    now_s = sum(save.wall_s for save, _ in held) / count
    then_s = now_s - gross_s / count
    return SaveCure(
        'polite_workers',
        f'niced workers, GPUEfficiencyHook(worker_nice={NICE}): {count} saves '
        f'are predicted to take {format_seconds(then_s)} each, now '
        f'{format_seconds(now_s)}; {format_sum(gross_s)} less in all (gross), '
        f'{format_sum(net_s)} of it won by the job (net)',
        save_s=then_s,
        saves=count,
        run_gross_s=gross_s,
        run_net_s=net_s,
    )


_LIVE = ('num_workers', 'persistent_workers', 'prefetch_factor', 'pin_memory')


class SettingPair(NamedTuple):
    """Two settings of the train loader by dotted key; ``None`` takes a key out."""

    before: dict[str, Any]
    after: dict[str, Any]


def pair_settings(run: Run, recommendation: Recommendation) -> SettingPair | None:
    """Pair the settings of the run, which may be in no file, and those recommended.

    Returns:
        ``None`` when nothing about the train loader is recommended.
    """
    loader = run.meta.loader
    changes = {
        change.key: change.new
        for change in recommendation.changes
        if change.key.startswith(KEY) or change.key == THREADS_KEY
    }
    if not changes:
        return None
    live = {KEY + name: getattr(loader, name) for name in _LIVE}
    if THREADS_KEY in changes and run.figures.loader is not None:
        live[THREADS_KEY] = run.figures.loader.opencv_threads
    if not loader.num_workers:
        # a default of older PyTorch, that no worker is there to use
        del live[f'{KEY}prefetch_factor']
    before = {key: value for key, value in live.items() if value is not None}
    return SettingPair(before, {**before, **changes})


def sum_predicted_gain(run: Run, recommendation: Recommendation) -> float | None:
    """The gain in images per second that was predicted of all changes together."""
    larger, predicted_s = 1.0, None
    for change in recommendation.changes:
        predicted_s = change.predicted_iter_s or predicted_s
        if change.key == BATCH_KEY:
            larger = change.new / change.old
    if not predicted_s or not run.figures.iter_s:
        return None
    return larger * run.figures.iter_s / predicted_s - 1
