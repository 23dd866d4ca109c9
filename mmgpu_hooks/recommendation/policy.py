"""Decides the train loader's settings. Pure, so that every decision can be tested as
a table and repeated from the recorded evidence alone, on any machine.
"""

from __future__ import annotations

import math

from mmgpu_hooks.diagnosis.facts import Facts, fold_facts
from mmgpu_hooks.diagnosis.thresholds import (
    MIN_ITERATIONS,
    STARTUP_MEASURABLE,
    WORTHWHILE_GAIN,
)
from mmgpu_hooks.diagnosis.verdict import judge_confidence
from mmgpu_hooks.modeling.loader_bound import LoaderModel, predict_iter_s
from mmgpu_hooks.recommendation.worker_cap import WorkerCap, cap_workers
from mmgpu_hooks.records import Change, Recommendation, RunSummary

KEY = 'train_dataloader.'

SAME_SPEED = 0.02
"""Settings this close to the best are equal, and the one with fewer workers wins."""

MARGIN = 1.15
"""Loading is planned this much slower than measured: batches vary, and a loader that
just keeps up on average does not."""


def recommend_settings(summary: RunSummary) -> Recommendation:
    """Decide num_workers, persistent_workers, prefetch_factor and pin_memory.

    Args:
        summary: One rank's figures, with the live settings and the host's limits.

    Returns:
        The changes, or the reason why there is none.
    """
    facts = fold_facts(summary)
    model, old = facts.model, summary.run.loader.num_workers
    if old is None:
        return Recommendation(reason='The live settings of the loader are unknown.')
    if model is None or not facts.is_enough:
        return Recommendation(
            reason=f'Not enough evidence: {summary.steady_iterations} steady '
            f'iterations, {MIN_ITERATIONS} needed.'
        )
    cap = cap_workers(summary, model)
    if cap is None:
        return Recommendation(
            reason='The usable cores of this host are unknown, so no number of workers '
            'is known to be safe.'
        )
    workers = _recommend_workers(facts, model, cap)
    chosen = workers.new if workers else old
    changes: list[Change] = [workers] if workers else []
    changes += _recommend_persistent(facts, chosen)
    changes += _recommend_prefetch(facts, chosen)
    changes += _recommend_pinning(summary, chosen)
    if changes:
        return Recommendation(tuple(changes))
    return Recommendation(reason=_why_nothing(facts, model, cap))


def _planned(model: LoaderModel, workers: int) -> float:
    """Iteration time with the loading planned slower than it was measured."""
    if workers == 0:
        return predict_iter_s(model, 0)
    return max(model.floor_s, MARGIN * model.occupancy_s / workers)


def _recommend_workers(
    facts: Facts, model: LoaderModel, cap: WorkerCap
) -> Change | None:
    summary = facts.summary
    old, now_s = summary.run.loader.num_workers or 0, summary.iter_s or 0.0
    if facts.is_data_bound:
        candidates = range(1, cap.workers + 1)
        best_s = min(_planned(model, count) for count in candidates)
        new = next(
            c for c in candidates if _planned(model, c) <= best_s * (1 + SAME_SPEED)
        )
        after_s = predict_iter_s(model, new)
        if new != old and after_s <= now_s * (1 - WORTHWHILE_GAIN):
            return Change(
                key=KEY + 'num_workers',
                old=old,
                new=new,
                reason=f'an iteration now takes {now_s:.3f} s and the step needs '
                f'{model.ready_s:.3f} s of it; with {new} worker(s) it is predicted to '
                f'take {after_s:.3f} s or a little more (the host carries at most '
                f'{cap.workers}: {cap.reason})',
                confidence=judge_confidence(facts),
                rules=('MG101',),
                predicted_iter_s=after_s,
            )
    return _recommend_fewer(facts, model, cap)


def _recommend_fewer(facts: Facts, model: LoaderModel, cap: WorkerCap) -> Change | None:
    """Take away workers that the host cannot carry, if the rest still keeps up."""
    old, now_s = facts.summary.run.loader.num_workers or 0, facts.summary.iter_s or 0.0
    cores = facts.summary.run.host.usable_cores or 0.0
    if old <= max(cores, cap.workers, 1) or model.worker_cpu_s is None:
        return None
    # CPU is the least a batch takes; waiting overlaps as well with fewer workers
    needed = math.ceil(MARGIN * model.worker_cpu_s / now_s) if now_s > 0 else old
    new = max(min(cap.workers, old), 1)
    if needed > new and not facts.is_cpu_the_wall:
        return None
    return Change(
        key=KEY + 'num_workers',
        old=old,
        new=new,
        reason=f'{old} workers share {cores:g} usable cores; {new} do the same work '
        f'({model.worker_cpu_s:.3f} s of CPU per batch, {now_s:.3f} s per iteration) '
        'and leave the training thread and checkpoint saves a core',
        confidence=judge_confidence(facts),
        rules=('MG105',),
    )


def _recommend_persistent(facts: Facts, workers: int) -> list[Change]:
    summary = facts.summary
    starts = _loader_starts(summary)
    if workers == 0 or summary.run.loader.persistent_workers is not False or starts < 2:
        return []
    if summary.run.loader.num_workers:
        share = facts.run_share(summary.startup_s)
        if share < STARTUP_MEASURABLE:
            return []
        reason = (
            f'starting workers took {summary.startup_s:.1f} s in '
            f'{summary.epoch_starts} epoch starts ({100 * share:.0f} % of the run)'
        )
    else:
        reason = f'the new workers would otherwise be started {starts} times over'
    return [
        Change(
            key=KEY + 'persistent_workers',
            old=False,
            new=True,
            reason=reason,
            confidence=judge_confidence(facts),
            rules=('MG104',),
        )
    ]


def _loader_starts(summary: RunSummary) -> int:
    """How often the whole training starts over its loader, as far as known."""
    run = summary.run
    if run.loop == 'epoch' and run.max_epochs:
        return run.max_epochs
    if run.max_iters and run.loader.batches_per_epoch:
        return math.ceil(run.max_iters / run.loader.batches_per_epoch)
    return summary.epoch_starts


def _recommend_prefetch(facts: Facts, workers: int) -> list[Change]:
    """Only the one value that is always wrong: no batch made ahead."""
    if workers == 0 or facts.summary.run.loader.prefetch_factor != 1:
        return []
    if not facts.is_data_bound:
        return []
    return [
        Change(
            key=KEY + 'prefetch_factor',
            old=1,
            new=2,
            reason='a worker that makes one batch ahead stands still while the loop '
            'fetches it; two is the default of PyTorch',
            confidence=judge_confidence(facts),
            rules=('MG101',),
        )
    ]


def _recommend_pinning(summary: RunSummary, workers: int) -> list[Change]:
    """Pinned pages serve copies to a GPU; without one they only cost memory."""
    loader = summary.run.loader
    if summary.run.device != 'cuda' or workers == 0 or loader.pin_memory is not False:
        return []
    return [
        Change(
            key=KEY + 'pin_memory',
            old=False,
            new=True,
            reason='batches are copied to a GPU, and copies from pinned memory are '
            "faster; the gain is small, as MMEngine's data preprocessor waits for them",
            confidence='low',
        )
    ]


def _why_nothing(facts: Facts, model: LoaderModel, cap: WorkerCap) -> str:
    if not facts.is_data_bound:
        return 'Data is at hand when it is needed; the loader settings are fine.'
    if facts.is_cpu_the_wall:
        return (
            f'The CPU is the wall: no number of workers is faster than '
            f'{model.cpu_floor_s:.3f} s per iteration on this host.'
        )
    return (
        f'No other safe setting is predicted to be {100 * WORTHWHILE_GAIN:.0f} % '
        f'faster (at most {cap.workers} worker(s): {cap.reason}).'
    )
