"""Says what was decided: each change with its reason and what it gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mmgpu_hooks.judge.duration_text import format_seconds, format_sum
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.threads import find_worker_threads
from mmgpu_hooks.judge.thresholds import WORTHWHILE_GAIN
from mmgpu_hooks.judge.verdict import judge_confidence
from mmgpu_hooks.model.job import START_ERROR
from mmgpu_hooks.model.prediction import COVERAGE
from mmgpu_hooks.recommend.choice import ONE_THREAD, Decision, Gain, count_starts
from mmgpu_hooks.schema.judged import THREADS_KEY, Change
from mmgpu_hooks.schema.plural import plural

KEY = 'train_dataloader.'
WORKERS_KEY = f'{KEY}num_workers'

AT_HAND = 'In steady iterations data is at hand when it is needed.'


def phrase_changes(decision: Decision) -> list[Change]:
    """Every setting that changes, with the gain of all of them together."""
    changes = [make_change(decision, *one) for one in _list_changes(decision)]
    return [*_free_threads(decision), *changes]


def _free_threads(decision: Decision) -> Iterator[Change]:
    job, run = decision.job, decision.job.run
    found = find_worker_threads(run) if job.had_threads else None
    if found is None:
        return
    reason = (
        f'{found.workers} workers run up to {found.threads} threads each on '
        f'{found.cores:g} cores and wait {format_seconds(found.delay_s)} per batch for '
        f'one; an iteration now takes {format_seconds(run.iter_s)} and is predicted to '
        f'take {format_seconds(job.iter_s(decision.new))}'
    )
    change = make_change(decision, '', job.had_threads, ONE_THREAD, reason, 'MG115')
    yield replace(change, key=THREADS_KEY)


def _list_changes(decision: Decision) -> Iterator[tuple[Any, ...]]:
    """Name, old and new value of each setting that changes, why, and by which rules."""
    old, new, run = decision.job.old, decision.new, decision.job.run
    prefetch = run.run.loader.prefetch_factor
    if new.num_workers != old.num_workers:
        yield 'num_workers', old.num_workers, new.num_workers, *_why_workers(decision)
    if not new.num_workers and old.num_workers and prefetch is not None:
        reason = 'there are no workers to make batches ahead'
        yield 'prefetch_factor', prefetch, None, reason
    elif new.num_workers and new.prefetch_factor != old.prefetch_factor:
        reason = 'batches vary; more of them made ahead carry the loop over slow ones'
        yield 'prefetch_factor', prefetch, new.prefetch_factor, reason, 'MG101'
    if new.persistent_workers == old.persistent_workers:
        return
    if not new.persistent_workers:
        yield 'persistent_workers', True, False, 'there are no workers to keep'
        return
    starts = count_starts(run)
    reason = f'the new workers would otherwise be started {starts} times over'
    if old.num_workers:
        reason = _why_keep(run)
    yield 'persistent_workers', False, True, reason, 'MG104'


def make_change(
    decision: Decision, name: str, old: Any, new: Any, reason: str, *rules: str
) -> Change:
    """One setting of the train loader, with the gain of all together."""
    gain, run = decision.gain, decision.job.run
    return Change(
        key=KEY + name,
        old=old,
        new=new,
        reason=reason,
        confidence=_judge_gain(run, gain) if gain else judge_confidence(run),
        rules=rules,
        predicted_iter_s=decision.job.iter_s(decision.new),
        predicted_gain_pct=100 * gain.share if gain else None,
        predicted_gain_low_pct=100 * gain.low if gain else None,
        predicted_gain_high_pct=100 * gain.high if gain else None,
    )


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


def keep_workers(run: Run) -> Change:
    """Workers that live on, for what their starts were measured to cost."""
    starts = max(count_starts(run), 1)
    saved_pct = 100 * run.run_share(run.startup_s) * (starts - 1) / starts
    reach_pct = COVERAGE * START_ERROR * saved_pct
    return Change(
        key=f'{KEY}persistent_workers',
        old=False,
        new=True,
        reason=_why_keep(run),
        confidence=judge_confidence(run),
        rules=('MG104',),
        predicted_gain_pct=saved_pct,
        predicted_gain_low_pct=saved_pct - reach_pct,
        predicted_gain_high_pct=saved_pct + reach_pct,
    )


def _why_keep(run: Run) -> str:
    took = format_sum(run.startup_s)
    return f'starting workers took {took} in {plural(run.epoch_starts, "start")}'


def _judge_gain(run: Run, gain: Gain) -> str:
    """How sure a gain is, in a word; never high where its interval holds a loss."""
    confidence = judge_confidence(run)
    return 'medium' if confidence == 'high' and gain.low < 0.0 else confidence


def why_nothing(decision: Decision) -> str:
    """Why no setting is changed, as a sentence."""
    run, cap = decision.job.run, decision.job.cap
    if decision.doubt:
        return 'What is predicted to help is not sure enough to be written.'
    if not run.is_data_bound:
        return AT_HAND
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
