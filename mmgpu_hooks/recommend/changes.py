"""Says what was decided: each change with its reason and what it gives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from mmgpu_hooks.judge.duration_text import format_seconds, format_sum
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.thresholds import WORTHWHILE_GAIN
from mmgpu_hooks.judge.verdict import judge_confidence
from mmgpu_hooks.model.job import START_ERROR
from mmgpu_hooks.model.prediction import COVERAGE
from mmgpu_hooks.model.workload import Workload
from mmgpu_hooks.recommend.choice import Gain, Setting, count_starts
from mmgpu_hooks.recommend.worker_cap import WorkerCap
from mmgpu_hooks.schema import Change

KEY = 'train_dataloader.'
WORKERS_KEY = f'{KEY}num_workers'

AT_HAND = 'In steady iterations data is at hand when it is needed.'


@dataclass(frozen=True)
class Decision:
    """The new setting, and what it was chosen by."""

    run: Run
    workload: Workload
    cap: WorkerCap
    old: Setting
    new: Setting
    old_iter_s: float
    """Predicted, as is the next."""
    new_iter_s: float
    gain: Gain | None
    """``None`` when nothing changes."""
    batch_size: int | None = None
    """The new one that all of it is about; ``None`` keeps the run's."""
    doubt: str | None = None
    """Why a setting that is predicted to be faster is advice and not ``new``; empty
    where it is not worth a word."""

    @property
    def cores(self) -> int:
        """Whole cores that this rank may use."""
        return max(math.floor(self.run.run.host.usable_cores or 0.0), 1)


def phrase_changes(decision: Decision) -> list[Change]:
    """Every setting that changes, with the gain of all of them together."""
    gain = decision.gain
    confidence = judge_confidence(decision.run)
    if gain is not None:
        confidence = judge_gain(decision.run, gain)
    return [
        Change(
            key=KEY + name,
            old=old,
            new=new,
            reason=reason,
            confidence=confidence,
            rules=rules,
            predicted_iter_s=decision.new_iter_s,
            predicted_gain_pct=100 * gain.share if gain else None,
            predicted_gain_low_pct=100 * gain.low if gain else None,
            predicted_gain_high_pct=100 * gain.high if gain else None,
        )
        for name, old, new, reason, rules in _list_changes(decision)
    ]


def _list_changes(
    decision: Decision,
) -> Iterator[tuple[str, Any, Any, str, tuple[str, ...]]]:
    """Name, old and new value of each setting that changes, why, and by which rules."""
    old, new, run = decision.old, decision.new, decision.run
    if new.num_workers != old.num_workers:
        reason, rules = _why_workers(decision)
        yield 'num_workers', old.num_workers, new.num_workers, reason, rules
    prefetch = run.run.loader.prefetch_factor
    if not new.num_workers:
        if old.num_workers and prefetch is not None:
            reason = 'there are no workers to make batches ahead'
            yield 'prefetch_factor', prefetch, None, reason, ()
    elif new.prefetch_factor != old.prefetch_factor:
        reason = 'batches vary; more of them made ahead carry the loop over slow ones'
        yield 'prefetch_factor', prefetch, new.prefetch_factor, reason, ('MG101',)
    if new.persistent_workers != old.persistent_workers:
        is_kept = new.persistent_workers
        reason = 'there are no workers to keep'
        if is_kept and old.num_workers:
            reason = keep_workers(run).reason
        elif is_kept:
            starts = count_starts(run)
            reason = f'the new workers would otherwise be started {starts} times over'
        yield 'persistent_workers', not is_kept, is_kept, reason, ('MG104',) * is_kept


def _why_workers(decision: Decision) -> tuple[str, tuple[str, ...]]:
    run, old, new = decision.run, decision.old.num_workers, decision.new.num_workers
    now = f'now takes {format_seconds(run.iter_s)}'
    if decision.batch_size is not None:
        old_s = format_seconds(decision.old_iter_s)
        now = f'with batch_size={decision.batch_size} would take {old_s}'
    after = f'{format_seconds(decision.new_iter_s)} with {new} worker(s)'
    if new < old and run.worker_run_delay_s and old > decision.cores:
        return (
            f'{old} workers share {decision.cores} usable cores and spent '
            f'{format_seconds(run.worker_run_delay_s)} per batch waiting for one, '
            f'beside {format_seconds(run.worker_cpu_s)} on it; an iteration {now} and '
            f'is predicted to take {after}'
        ), ('MG105', 'MG106')
    reason = (
        f'an iteration {now}, of which the step needs '
        f'{format_seconds(decision.workload.ready_s)}; it is predicted to take '
        f'{after} (the host carries at most {decision.cap.workers}: '
        f'{decision.cap.reason})'
    )
    if new > decision.cores:
        reason += (
            f'; they wait for {100 * run.waiting_share:.0f} % of a batch, so they may '
            f'outnumber the {decision.cores} usable cores: PyTorch will warn about '
            'this many workers, which is expected here'
        )
    return reason, ('MG101',)


def phrase_setting(old: Setting, new: Setting) -> str:
    """What differs, as ``num_workers 2 -> 5, persistent_workers False -> True``."""
    before, after = asdict(old), asdict(new)
    changed = [name for name in before if before[name] != after[name]]
    return ', '.join(f'{name} {before[name]} -> {after[name]}' for name in changed)


def phrase_gain(gain: Gain) -> str:
    """A gain with its interval."""
    return (
        f'{100 * gain.share:.0f} % of the time ({100 * gain.low:.0f} to '
        f'{100 * gain.high:.0f} %, 9 times in 10)'
    )


def keep_workers(run: Run) -> Change:
    """Workers that live on, for what their starts were measured to cost."""
    share = run.run_share(run.startup_s)
    starts = max(count_starts(run), 1)
    saved_pct = 100 * share * (starts - 1) / starts
    reach_pct = COVERAGE * START_ERROR * saved_pct
    return Change(
        key=f'{KEY}persistent_workers',
        old=False,
        new=True,
        reason=f'starting workers took {format_sum(run.startup_s)} in '
        f'{run.epoch_starts} start(s)',
        confidence=judge_confidence(run),
        rules=('MG104',),
        predicted_gain_pct=saved_pct,
        predicted_gain_low_pct=saved_pct - reach_pct,
        predicted_gain_high_pct=saved_pct + reach_pct,
    )


def judge_gain(run: Run, gain: Gain) -> str:
    """How sure a gain is, in a word; never high where its interval holds a loss."""
    confidence = judge_confidence(run)
    return 'medium' if confidence == 'high' and gain.low < 0.0 else confidence


def why_nothing(decision: Decision) -> str:
    """Why no setting is changed, as a sentence."""
    run, cap = decision.run, decision.cap
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
        f'faster (at most {cap.workers} worker(s): {cap.reason}).'
    )
