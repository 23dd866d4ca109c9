"""Decides the settings of validation's loader, from what validations showed. Pure.

Nothing of the train loader's settings is carried over: a validation has batches, a
step and a pace of its own, and mostly starts with no batch made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from mmgpu_hooks.judge.duration_text import format_seconds, format_sum
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.thresholds import MIN_ITERATIONS, VALIDATION_WORTH
from mmgpu_hooks.judge.validation_facts import (
    find_alike,
    fold_validation_facts,
    is_timed,
)
from mmgpu_hooks.judge.verdict import count_missing
from mmgpu_hooks.recommend.changes import (
    Decision,
    judge_change,
    warn_of_many,
)
from mmgpu_hooks.recommend.choice import Setting
from mmgpu_hooks.recommend.chooser import Chooser, read_setting
from mmgpu_hooks.recommend.worker_cap import bytes_each
from mmgpu_hooks.schema import Change, Recommendation, ValidationOutlook

VALIDATION_KEY = 'val_dataloader.'

_STAYS = 'val_dataloader stays as it is: '


@dataclass(frozen=True)
class ValidationAdvice:
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
    validation = fold_validation_facts(_leave_to_training(run, train))
    if validation is None:
        return _stay(run, 'their loop does not show its iterations.')
    if validation.workload is None or validation.is_stalled or not validation.is_enough:
        return _stay(run, _why_unpredicted(validation), validation)
    decision = Chooser(validation, validation.workload).decide()
    gain = decision.gain
    loop_s = _loop_s(run, validation)
    if gain is None:
        return _stay(run, _why_nothing(decision), validation)
    saved_s, low_s, high_s = (
        share * loop_s for share in (gain.share, gain.low, gain.high)
    )
    whole_s = run.duration_s
    run_share = saved_s * len(run.validations) / whole_s if whole_s else 0.0
    told = (
        f'{format_sum(saved_s)} of each validation ({format_sum(low_s)} to '
        f'{format_sum(high_s)}, 9 times in 10), {100 * run_share:.1f} % of the run'
    )
    if run_share < VALIDATION_WORTH:
        why = f'other settings are predicted to save {told}, which is too little.'
        return _stay(run, why, validation)
    sentence = (
        f'{_word_now(run, validation)} The changes of val_dataloader are predicted to '
        f'save {told}.{_word_training(run)}'
    )
    outlook = ValidationOutlook(
        sentence=sentence,
        validations=len(run.validations),
        loop_s=loop_s,
        gain_s=saved_s,
        gain_low_s=low_s,
        gain_high_s=high_s,
        run_gain_pct=100 * run_share,
    )
    return ValidationAdvice(_word_changes(decision), outlook)


def leave_validation(
    recommendation: Recommendation, run: Run, why: str
) -> Recommendation:
    """The recommendation without changes of validation's loader.

    Args:
        recommendation: With or without such changes.
        run: The run it is for.
        why: Nothing of them is needed or can be set, as a sentence.
    """
    kept = tuple(
        one for one in recommendation.changes if not one.key.startswith(VALIDATION_KEY)
    )
    outlook = recommendation.validation
    if len(kept) < len(recommendation.changes):
        outlook = _stay(run, why, fold_validation_facts(run)).outlook
    return replace(recommendation, changes=kept, validation=outlook)


def _leave_to_training(run: Run, train: Setting | None) -> Run:
    """The run, its host without what workers of training hold meanwhile."""
    train = train or read_setting(run)
    alive = max((one.train_workers or 0 for one in run.validations), default=0)
    if train.persistent_workers or run.run.loop == 'iter':
        alive = max(alive, train.num_workers)
    host = run.run.host
    # memory and /dev/shm are those of all ranks on the host
    ranks = max(host.ranks_on_host, 1)
    held = ranks * round(alive * (bytes_each(run)[0] or 0.0))
    ahead = alive * train.prefetch_factor
    in_flight = ranks * ahead * (run.batch_bytes or 0)
    left = structs.replace(
        host,
        ram_available_bytes=_less(host.ram_available_bytes, held),
        cgroup_memory_bytes=_less(host.cgroup_memory_bytes, held),
        shm_free_bytes=_less(host.shm_free_bytes, in_flight),
        open_files_soft=_less(host.open_files_soft, ahead * (run.batch_tensors or 0)),
    )
    return run.altered(run=structs.replace(run.run, host=left))


def _less(limit: int | None, taken: int) -> int | None:
    return None if limit is None else max(limit - taken, 0)


def _stay(run: Run, why: str, validation: Run | None = None) -> ValidationAdvice:
    now = _word_now(run, validation)
    outlook = ValidationOutlook(
        sentence=f'{now} {_STAYS}{why}{_word_training(run)}',
        validations=len(run.validations),
        loop_s=None if validation is None else _loop_s(run, validation),
    )
    return ValidationAdvice(outlook=outlook)


def _word_now(run: Run, validation: Run | None) -> str:
    """How long validations took, and what of it was their loader's."""
    walls_s = [one.wall_s for one in run.validations if is_timed(one)]
    if not walls_s:
        return f'How long {len(run.validations)} validation(s) took is unknown.'
    wall_s = math.fsum(walls_s) / len(walls_s)
    now = f'{len(walls_s)} validation(s) took {format_sum(wall_s)}'
    each = ' each' if len(walls_s) > 1 else ''
    if validation is None:
        return f'{now}{each}.'
    ledger_s = validation.ledger_s
    waits_s = ledger_s['data_wait'] + ledger_s['startup']
    waits_s /= len(find_alike(run))
    return (
        f'{now}{each}: {format_sum(_loop_s(run, validation))} in the loop, '
        f'{format_sum(waits_s)} of them waiting for data and for workers to start.'
    )


def _loop_s(run: Run, validation: Run) -> float:
    """Mean seconds of one validation's loop, however often it goes through its data."""
    return validation.duration_s / len(find_alike(run))


def _why_unpredicted(run: Run) -> str:
    if run.is_enough:
        return (
            run.why_no_workload
            or 'its waits are not those of a loader that is too slow.'
        )
    each = max(run.run.interval_iterations, 1)
    more = math.ceil(count_missing(run) / each)
    return (
        f'{run.steady_iterations} of their iterations can be judged by, and '
        f'{MIN_ITERATIONS} are needed: at least {more} more validation(s) as long as '
        'the last.'
    )


def _why_nothing(decision: Decision) -> str:
    if decision.doubt:
        return decision.doubt
    if not decision.run.is_data_bound:
        return 'in its steady iterations data is at hand.'
    cap = decision.cap
    return (
        'no other safe setting is predicted to be faster by enough (at most '
        f'{cap.workers} worker(s): {cap.reason}).'
    )


def _word_training(run: Run) -> str:
    """Workers of training that lived meanwhile, and what they took."""
    told: Sequence[tuple[int, float, float]] = [
        (one.train_workers, one.train_workers_cpu_s, one.wall_s)
        for one in run.validations
        if one.train_workers and one.train_workers_cpu_s is not None and is_timed(one)
    ]
    if not told:
        return ''
    cores = math.fsum(cpu_s for _, cpu_s, _ in told) / math.fsum(s for *_, s in told)
    return (
        f' Meanwhile {max(workers for workers, *_ in told)} worker(s) of '
        f'train_dataloader stayed alive and used {cores:.2f} cores.'
    )


def _iter_s(decision: Decision) -> float:
    """A steady iteration as it was measured."""
    return decision.run.iter_s or decision.old_iter_s


def _word_changes(decision: Decision) -> tuple[Change, ...]:
    old, new = decision.old, decision.new
    found: list[tuple[str, object, object, str]] = []
    if new.num_workers != old.num_workers:
        found.append(
            (
                'num_workers',
                old.num_workers,
                new.num_workers,
                'an iteration of validation takes '
                f'{format_seconds(_iter_s(decision))}, and '
                f'{format_seconds(decision.new_iter_s)} are predicted with '
                f'{new.num_workers} '
                f'worker(s) (the host carries at most {decision.cap.workers}: '
                f'{decision.cap.reason}){warn_of_many(decision)}',
            )
        )
    kept = decision.run.run.loader.prefetch_factor
    ahead = new.prefetch_factor if new.num_workers else None
    if new.prefetch_factor != old.prefetch_factor or (kept is not None and not ahead):
        why = 'late batches of validation hold up the ones behind them'
        if not ahead:
            why = 'there are no workers to make batches ahead'
        found.append(('prefetch_factor', kept, ahead, why))
    if new.persistent_workers != old.persistent_workers:
        why = (
            'the workers are started anew for each of '
            f'{decision.run.run.max_epochs} validations otherwise'
        )
        if not new.persistent_workers:
            why = 'there are no workers to keep'
        workers = old.persistent_workers, new.persistent_workers
        found.append(('persistent_workers', *workers, why))
    return tuple(
        Change(
            key=VALIDATION_KEY + name,
            old=before,
            new=after,
            reason=why,
            confidence=judge_change(decision),
            rules=('MG302',),
        )
        for name, before, after, why in found
    )
