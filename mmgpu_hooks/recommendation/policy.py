"""Decides the train loader's settings. Pure, so that every decision can be tested as
a table and repeated from the recorded evidence alone, on any machine.
"""

from __future__ import annotations

import math

from mmgpu_hooks.diagnosis.facts import Facts, fold_facts
from mmgpu_hooks.diagnosis.thresholds import (
    MIN_ITERATIONS,
    RUN_DELAY_PROBLEM,
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

SHARING_PAYS = 0.9
"""Predicted iteration time, over the one with a core left to the training process,
from which workers may share that core: the bound knows nothing of the switching."""

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
    if facts.is_starved and not facts.is_contradictory and cap.workers > 0:
        new = _choose_workers(model, cap)
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
    return _recommend_fewer(facts, model)


def _choose_workers(model: LoaderModel, cap: WorkerCap) -> int:
    """The fewest that keep up; into the training process's own core only if it pays."""
    new = _fewest(model, cap.beside_training)
    crowded = _fewest(model, cap.workers)
    pays = predict_iter_s(model, crowded) <= SHARING_PAYS * predict_iter_s(model, new)
    return crowded if pays else new


def _fewest(model: LoaderModel, most: int) -> int:
    candidates = range(1, most + 1)
    enough_s = min(_planned(model, count) for count in candidates) * (1 + SAME_SPEED)
    return next(count for count in candidates if _planned(model, count) <= enough_s)


def _recommend_fewer(facts: Facts, model: LoaderModel) -> Change | None:
    """Take away workers that only take turns on too few cores.

    Only where that was measured (they waited for cores) and where their occupancy is
    known: workers that wait for storage are right to outnumber the cores.
    """
    summary = facts.summary
    old, now_s = summary.run.loader.num_workers or 0, summary.iter_s or 0.0
    cpu_s, delay_s = summary.worker_cpu_s, summary.worker_run_delay_s
    cores = math.floor(summary.run.host.usable_cores or 0.0)
    if old <= max(cores, 1) or model.occupancy_is_bound or not cpu_s or not delay_s:
        return None
    if delay_s / (cpu_s + delay_s) < RUN_DELAY_PROBLEM or facts.is_contradictory:
        return None
    as_fast_s = now_s * (1 + SAME_SPEED)
    candidates = range(1, max(cores, 1) + 1)
    new = next((c for c in candidates if predict_iter_s(model, c) <= as_fast_s), None)
    if new is None:
        return None
    after_s = predict_iter_s(model, new)
    return Change(
        key=KEY + 'num_workers',
        old=old,
        new=new,
        reason=f'{old} workers share {cores} usable cores and spent {delay_s:.3f} s '
        f'per batch waiting for one, beside {cpu_s:.3f} s on it; {new} are predicted '
        f'to be as fast ({after_s:.3f} s per iteration, now {now_s:.3f} s)',
        confidence=judge_confidence(facts),
        rules=('MG105', 'MG106'),
        predicted_iter_s=after_s,
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
    """How often the loader starts over, as far as known.

    An iteration-based loop says nothing of its epochs (a sampler may have no end), so
    only what was seen counts.
    """
    run = summary.run
    if run.loop == 'epoch' and run.max_epochs:
        return run.max_epochs
    return summary.epoch_starts


def _recommend_prefetch(facts: Facts, workers: int) -> list[Change]:
    """Only the one value that is always wrong: no batch made ahead."""
    if workers == 0 or facts.summary.run.loader.prefetch_factor != 1:
        return []
    if not facts.is_starved:
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
        return 'In steady iterations data is at hand when it is needed.'
    if facts.is_contradictory:
        return 'The figures contradict each other: more CPU than there was time for.'
    if not facts.is_starved:
        return 'The waits are not those of a loader that cannot keep up.'
    if cap.workers == 0:
        return f'The host carries no worker: {cap.reason}.'
    if facts.is_cpu_the_wall:
        return (
            f'The CPU is the wall: no number of workers is faster than '
            f'{model.cpu_floor_s:.3f} s per iteration on this host.'
        )
    return (
        f'No other safe setting is predicted to be {100 * WORTHWHILE_GAIN:.0f} % '
        f'faster (at most {cap.workers} worker(s): {cap.reason}).'
    )
