"""Decides whether another batch size pays, and whether it fits.

Only larger ones: a smaller one that is as fast changes the recipe for nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from msgspec import structs

from mmgpu_hooks.judge.memory import find_card_room
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.thresholds import WORTHWHILE_GAIN
from mmgpu_hooks.model.batches import (
    CardMemory,
    MemoryFit,
    find_largest_batch,
    predict_peak,
)
from mmgpu_hooks.model.workload import at_batch_size
from mmgpu_hooks.recommend.choice import (
    Candidate,
    Decision,
    Job,
    phrase_gain,
    predict_gain,
    propose,
)
from mmgpu_hooks.schema.errors import NoPredictionError

KNEE_SHARE = 0.03
"""A batch size this close to the fastest is as fast: less memory, and less is asked of
the learning rate."""

FARTHEST = 2
"""Times the largest batch size that was measured: beyond, a line is a guess."""

_USUAL = {size for power in range(16) for size in (2**power, 3 * 2**power // 2)}


class BatchSizeChoice(NamedTuple):
    """Decision on the batch size."""

    sentence: str
    """Sentence that says it, and why."""
    decision: Decision | None = None
    """Setting with the new batch size; ``None`` where it stays as it is."""


def choose_batch_size(decision: Decision, memory: CardMemory) -> BatchSizeChoice:
    """Choose the smallest batch size that is nearly as fast as the fastest safe one.

    Args:
        decision: What is best with the run's own batch size.
        memory: Of the card against the batch size.
    """
    job = decision.job
    old, fit = job.workload.batch_size, memory.fit
    if fit is None:
        return BatchSizeChoice(f'The batch size stays as it is. {memory.why_unknown}')
    if old is None:
        said = 'The batch size stays as it is. That of the run was not recorded.'
        return BatchSizeChoice(said)
    try:
        limit = _find_limit(job, fit)
    except NoPredictionError as error:
        return BatchSizeChoice(f'The batch size stays as it is. {error}')
    usual = sorted(_USUAL | {*fit.batch_sizes})
    sizes = [size for size in usual if old < size <= limit.most]
    if not sizes and limit.most > old:
        sizes = [limit.most]
    decisions = {old: decision, **{size: _decide(job, size) for size in sizes}}
    rates = {
        size: size / sized.job.iter_s(sized.new) for size, sized in decisions.items()
    }
    enough = (1.0 - KNEE_SHARE) * max(rates.values())
    best = min(size for size, rate in rates.items() if rate >= enough)
    stays = f'The batch size stays at {old}:'
    if best <= old:
        none = f'{stays} none that fits ({limit.reason}) is predicted to be more than '
        return BatchSizeChoice(f'{none}{100 * KNEE_SHARE:.0f} % faster.')
    new = decisions[best]
    after = Candidate(new.job, new.new)
    # another recipe has to be worth it for sure, and beside other programs or not
    for host in (job, job.without_other_load):
        further = predict_gain(Candidate(host, decision.new), after)
        whole = predict_gain(Candidate(host, job.old), after)
        if further.share < WORTHWHILE_GAIN or min(further.low, whole.low) <= 0.0:
            few = f'{stays} {best} would save {phrase_gain(further)}: too little, or '
            return BatchSizeChoice(f'{few}too unsure, for another recipe.')
    peak = predict_peak(fit, best)
    said = (
        f'{rates[best]:.1f} images/s are predicted with {best} images per batch, '
        f'{old / job.iter_s(job.old):.1f} now with {old}; memory is predicted to peak '
        f'at {_gib(peak.peak_bytes)} GiB ({_gib(peak.low_bytes)} to '
        f'{_gib(peak.high_bytes)} GiB, 9 times in 10).'
    )
    gain = predict_gain(job.as_it_was, after)
    return BatchSizeChoice(said, replace(new, gain=gain))


def _gib(size: int) -> str:
    return f'{size / 2**30:.1f}'


class _BatchLimit(NamedTuple):
    """The largest batch size that may be recommended, and what says so."""

    most: int
    reason: str


def _find_limit(job: Job, fit: MemoryFit) -> _BatchLimit:
    """Find the tightest limit on the batch size.

    Raises:
        NoPredictionError: If the step, or the size of the card, is unknown.
    """
    if job.workload.step_line is None:
        few = 'Not enough evidence of the step against batch size'
        raise NoPredictionError(f'{few}: train a second run with another batch size.')
    run = job.run
    card = find_card_room(run)
    if card is None:
        raise NoPredictionError('How much memory the card has is unknown.')
    safe = find_largest_batch(fit, card.safe_bytes)
    gib, measured = card.safe_bytes / 2**30, max(fit.batch_sizes)
    limits = [
        _BatchLimit(safe, f'{gib:.1f} GiB of the card are safe to plan for'),
        _BatchLimit(
            FARTHEST * measured, f'{measured} is the largest that was measured'
        ),
    ]
    if run.meta.loader.dataset_length:
        images = run.meta.loader.dataset_length // max(run.meta.world_size, 1)
        reason = 'an epoch has no more images for this rank'
        limits.append(_BatchLimit(images, reason))
    return min(limits, key=lambda limit: limit.most)


def _decide(job: Job, batch_size: int) -> Decision:
    """The best setting of the loader with another batch size.

    The limits and the plan of the job follow: as many images are trained on as before.
    """
    run, record = job.run, job.run.meta
    sized = at_batch_size(job.workload, batch_size)
    old = job.workload.batch_size or batch_size

    def less(count: int | None) -> int | None:
        return None if count is None else max(-(-count * old // batch_size), 1)

    def more(size: int | None) -> int | None:
        return None if size is None else -(-size * batch_size // old)

    loader = structs.replace(
        record.loader,
        batch_size=more(record.loader.batch_size),
        batches_per_epoch=less(record.loader.batches_per_epoch),
    )
    record = structs.replace(record, loader=loader, max_iters=less(record.max_iters))
    figures = replace(
        run.figures,
        iterations=less(run.figures.iterations) or 1,
        batch_bytes=more(run.figures.batch_bytes),
        batch_tensors=more(run.figures.batch_tensors),
    )
    evidence = replace(run.evidence, run=record)
    resized = Run(evidence, run.other_ranks, figures=figures, workload=sized)
    return propose(Job(resized, sized))
