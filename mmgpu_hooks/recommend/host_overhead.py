"""Predicts how much training time the hook's ``optimize`` option saves; no I/O.

The model is that of all settings. Nothing that is trained changes by it, so a gain of
one per cent is worth a line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.host_costs import HostCost
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.prediction import COVERAGE
from mmgpu_hooks.model.prospect import Prospect
from mmgpu_hooks.model.workload import Workload, with_spared_host
from mmgpu_hooks.recommend.job import Gain, Job
from mmgpu_hooks.recommend.settings import SETTINGS
from mmgpu_hooks.schema.judged import (
    Change,
    HostOverhead,
    HostSaving,
    Recommendation,
)
from mmgpu_hooks.schema.text import phrase, sentences

_IN_DEFAULT_HOOKS = 'default_hooks.'
_TRANSFERRED = 0.1
"""Relative standard error (0.1: 10 %) of host CPU time measured in another training.

Caches, the clock of a core, what else runs there.
"""


def with_host_overhead(found: Recommendation, run: Run) -> Recommendation:
    """Adds the predicted effect of the hook's ``optimize`` option to a recommendation.

    Args:
        found: Settings of the loader.
        run: The run it was made of.
    """
    costs = list(run.host_costs.values())
    job = None
    if run.workload is not None and not run.is_stalled:
        job = Job.of(run, run.workload, SETTINGS)
    if run.hides_host_work and (job is None or not _is_sped_up(job, found)):
        # whatever is spared beside the loader is waited for
        return found
    savings = [_predict(cost, run, job, found) for cost in costs]
    worthwhile = [saving for saving in savings if saving is not None]
    if not worthwhile:
        return found
    named = (*run.meta.optimized, *(saving.name for saving in worthwhile))
    measured = [
        run.host_costs[saving.name]
        for saving in worthwhile
        if saving.predicted_gain_pct is not None
    ]
    place = run.meta.hook_place or ''
    in_defaults = place.startswith(_IN_DEFAULT_HOOKS)
    overhead = HostOverhead(
        savings=tuple(worthwhile),
        names=tuple(dict.fromkeys(named)),
        key=f'{place}.optimize' if in_defaults else None,
    )
    if job is not None and measured:
        weighed = _weigh(job, found, measured)
        gain = weighed.gain
        overhead = replace(
            overhead,
            predicted_iter_s=weighed.then.iter_s,
            predicted_gain_pct=100 * gain.share,
            predicted_gain_low_pct=100 * gain.low,
            predicted_gain_high_pct=100 * gain.high,
            predicted_gain_alone_pct=100 * weighed.alone_share,
        )
    return replace(found, host_overhead=overhead)


def change_optimize(overhead: HostOverhead, run: Run) -> Change | None:
    """Makes the `Change` of the hook's ``optimize``; ``None`` if no config has it."""
    if overhead.key is None:
        return None
    found = sentences(*(phrase('{found}.', saving) for saving in overhead.savings))
    return Change(
        key=overhead.key,
        old=','.join(run.meta.optimized) or None,
        new=','.join(overhead.names),
        reason=found,
        confidence='medium',
        rules=tuple(_RULES[saving.name] for saving in overhead.savings),
    )


_RULES = {
    'param_groups': 'MG601',
    'ema': 'MG602',
    'small_tensors': 'MG603',
    'history': 'MG604',
}


def _predict(
    cost: HostCost, run: Run, job: Job | None, found: Recommendation
) -> HostSaving | None:
    """Predicts the saving of one optimisation alone; ``None`` if it is too small."""
    if not cost.is_measured or job is None:
        is_worth = run.is_worth_sparing(cost)
        most_s = None if cost.is_measured else cost.saved_s
        unknown = HostSaving(
            cost.name, cost.found, cost.now_s, cost.left_s, most_saved_s=most_s
        )
        return unknown if is_worth else None
    weighed = _weigh(job, found, [cost])
    gain, then = weighed.gain, weighed.then
    # beside the other load of the run, and without it
    least = min(gain.share, weighed.calm_share, weighed.alone_share)
    if least < thresholds.MEASURED_SAVING_WORTH or gain.low <= 0.0:
        return None
    return HostSaving(
        name=cost.name,
        found=cost.found,
        host_s=cost.now_s,
        optimized_host_s=cost.left_s,
        predicted_iter_s=then.iter_s,
        predicted_gain_pct=100 * gain.share,
        predicted_gain_low_pct=100 * gain.low,
        predicted_gain_high_pct=100 * gain.high,
    )


def _find_pace(run: Run, workload: Workload) -> float:
    """Returns the ratio of a step's time to its CPU time when cores are short.

    The workload is freed from waits for a core as far as what other programs used
    explains them. What is left of them in the step goes with the CPU that waits.
    """
    figures = run.figures
    delay_s, cpu_s = figures.main_run_delay_s, figures.main_cpu_s
    parts = figures.per_iteration
    if not delay_s or not cpu_s or parts is None:
        return 1.0
    free_s = parts.total_s - parts.data_wait_s - delay_s
    left_s = workload.step.mean_s - max(free_s, cpu_s)
    return 1.0 + min(max(left_s, 0.0), delay_s) / cpu_s


def _find_prospect(job: Job, found: Recommendation) -> Prospect:
    """Predicts training time (a `Prospect`) with the recommended settings."""
    new = {change.key: change.new for change in found.changes}
    return job.at(
        {
            setting.name: new.get(setting.key(), job.old[setting.name])
            for setting in job.settings
        }
    )


def _is_sped_up(job: Job, found: Recommendation) -> bool:
    """Returns True if the recommended settings shorten a steady iteration."""
    return _find_prospect(job, found).iter_s < job.base.iter_s


class _Weighed(NamedTuple):
    """Predicted saving of some host optimisations, as shares of a training's time."""

    gain: Gain
    then: Prospect
    calm_share: float
    """Share of training time saved if a saved CPU second shortens training by 1 s."""
    alone_share: float
    """Share (0 to 1) of training time saved if no other program runs on the host."""


def _weigh(job: Job, found: Recommendation, costs: Sequence[HostCost]) -> _Weighed:
    """Predicts time saved by host optimisations on top of the recommended settings."""
    now, pace = _find_prospect(job, found), _find_pace(job.run, job.base.workload)

    def spare(*factors: float, pace: float = pace, now: Prospect = now) -> Prospect:
        spared = list(zip(costs, factors))
        in_batches = [item for item in spared if item[0].name == 'small_tensors']
        received_s = sum(factor * cost.saved_s for cost, factor in in_batches)
        whole_s = sum(factor * cost.saved_s for cost, factor in spared)
        workload = with_spared_host(
            now.workload,
            step_s=pace * (whole_s - received_s),
            received_s=received_s,
            sent_s=sum(factor * cost.sent_s for cost, factor in in_batches),
        )
        return replace(now, workload=workload)

    then = spare(*(1.0 for _ in costs))
    share = 1.0 - then.total_s / now.total_s
    calm = spare(*(1.0 for _ in costs), pace=1.0)
    calm_share = 1.0 - calm.total_s / now.total_s
    quiet = now.without_other_load
    alone = spare(*(1.0 for _ in costs), pace=1.0, now=quiet)
    alone_share = 1.0 - alone.total_s / quiet.total_s
    # a thread that is woken up waits once, however long it then computes
    noises = [(share - calm_share) / COVERAGE]
    for slipping in costs:
        # a card that is busy meanwhile may leave nothing to gain
        off = _TRANSFERRED
        if slipping.saved_s:
            off = math.hypot(off, slipping.error_s / slipping.saved_s)
        off = 1.0 if slipping.is_covered else min(off, 1.0)
        factors = (1.0 - off * (cost is slipping) for cost in costs)
        noises.append(share - (1.0 - spare(*factors).total_s / now.total_s))
    noise = math.hypot(*noises)
    reach = COVERAGE * noise
    gain = Gain(share, share - reach, share + reach, noise)
    return _Weighed(gain, then, calm_share, alone_share)
