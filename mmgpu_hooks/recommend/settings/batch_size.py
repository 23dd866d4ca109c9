"""The setting ``batch_size``: larger batches, if faster and within memory.

Only larger ones: a smaller one that is as fast changes the recipe for nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from mmgpu_hooks.judge.memory import find_card_room
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.batches import find_largest_batch, predict_peak
from mmgpu_hooks.model.bounds import MOST_BATCH
from mmgpu_hooks.model.prospect import Prospect
from mmgpu_hooks.model.workload import at_batch_size
from mmgpu_hooks.recommend.job import Choice, Decision, Job, Setting
from mmgpu_hooks.schema.errors import NoPredictionError
from mmgpu_hooks.schema.text import Text, phrase, sentences
from mmgpu_hooks.schema.values import Whole

KNEE_SHARE = 0.03
"""Relative difference to the most images/s up to which batch sizes count as equal.

Less memory, and a smaller change of the learning rate.
"""

FARTHEST = 2
"""Largest recommended batch size, as a multiple of the largest measured one.

Beyond, a line is a guess.
"""

_GIB = 2**30
_USUAL = {size for power in range(16) for size in (2**power, 3 * 2**power // 2)}


class _BatchLimit(NamedTuple):
    """Largest batch size that may be recommended, with the reason for that limit."""

    most: int
    reason: Text


class BatchSize(Setting):
    """Chooses the smallest batch size nearly as fast as any that fits GPU memory."""

    name = 'batch_size'
    noun = phrase('Images per batch')
    values = Whole(1, is_optional=True)
    most = MOST_BATCH
    # rates are compared, of which each is the inverse of a score
    near = 1.0 / (1.0 - KNEE_SHARE) - 1.0
    is_nested = True
    must_be_sure = True
    is_recipe = True

    def read(self, run: Run) -> int | None:
        """Reads the number of images per batch on this rank."""
        if run.workload is None:
            return run.meta.loader.batch_size
        return run.workload.batch_size

    def candidates(self, job: Job, at: Choice) -> tuple[int | None, ...]:
        """Lists the run's batch size and, if the user allows, larger ones that fit."""
        old, memory = at[self.name], job.memory
        if old is None or memory is None or memory.fit is None:
            return (old,)
        try:
            limit = _find_limit(job)
        except NoPredictionError:
            return (old,)
        usual = sorted(_USUAL | {*memory.fit.batch_sizes})
        sizes = [size for size in usual if old < size <= limit.most]
        if not sizes and limit.most > old:
            sizes = [limit.most]
        return (old, *sizes)

    def apply(
        self, job: Job, then: Prospect, new: int | None, slip: float = 0.0
    ) -> Prospect:
        """Predicts training time (a `Prospect`) with another batch size.

        Raises:
            NoPredictionError: If no run shows the step against batch size.
        """
        old = then.workload.batch_size
        if new is None or new == old:
            return then
        sized = at_batch_size(then.workload, new)
        line = then.workload.step_line
        if slip and line is not None and old is not None:
            slower_s = slip * line.image_error_s * (new - old)
            step = replace(sized.step, mean_s=sized.step.mean_s + slower_s)
            sized = replace(sized, step=step)
        # as many images are trained on as before
        iterations = max(-(-then.plan.iterations * (old or new) // new), 1)
        plan = replace(then.plan, iterations=iterations)
        return replace(then, workload=sized, plan=plan)

    def score_s(self, then: Prospect) -> float:
        """Returns the predicted seconds per image of a steady iteration."""
        return then.iter_s / (then.workload.batch_size or 1)

    def is_asked(self, job: Job) -> bool:
        """True if the user gave ``--allow-batch-size``."""
        return job.memory is not None

    def why(self, decision: Decision) -> Text:
        """Phrases images per second with old and new batch size and the memory peak."""
        job, old, new = decision.job, decision.old[self.name], decision.new[self.name]
        assert job.memory is not None and job.memory.fit is not None
        peak = predict_peak(job.memory.fit, new)
        return phrase(
            '{then_images_per_s:.1f} images/s are predicted with {new_images:d} images '
            'per batch, {now_images_per_s:.1f} now with {old_images:d}; memory is '
            'predicted to peak at {peak_memory_gib:.1f} GiB ({low_peak_gib:.1f} to '
            '{high_peak_gib:.1f} GiB, 9 times in 10).',
            then_images_per_s=new / job.at(decision.new).iter_s,
            new_images=new,
            now_images_per_s=old / job.base.iter_s,
            old_images=old,
            peak_memory_gib=peak.peak_bytes / _GIB,
            low_peak_gib=peak.low_bytes / _GIB,
            high_peak_gib=peak.high_bytes / _GIB,
        )

    def why_not(self, decision: Decision) -> Text:
        """Phrases why the batch size stays: a limit, doubt or missing measurements."""
        job, old = decision.job, decision.old[self.name]
        try:
            limit = _find_limit(job)
        except NoPredictionError as error:
            stays = phrase('The batch size stays as it is.')
            return sentences(stays, error.said)
        rejected = decision.rejected.get(self.name)
        if rejected is None:
            return phrase(
                'The batch size stays at {old}: none that fits ({limit}) is predicted '
                'to be more than {least_share} faster.',
                old=old,
                limit=limit.reason,
                least_share=KNEE_SHARE,
            )
        return phrase(
            'The batch size stays at {old}: {rejected} would save {gain}: too little, '
            'or too unsure, for another recipe.',
            old=old,
            rejected=rejected.choice[self.name],
            gain=rejected.gain.phrase,
        )


def _find_limit(job: Job) -> _BatchLimit:
    """Finds the tightest limit on the batch size, with its reason.

    Raises:
        NoPredictionError: If memory, the step, or the size of the card is unknown.
    """
    run, memory = job.run, job.memory
    if memory is None or memory.fit is None:
        raise NoPredictionError(memory.why_unknown if memory else Text(''))
    if job.base.workload.batch_size is None:
        raise NoPredictionError(phrase('That of the run was not recorded.'))
    if job.base.workload.step_line is None:
        raise NoPredictionError(
            phrase(
                'Not enough evidence of the step against batch size: train a second '
                'run with another batch size.'
            )
        )
    card = find_card_room(run)
    if card is None:
        raise NoPredictionError(phrase('How much memory the card has is unknown.'))
    safe = find_largest_batch(memory.fit, card.safe_bytes)
    measured = max(memory.fit.batch_sizes)
    room = phrase(
        '{safe_memory_gib:.1f} GiB of the card are safe to plan for',
        safe_memory_gib=card.safe_bytes / _GIB,
    )
    farthest = phrase('{measured} is the largest that was measured', measured=measured)
    limits = [_BatchLimit(safe, room), _BatchLimit(FARTHEST * measured, farthest)]
    if run.meta.loader.dataset_length:
        images = run.meta.loader.dataset_length // max(run.meta.world_size, 1)
        reason = phrase('an epoch has no more images for this rank')
        limits.append(_BatchLimit(images, reason))
    return min(limits, key=lambda limit: limit.most)
