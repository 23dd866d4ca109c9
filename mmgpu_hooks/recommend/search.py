"""Searches for the best values of settings by coordinate descent.

Nested over those that change the work, coordinate descent over the others; what follows
from others is settled after each candidate. Pure.

Of those that change the work of a batch (batch size, threads of OpenCV) each candidate
is judged with the best of what comes after. The product of workers and prefetching was
slower by two to three times and chose worse. Niceness is judged alone: no iteration
shows it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.model.prediction import COVERAGE, START_ERROR, model_error, perturb
from mmgpu_hooks.model.workload import Workload
from mmgpu_hooks.recommend.job import Choice, Decision, Gain, Job, Rejection, Setting


def decide(job: Job) -> Decision:
    """Returns the best values of a job's settings; old ones if a gain is unsure.

    A gain must hold beside the other load of the run and without it, and be worth a
    line in a config. What the host needs is changed without a gain.
    """
    rejected: dict[str, Rejection] = {}
    new = _search(job, job.settle(job.old), job.settings, rejected)
    if new == job.old:
        return Decision(job, new, rejected=rejected)
    quiet = job.without_other_load
    is_needed = any(setting.is_needed(quiet, job.old, new) for setting in job.settings)
    gain = predict_gain(job, job.old, new)
    if is_needed:
        return Decision(job, new, gain, rejected)
    if doubt := _find_doubt(job, job.old, new, gain):
        rejected[''] = doubt
    if doubt or gain.share < thresholds.STARTUP_MEASURABLE:
        return Decision(job, job.old, rejected=rejected)
    return Decision(job, new, gain, rejected)


def _search(
    job: Job,
    at: Choice,
    settings: Sequence[Setting],
    rejected: dict[str, Rejection],
) -> Choice:
    """Returns the fastest setting values found by tuning one setting after the other.

    Args:
        job: The job.
        at: Where to begin.
        settings: Those that are left.
        rejected: Takes what is not sure enough.
    """
    for number, setting in enumerate(settings):
        if setting.is_bounded and not _is_worth_a_search(job, setting, at):
            continue
        options: dict[Any, Choice] = {}
        for value in setting.candidates(job, at):
            then = job.settle({**at, setting.name: value})
            if setting.is_nested:
                is_own = value == at[setting.name]
                beside = rejected if is_own else {}
                then = _search(job, then, settings[number + 1 :], beside)
            options[value] = then
            if setting.is_bounded and _is_at_bound(job, setting, value, then):
                break
        if [*options] != [at[setting.name]]:
            at = _pick(job, setting, at, options, rejected)
        elif setting.is_nested:
            (at,) = options.values()
        if setting.is_nested:
            return at
    return at


def _is_worth_a_search(job: Job, setting: Setting, at: Choice) -> bool:
    """True if another value of a setting may save enough time, or the host needs it."""
    if setting.may_be_needed(job, at):
        return True
    return job.at(at).most_gain >= thresholds.WORTHWHILE_GAIN


def _is_at_bound(job: Job, setting: Setting, value: Any, then: Choice) -> bool:
    """True if a setting value's time is at the lower bound, so that none is faster."""
    reached = job.at(job.assume(then))
    enough_s = reached.bound_s * (1 + setting.near / 4)
    return reached.total_s <= enough_s and not setting.handicap(job, value)


def _pick(
    job: Job,
    setting: Setting,
    at: Choice,
    options: dict[Any, Choice],
    rejected: dict[str, Rejection],
) -> Choice:
    """Picks a setting's first nearly fastest value; the old one if gains are small."""
    own = at[setting.name]
    stays = options.get(own, at)
    assumed = {value: job.assume(then) for value, then in options.items()}
    seconds = {
        value: setting.score_s(job.at(then)) * (1 + setting.handicap(job, value))
        for value, then in assumed.items()
    }
    enough_s = min(seconds.values()) * (1 + setting.near)
    value = next(value for value, score_s in seconds.items() if score_s <= enough_s)
    then = options[value]
    if value == own:
        return then
    gain = predict_gain(job, stays, then)
    if not setting.is_needed(job, stays, then):
        if setting.must_be_sure:
            doubt = _find_doubt_alone(job, stays, then, gain)
            if doubt is not None:
                rejected[setting.name] = doubt
                return stays
        if not gain.is_worthwhile:
            return stays
    raised = assumed[value]
    is_raised = raised != then and predict_gain(job, then, raised).is_worthwhile
    return raised if is_raised else then


def _find_doubt(
    job: Job, before: Choice, after: Choice, gain: Gain
) -> Rejection | None:
    """Returns a `Rejection` if the gain of new values is unsure, else ``None``."""
    alone = predict_gain(job.without_other_load, before, after)
    is_sure = min(gain.low, alone.low) > 0.0
    return None if is_sure else Rejection(after, gain, alone)


def _find_doubt_alone(
    job: Job, stays: Choice, then: Choice, gain: Gain
) -> Rejection | None:
    """Returns a `Rejection` if a setting's own gain is small or unsure, or ``None``."""
    alone = predict_gain(job.without_other_load, stays, then)
    is_small = min(gain.share, alone.share) < thresholds.WORTHWHILE_GAIN
    doubt = _find_doubt(job, job.old, then, predict_gain(job, job.old, then))
    if is_small or doubt is not None or min(gain.low, alone.low) <= 0.0:
        return Rejection(then, gain, alone)
    return None


def predict_gain(job: Job, before: Choice, after: Choice) -> Gain:
    """Predicts the share of training time that settings ``after`` save over ``before``.

    Both see the same errors of the costs.
    """
    changed = [name for name in before if before[name] != after[name]]
    now, then = job.at(before), job.at(after)

    def share_of(workload: Workload | None = None, slipping: str = '') -> float:
        new_s = job.at(after, workload, slipping).image_s
        return 1.0 - new_s / job.at(before, workload).image_s

    share = share_of()
    is_alone = 0 in (now.loader.num_workers, then.loader.num_workers)
    noises = [
        share_of(workload) - share
        for workload in perturb(job.base.workload, alone=is_alone)
    ]
    noises += [share_of(slipping=name) - share for name in changed]
    noise = math.hypot(*noises)
    if now.is_steady_alike(then):
        # the iterations stay what they are: it is all in the starts
        model = START_ERROR * abs(share)
    else:
        model = (1.0 - share) * model_error(
            then.workload,
            then.loader.num_workers,
            run_cpu_share=now.cpu_share,
            cpu_share=then.cpu_share,
        )
    reach = COVERAGE * math.hypot(noise, model)
    return Gain(share, share - reach, share + reach, noise)
