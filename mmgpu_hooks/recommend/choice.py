"""What a setting of the loader makes of a whole job, and how sure that is."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.job import START_ERROR, JobPlan, estimate_job_s
from mmgpu_hooks.model.prediction import (
    COVERAGE,
    MOST_WORKERS,
    estimate_iter_s,
    model_error,
    perturb,
)
from mmgpu_hooks.model.workload import Workload

SAME_SPEED = 0.02
"""Settings this close to the best are equal, and the one with fewer workers wins."""

OWN_CORE_GAIN = 0.1
"""What workers in the core of the training process must save."""

EACH_UP_TO = 12
"""Every number of workers up to here is tried; beyond, in steps of a quarter."""


@dataclass(frozen=True)
class Setting:
    """What of the loader is chosen together."""

    num_workers: int
    prefetch_factor: int
    persistent_workers: bool


@dataclass(frozen=True)
class Gain:
    """What a setting saves of a job, over what the job would take: 0.1 is a tenth."""

    share: float
    low: float
    """The truth is expected between low and high 9 times in 10."""
    high: float
    noise: float = 0.0
    """Standard error, as far as the evidence is short or scatters."""

    def is_backed(self, worthwhile: float) -> bool:
        """Whether the evidence bears out a gain of ``worthwhile``, scatter or not."""
        return self.share >= max(worthwhile, self.noise)


def plan_job(run: Run) -> JobPlan:
    """The training as it was configured, not only what of it was recorded.

    A loop that counts iterations says nothing of its epochs (a sampler may have no
    end): it is one long epoch.
    """
    record = run.run
    iterations, epochs = max(run.iterations, 1), 1
    if record.loop == 'epoch' and record.loader.batches_per_epoch:
        iterations = record.loader.batches_per_epoch
        epochs = record.max_epochs or max(run.epoch_starts, 1)
    elif record.max_iters:
        iterations = record.max_iters
    if not run.saves:
        return JobPlan(iterations, epochs)
    saves = 0
    if run.iterations:
        saves = round(run.saves / run.iterations * iterations * epochs)
    known = [
        save
        for save in run.save_records
        if save.error is None and save.cpu_s is not None
    ]
    if known:
        cpu_s = statistics.median(save.cpu_s or 0.0 for save in known)
        wait_s = statistics.median(save.blocked_s or 0.0 for save in known)
        return JobPlan(iterations, epochs, saves, cpu_s, wait_s)
    # as if it never waited for a core: what workers do to it stays unknown
    wait_s = run.ledger_s.get('checkpoint_save', 0.0) / run.saves
    return JobPlan(iterations, epochs, saves, 0.0, wait_s)


def count_starts(run: Run) -> int:
    """How often the loader starts over, as far as known.

    A loop that counts iterations says nothing of its epochs, so only what was seen
    counts.
    """
    record = run.run
    if record.loop == 'epoch' and record.max_epochs:
        return record.max_epochs
    return run.epoch_starts


@functools.lru_cache(maxsize=512)
def job_s(workload: Workload, setting: Setting, plan: JobPlan) -> float:
    """What the job would take with a setting, s."""
    return estimate_job_s(
        workload,
        setting.num_workers,
        setting.prefetch_factor,
        plan,
        persistent_workers=setting.persistent_workers,
    )


@functools.lru_cache(maxsize=512)
def iter_s(workload: Workload, setting: Setting) -> float:
    """What a steady iteration would take with a setting, s."""
    return estimate_iter_s(workload, setting.num_workers, setting.prefetch_factor)


def most_gain(workload: Workload, old: Setting, plan: JobPlan) -> float:
    """What any setting could save of the job, at most.

    With workers, what data that costs nothing would save. Without, nothing is fetched
    and no worker is started, which can be less.
    """
    ideal_s = plan.epochs * plan.iterations * workload.ready_s
    alone_s = job_s(workload, replace(old, num_workers=0), plan)
    return max(1.0 - min(ideal_s, alone_s) / job_s(workload, old, plan), 0.0)


def choose_workers(
    workload: Workload,
    old: Setting,
    plan: JobPlan,
    most: int,
    *,
    are_waiting: bool = False,
) -> int:
    """The fewest workers that are within 2 % of the fastest job.

    The core of the training process is theirs only if that saves a tenth, or if they
    hardly need it: sharing one is what simulations know least about.

    Args:
        workload: What the run says.
        old: The run's own setting; what is not chosen here stays as it is.
        plan: The job.
        most: The host carries no more workers.
        are_waiting: Whether workers wait for at least half of a batch's time.
    """
    times: dict[int, float] = {}
    # what no number of workers is faster than, but for what is won at the starts
    ideal_s = plan.epochs * plan.iterations * workload.bound_iter_s(MOST_WORKERS)
    for count in _counts(most):
        times[count] = job_s(workload, replace(old, num_workers=count), plan)
        if times[count] <= ideal_s * (1 + SAME_SPEED / 4):
            break
    if old.num_workers <= most:
        times[old.num_workers] = job_s(workload, old, plan)
    step_s = workload.step.mean_s
    own_cores = round(workload.step_cpu_s / step_s) if step_s > 0.0 else 0
    spare = max(math.floor(workload.usable_cores) - own_cores, 1)
    spared = {n: s for n, s in times.items() if n <= (most if are_waiting else spare)}
    if min(spared.values()) <= min(times.values()) * (1 + OWN_CORE_GAIN):
        times = spared
    return least_of(times)


def least_of(times: dict[int, float]) -> int:
    """The smallest number that is within 2 % of the fastest."""
    enough_s = min(times.values()) * (1 + SAME_SPEED)
    return min(number for number, seconds in times.items() if seconds <= enough_s)


def predict_gain(workload: Workload, old: Setting, new: Setting, plan: JobPlan) -> Gain:
    """What ``new`` saves of the job; both see the same errors of the costs."""

    def share_of(one: Workload) -> float:
        return 1.0 - job_s(one, new, plan) / job_s(one, old, plan)

    share = share_of(workload)
    changed = perturb(workload, alone=0 in (old.num_workers, new.num_workers))
    noise = math.hypot(*(share_of(one) - share for one in changed))
    used = [min(workload.cpu_floor_s / iter_s(workload, s), 1.0) for s in (old, new)]
    model = (1.0 - share) * model_error(workload, new.num_workers, *used)
    if new == replace(old, persistent_workers=new.persistent_workers):
        # the iterations stay what they are: it is all in the starts
        model = START_ERROR * abs(share)
    reach = COVERAGE * math.hypot(noise, model)
    return Gain(share, share - reach, share + reach, noise)


def without_other_load(workload: Workload) -> Workload:
    """The same on a host that other programs leave alone."""
    return replace(workload, other_tasks=0.0)


def _counts(most: int) -> Iterator[int]:
    yield 0
    count = 1
    while count < most:
        yield count
        count += max(count // 4, 1) if count >= EACH_UP_TO else 1
    if most > 0:
        yield most
