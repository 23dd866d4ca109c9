"""Decides whether another batch size pays, and whether it fits.

Only larger ones: a smaller one that is as fast changes the recipe for nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from msgspec import structs

from mmgpu_hooks.judge.memory import fold_card_room
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.thresholds import WORTHWHILE_GAIN
from mmgpu_hooks.model.batches import (
    KNEE_SHARE,
    MemoryFit,
    find_knee,
    find_largest_batch,
    predict_peak,
)
from mmgpu_hooks.model.job import JobPlan
from mmgpu_hooks.model.prediction import COVERAGE, model_error, perturb
from mmgpu_hooks.model.workload import Workload, at_batch_size
from mmgpu_hooks.recommend.changes import KEY, Decision, judge_gain, phrase_changes
from mmgpu_hooks.recommend.choice import (
    Gain,
    Setting,
    job_s,
    plan_job,
    without_other_load,
)
from mmgpu_hooks.recommend.chooser import Chooser
from mmgpu_hooks.schema import Change, LearningRate, NoPrediction

BATCH_KEY = f'{KEY}batch_size'

FARTHEST = 2
"""Times the largest batch size that was measured: beyond, a line is a guess."""

_USUAL = {size for power in range(16) for size in (2**power, 3 * 2**power // 2)}


@dataclass(frozen=True)
class BatchChoice:
    """What is said of the batch size."""

    sentence: str
    changes: tuple[Change, ...] = ()
    """All changes of the loader, the batch size's first; empty where it stays."""


def choose_batch_size(
    decision: Decision, memory: MemoryFit | NoPrediction
) -> BatchChoice:
    """The smallest batch size that is nearly as fast as the fastest that fits safely.

    Args:
        decision: What is best with the run's own batch size.
        memory: Of the card against the batch size, or why that is not known.
    """
    workload = decision.workload
    old = workload.batch_size
    limits = _find_limits(decision.run, workload, memory)
    if isinstance(limits, str) or old is None:
        return BatchChoice(f'The batch size stays as it is. {limits}')
    fit, most, limit = limits
    usual = _USUAL | {point.batch_size for point in fit.points}
    sizes = [size for size in sorted(usual) if old < size <= most]
    sizes = sizes or [most] * (most > old)
    decisions = {old: decision, **{size: _decide(decision, size) for size in sizes}}
    rates = {size: size / one.new_iter_s for size, one in decisions.items()}
    best, largest = find_knee(rates) or old, max(rates)
    stays = f'The batch size stays at {old}:'
    if largest == old:
        return BatchChoice(f'{stays} none that is larger fits ({limit}).')
    if best <= old:
        return BatchChoice(
            f'{stays} none up to {largest} ({limit}) is predicted to be more than '
            f'{100 * KNEE_SHARE:.0f} % faster.'
        )
    new = decisions[best]
    quiet = replace(decision, workload=without_other_load(workload))
    # another recipe has to be worth it for sure, and beside other programs or not
    for one in (decision, quiet):
        further = _predict_gain(one, new, one.new)
        whole = _predict_gain(one, new, one.old)
        if further.share < WORTHWHILE_GAIN or min(further.low, whole.low) <= 0.0:
            return BatchChoice(
                f'{stays} {best} is predicted to save {100 * further.share:.1f} % of '
                f"the training's time ({100 * further.low:.1f} to "
                f'{100 * further.high:.1f} %), which is too little, or too unsure, for '
                'another recipe.'
            )
    text = f'From {old} to {best} images per batch: {_phrase_peak(fit, best)}.'
    if largest > best:
        text += (
            f' Up to {largest} may be tried ({limit}), but none is predicted to be '
            f'more than {100 * KNEE_SHARE:.0f} % faster.'
        )
    return BatchChoice(text, _list_changes(decision, new, fit))


def _find_limits(
    run: Run, workload: Workload, memory: MemoryFit | NoPrediction
) -> tuple[MemoryFit, int, str] | str:
    """The fit, the largest batch size that may be, and what says so."""
    if isinstance(memory, NoPrediction):
        return memory.reason
    if workload.step_line is None or workload.batch_size is None:
        return (
            'Not enough evidence of the step against batch size: train a second run '
            'with another batch size.'
        )
    card = fold_card_room(run)
    if card is None:
        return 'How much memory the card has is unknown.'
    safe = find_largest_batch(memory, card.safe_bytes)
    measured = max(point.batch_size for point in memory.points)
    limits = [
        (safe, f'{card.safe_bytes / 2**30:.1f} GiB of the card are safe to plan for'),
        (FARTHEST * measured, f'{measured} is the largest that was measured'),
    ]
    if run.run.loader.dataset_length:
        images = run.run.loader.dataset_length // max(run.run.world_size, 1)
        limits.append((images, 'an epoch has no more images for this rank'))
    return (memory, *min(limits, key=lambda limit: limit[0]))


def _decide(decision: Decision, batch_size: int) -> Decision:
    """The best setting of the loader with another batch size.

    The limits and the plan of the job follow: as many images are trained on as before.
    """
    run, record = decision.run, decision.run.run
    sized = at_batch_size(decision.workload, batch_size)
    assert isinstance(sized, Workload)  # its step against batch size is known
    old = decision.workload.batch_size or batch_size

    def less(count: int | None) -> int | None:
        return None if count is None else max(-(-count * old // batch_size), 1)

    def more(size: int | None) -> int | None:
        return None if size is None else -(-size * batch_size // old)

    loader = structs.replace(
        record.loader,
        batch_size=more(record.loader.batch_size),
        batches_per_epoch=less(record.loader.batches_per_epoch),
    )
    resized = run.altered(
        run=structs.replace(record, loader=loader, max_iters=less(record.max_iters)),
        iterations=less(run.iterations) or 1,
        batch_bytes=more(run.batch_bytes),
        batch_tensors=more(run.batch_tensors),
        workload=sized,
    )
    return replace(Chooser(resized, sized).propose(), batch_size=batch_size)


def _predict_gain(old: Decision, new: Decision, before: Setting) -> Gain:
    """What the new batch size saves of the job, over the old one, image for image.

    Args:
        old: With the run's batch size.
        new: With another one.
        before: The setting of the loader to compare with, at the run's batch size.
    """
    plans = plan_job(old.run), plan_job(new.run)

    def image_s(one: Workload, setting: Setting, plan: JobPlan) -> float:
        # whole batches: an epoch of the new size may see a few images more
        images = plan.epochs * plan.iterations * (one.batch_size or 1)
        return job_s(one, setting, plan) / images

    def share_of(one: Workload) -> float:
        sized = at_batch_size(one, new.batch_size)
        assert isinstance(sized, Workload)  # its line is the decision's
        return 1.0 - image_s(sized, new.new, plans[1]) / image_s(one, before, plans[0])

    share = share_of(old.workload)
    changed = perturb(
        old.workload, alone=0 in (before.num_workers, new.new.num_workers)
    )
    noises = [share_of(one) - share for one in changed]
    line, size = old.workload.step_line, new.workload.batch_size
    if line is not None and size:
        slip_s = line.image_error_s * abs(size - (old.workload.batch_size or 0))
        noises.append((1.0 - share) * slip_s / new.new_iter_s)
    noise = math.hypot(*noises)
    model = (1.0 - share) * model_error(new.workload, new.new.num_workers, 1.0, 1.0)
    reach = COVERAGE * math.hypot(noise, model)
    return Gain(share, share - reach, share + reach, noise)


def _list_changes(old: Decision, new: Decision, fit: MemoryFit) -> tuple[Change, ...]:
    """The batch size, and what else changes with it; the gain is that of all."""
    gain = _predict_gain(old, new, old.old)
    size, before = new.batch_size, old.workload.batch_size
    assert size is not None and before is not None
    confidence = judge_gain(old.run, gain)
    if confidence == 'high' and size not in {p.batch_size for p in fit.points}:
        confidence = 'medium'
    change = Change(
        key=BATCH_KEY,
        old=before,
        new=size,
        reason=f'{size / new.new_iter_s:.1f} images/s are predicted, '
        f'{before / old.old_iter_s:.1f} now; {_phrase_peak(fit, size)}',
        confidence=confidence,
    )
    return tuple(
        replace(
            one,
            predicted_iter_s=new.new_iter_s,
            predicted_gain_pct=100 * gain.share,
            predicted_gain_low_pct=100 * gain.low,
            predicted_gain_high_pct=100 * gain.high,
        )
        for one in (change, *phrase_changes(new))
    )


def _phrase_peak(fit: MemoryFit, size: int) -> str:
    gib = [one / 2**30 for one in predict_peak(fit, size)]
    tail = ' with batches padded as the largest seen' if fit.image_pixels else ''
    return (
        f'memory is predicted to peak at {gib[0]:.1f} GiB{tail} ({gib[1]:.1f} to '
        f'{gib[2]:.1f} GiB, 9 times in 10)'
    )


def phrase_learning_rate(
    rate: LearningRate | None, old: int, new: int, ranks: int, is_iter_based: bool
) -> list[str]:
    """What another batch size means for the learning rate and the length: sentences.

    The linear scaling rule (Goyal et al. 2017, https://arxiv.org/abs/1706.02677): k
    times the batch, k times the rate.

    Args:
        rate: Of the config; ``None`` when it could not be read.
        old: Images per batch and rank, now.
        new: Likewise, then.
        ranks: Of the training.
        is_iter_based: Whether the training's length is counted in iterations.
    """
    rate = rate or LearningRate()
    total, then, base = old * ranks, new * ranks, rate.base_batch_size
    batches = f'{total} to {then} images over {ranks} rank(s)'
    if rate.is_auto and base:
        scaled = ''
        if rate.lr is not None:
            first, second = rate.lr * total / base, rate.lr * then / base
            scaled = f', from {first:g} to {second:g}'
        said = (
            f'auto_scale_lr is enabled (base_batch_size={base}): the learning rate '
            f'follows by itself{scaled}, with the batch of {batches}.'
        )
    else:
        lr = f'from {rate.lr:g} to {rate.lr * new / old:g}' if rate.lr else 'along'
        said = (
            f'The learning rate is not changed. The batch goes from {batches}; by the '
            f'linear scaling rule the rate goes {lr} ({new / old:g} times), '
            'and a longer warm-up may be needed.'
        )
    if not is_iter_based:
        return [said]
    return [
        said,
        'The training is counted in iterations: with as many of them it sees '
        f'{new / old:g} times the images; divide max_iters and the milestones by '
        'that to train as long as before.',
    ]
