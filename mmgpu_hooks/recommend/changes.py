"""Words what was decided: each change with its reason and what it gives. Pure."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from mmgpu_hooks.judge.duration_text import format_seconds, format_sum
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import judge_confidence
from mmgpu_hooks.model.floors import ready_s
from mmgpu_hooks.model.job import START_ERROR
from mmgpu_hooks.recommend.choice import COVERAGE, Gain, Setting, iter_s
from mmgpu_hooks.recommend.job_plan import count_starts
from mmgpu_hooks.recommend.worker_cap import WorkerCap
from mmgpu_hooks.schema import Change, LoaderWorkload

KEY = 'train_dataloader.'
WORKERS_KEY = f'{KEY}num_workers'


@dataclass(frozen=True)
class Decision:
    """The new setting, and what it was chosen by."""

    run: Run
    workload: LoaderWorkload
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


def word_changes(decision: Decision) -> list[Change]:
    """Every setting that changes, with the gain of all of them together."""
    return [*_workers(decision), *_prefetch(decision), *_persistent(decision)]


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


def warn_of_many(decision: Decision) -> str:
    """What PyTorch will say of more workers than cores; nothing of fewer."""
    if decision.new.num_workers <= decision.cores:
        return ''
    return (
        f'; they wait for {100 * decision.run.waiting_share:.0f} % of a batch, so '
        f'they may outnumber the {decision.cores} usable cores: PyTorch will warn '
        'about this many workers, which is expected here'
    )


def word_persistent(run: Run) -> Change:
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
        f'{run.epoch_starts} epoch start(s) ({100 * share:.0f} % of the run)',
        confidence=judge_confidence(run),
        rules=('MG104',),
        predicted_gain_pct=saved_pct,
        predicted_gain_low_pct=saved_pct - reach_pct,
        predicted_gain_high_pct=saved_pct + reach_pct,
    )


def _workers(decision: Decision) -> list[Change]:
    run, new = decision.run, decision.new.num_workers
    old = decision.old.num_workers
    if new == old:
        return []
    now, after_s = _word_now(decision), decision.new_iter_s
    if new > old or not run.worker_run_delay_s or old <= decision.cores:
        rules: tuple[str, ...] = ('MG101',)
        reason = (
            f'an iteration {now} and the step needs '
            f'{format_seconds(ready_s(decision.workload))} of it; with {new} '
            'worker(s) it is '
            f'predicted to take {format_seconds(after_s)} (the host carries at most '
            f'{decision.cap.workers}: {decision.cap.reason})'
        )
        reason += warn_of_many(decision)
    else:
        rules = ('MG105', 'MG106')
        reason = (
            f'{old} workers share {decision.cores} usable cores and spent '
            f'{format_seconds(run.worker_run_delay_s)} per batch waiting for '
            'one, beside '
            f'{format_seconds(run.worker_cpu_s)} on it; {new} are predicted to '
            'be as fast '
            f'or faster ({format_seconds(after_s)} per iteration, which {now})'
        )
    return [_change(decision, 'num_workers', old, new, reason, rules)]


def _word_now(decision: Decision) -> str:
    """What an iteration takes with the old setting: measured, or predicted."""
    if decision.batch_size is not None:
        return (
            f'with batch_size={decision.batch_size} would take '
            f'{format_seconds(decision.old_iter_s)}'
        )
    return f'now takes {format_seconds(decision.run.iter_s)}'


def _prefetch(decision: Decision) -> list[Change]:
    old, new = decision.run.run.loader.prefetch_factor, decision.new
    if new.num_workers == 0:
        if not decision.old.num_workers or old is None:
            return []
        reason = 'there are no workers to make batches ahead'
        return [_change(decision, 'prefetch_factor', old, None, reason, ())]
    if new.prefetch_factor == decision.old.prefetch_factor:
        return []
    less = replace(new, prefetch_factor=decision.old.prefetch_factor)
    reason = (
        'batches vary, and more of them made ahead carry the loop over slow ones: '
        f'{format_seconds(decision.new_iter_s)} per iteration are predicted, and '
        f'{format_seconds(iter_s(decision.workload, less))} without'
    )
    return [
        _change(
            decision, 'prefetch_factor', old, new.prefetch_factor, reason, ('MG101',)
        )
    ]


def _persistent(decision: Decision) -> list[Change]:
    old, new = decision.old, decision.new
    if old.persistent_workers == new.persistent_workers:
        return []
    if not new.persistent_workers:
        reason = 'there are no workers to keep'
        return [_change(decision, 'persistent_workers', True, False, reason, ())]
    if old.num_workers:
        reason = word_persistent(decision.run).reason
    else:
        starts = count_starts(decision.run)
        reason = f'the new workers would otherwise be started {starts} times over'
    return [_change(decision, 'persistent_workers', False, True, reason, ('MG104',))]


def _change(
    decision: Decision,
    name: str,
    old: object,
    new: object,
    reason: str,
    rules: tuple[str, ...],
) -> Change:
    gain = decision.gain
    return Change(
        key=KEY + name,
        old=old,
        new=new,
        reason=reason,
        confidence=judge_change(decision),
        rules=rules,
        predicted_iter_s=decision.new_iter_s,
        predicted_gain_pct=100 * gain.share if gain else None,
        predicted_gain_low_pct=100 * gain.low if gain else None,
        predicted_gain_high_pct=100 * gain.high if gain else None,
    )


def judge_change(decision: Decision) -> str:
    """How sure a change is, in a word."""
    run, gain = decision.run, decision.gain
    return judge_confidence(run) if gain is None else judge_gain(run, gain)


def judge_gain(run: Run, gain: Gain) -> str:
    """How sure a gain is, in a word; never high where its interval holds a loss."""
    confidence = judge_confidence(run)
    return 'medium' if confidence == 'high' and gain.low < 0.0 else confidence
