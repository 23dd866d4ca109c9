"""Chooses a setting of the loader: what each makes of the whole job, how sure that is,
and how many workers the host carries. Goes from the run's setting to the new one, a
step at a time. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import NamedTuple

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.cpu import WorkerThreads
from mmgpu_hooks.judge.memory import find_worker_growth
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.bounds import MOST_WORKERS
from mmgpu_hooks.model.prediction import (
    COVERAGE,
    START_ERROR,
    JobPlan,
    LoaderSetting,
    estimate_iter_s,
    estimate_job_s,
    model_error,
    perturb,
)
from mmgpu_hooks.model.workload import (
    MOST_DOUBLINGS,
    THREADS_ERROR,
    THREADS_WASTE,
    Workload,
    at_batch_size,
    with_one_thread,
)

DEFAULT_PREFETCH = 2
"""PyTorch's own prefetch_factor."""

SAFE_HOST_SHARE = 0.5
"""Share of a host's memory, shared memory or file limit that workers may take: the
rest is left to batches of unusual size, the page cache and other programs."""

_MIB, _GIB = 2**20, 2**30

ONE_THREAD = 0
"""Value of ``opencv_num_threads``: OpenCV's sequential mode, MMEngine's default."""

SAME_SPEED = 0.02
"""Settings this close to the best are equal, and the one with fewer workers wins."""

OWN_CORE_GAIN = 0.1
"""Smallest gain for which workers may use the core of the training process."""

EACH_UP_TO = 12
"""Every number of workers up to here is tried; beyond, in steps of a quarter."""

PREFETCHES = (2, 4, 8)


class LiveLoader(NamedTuple):
    """A loader whose workers live on while another one is used."""

    run: Run
    setting: LoaderSetting


class WorkerCap(NamedTuple):
    """The largest safe ``num_workers`` and the limit behind it."""

    workers: int
    """Never more than these."""
    reason: str


def cap_workers(
    run: Run,
    prefetch_factor: int = DEFAULT_PREFETCH,
    beside: LiveLoader | None = None,
) -> WorkerCap:
    """The tightest of the host's limits; possibly no worker at all.

    The usable cores never exceed the CPUs that the process may run on, beyond which
    PyTorch itself warns. Workers that were measured to wait may outnumber them: those
    which need a core at a time are no more than there are.

    Args:
        run: The run, with the host's limits as the hook recorded them; its usable
            cores must be known, as without them no number is known to be safe.
        prefetch_factor: Batches in flight per worker.
        beside: A loader whose workers live on meanwhile.
    """
    taken: dict[str, float] = {}
    if beside is not None:
        workers, prefetch = beside.setting.num_workers, beside.setting.prefetch_factor
        taken = {
            need.name: workers * need.each for need in _list_needs(beside.run, prefetch)
        }
    caps = [_cap_by_cores(run)]
    for need in _list_needs(run, prefetch_factor):
        left = max(need.size - taken.get(need.name, 0.0), 0.0)
        most = int(SAFE_HOST_SHARE * left / need.each)
        caps.append(WorkerCap(most, need.reason.format(left, need.each)))
    return min(caps, key=lambda cap: cap.workers)


def _cap_by_cores(run: Run) -> WorkerCap:
    allowed, waiting = run.meta.host.usable_cores, run.waiting_share
    assert allowed is not None  # the caller has seen to it
    crowd = run.external_share_cores
    taken = f', {crowd:.1f} of them used by others' if crowd >= 0.05 else ''
    if waiting > 0.0:
        taken += f', which a worker needs {100 * (1 - waiting):.0f} % of its time'
    # one worker beside the training process is slower at worst, never unsafe
    carried = max(math.floor(allowed / max(1 - waiting, 1 / MOST_WORKERS)), 1)
    return WorkerCap(carried, f'{allowed:g} usable cores{taken}')


class _Need(NamedTuple):
    """Something of the host that each worker takes a part of."""

    name: str
    size: float
    """Amount that this rank has, in any unit."""
    each: float
    """Amount that each worker takes, in the same unit."""
    reason: str
    """Says both: a format with two places."""


def _list_needs(run: Run, prefetch: int) -> Iterator[_Need]:
    figures = run.figures
    host = run.meta.host
    ranks = host.ranks
    known = [host.ram_available_bytes, host.cgroup_memory_bytes]
    sizes = [size / ranks / _GIB for size in known if size is not None]
    pss = figures.loader.pss_bytes if figures.loader else None
    # a forked worker starts as large as the training process, at worst
    each, how = float(figures.process_rss_bytes or 0), 'at most'
    if pss and run.meta.loader.num_workers:
        each, how = pss / run.meta.loader.num_workers, 'measured'
    if sizes and each:
        text = f'{{:.1f}} GiB of memory for this rank, {how} {{:.1f}} GiB each'
        yield _Need('memory', min(sizes), each / _GIB, text)
    if host.shm_free_bytes is not None and figures.batch_bytes:
        text = '{:.0f} MiB of /dev/shm for this rank, {:.0f} MiB per worker'
        free, ahead = host.shm_free_bytes / ranks, prefetch * figures.batch_bytes
        yield _Need('shm', free / _MIB, ahead / _MIB, text)
    if host.open_files_soft is not None and figures.batch_tensors:
        text = '{:.0f} open files, one per tensor in flight ({:.0f} per worker)'
        each_opens = prefetch * figures.batch_tensors
        yield _Need('files', host.open_files_soft, each_opens, text)


@dataclass(frozen=True)
class Gain:
    """Saving of a setting, over what the job would take: 0.1 is a tenth."""

    share: float
    low: float
    """The truth is expected between low and high 9 times in 10."""
    high: float
    noise: float = 0.0
    """Standard error, as far as the evidence is short or scatters."""

    @property
    def is_worthwhile(self) -> bool:
        """True if it is worth a change, and the evidence bears it out."""
        return self.share >= max(thresholds.WORTHWHILE_GAIN, self.noise)


@dataclass(frozen=True)
class Job:
    """A training as it was configured, and what predicts it."""

    run: Run
    workload: Workload
    beside: LiveLoader | None = None
    """A loader whose workers live on meanwhile."""
    freed: WorkerThreads | None = None
    """Threads of the run, where the workload is that of one thread of OpenCV each."""
    threads_save: float = 0.0
    """Share of a batch's CPU that this saves."""

    @cached_property
    def old(self) -> LoaderSetting:
        """The run's own setting."""
        return read_setting(self.run)

    @property
    def as_it_was(self) -> Candidate:
        """The job with the run's own setting."""
        return Candidate(self, self.old)

    @cached_property
    def plan(self) -> JobPlan:
        """The training as it was configured, also where not all of it was recorded.

        A loop that counts iterations says nothing of its epochs (a sampler may have no
        end): it is one long epoch.
        """
        run, record = self.run, self.run.meta
        done, epochs = max(run.figures.iterations, 1), 1
        iterations = record.max_iters or done
        if record.loop == 'epoch' and record.loader.batches_per_epoch:
            iterations = record.loader.batches_per_epoch
            epochs = record.max_epochs or max(run.figures.epoch_starts, 1)
        saves_s = (
            run.figures.ledger_s.get('checkpoint_save', 0.0)
            * iterations
            * epochs
            / done
        )
        return JobPlan(iterations, epochs, saves_s)

    @cached_property
    def cap(self) -> WorkerCap:
        """Workers that the host carries, with as many batches ahead as now or usual."""
        return self.cap_with(max(self.old.prefetch_factor, DEFAULT_PREFETCH))

    def cap_with(self, prefetch_factor: int) -> WorkerCap:
        """Workers that the host carries with so many batches ahead."""
        return cap_workers(self.run, prefetch_factor, self.beside)

    @property
    def cores(self) -> int:
        """Whole cores that this rank may use."""
        return max(math.floor(self.run.meta.host.usable_cores or 0.0), 1)

    @property
    def without_other_load(self) -> Job:
        """The same on a host that other programs leave alone."""
        alone = replace(self.workload, other_tasks=0.0, turns_s=0.0)
        return replace(self, workload=alone)

    def total_s(self, setting: LoaderSetting) -> float:
        """Predicted seconds of the whole job."""
        return estimate_job_s(self.workload, setting, self.plan)

    def iter_s(self, setting: LoaderSetting) -> float:
        """Predicted seconds of a steady iteration."""
        return estimate_iter_s(
            self.workload, setting.num_workers, setting.prefetch_factor
        )


class Candidate(NamedTuple):
    """A setting of the loader, in the job that it is judged in."""

    job: Job
    setting: LoaderSetting


@dataclass(frozen=True)
class Decision:
    """The new setting, which is the old one where none is surely better."""

    job: Job
    new: LoaderSetting
    gain: Gain | None = None
    """``None`` when nothing changes."""
    doubt: str | None = None
    """Why what is predicted to be faster is advice and not ``new``; empty where it is
    not worth a word."""


def decide(job: Job) -> Decision:
    """The best setting, or the old one and why no other is written.

    A gain must hold beside the other load of the run and without it. Workers that only
    take turns are more than the host carries, which needs no gain. Threads of OpenCV
    that thrash are freed together with what is best without them.
    """
    calm, doubt = _free_threads(job), None
    if calm is not None:
        new = propose(calm).new
        freed = Decision(calm, new, predict_gain(job.as_it_was, Candidate(calm, new)))
        freed = _confirm(job, freed)
        if freed.doubt is None and freed.gain and freed.gain.is_worthwhile:
            return freed
        doubt = freed.doubt
    proposed = propose(job)
    if proposed.gain is not None and not _is_crowd(
        job.without_other_load, proposed.new
    ):
        proposed = _confirm(job, proposed)
    return replace(proposed, doubt=doubt or proposed.doubt)


def _free_threads(job: Job) -> Job | None:
    """The job with one thread a worker, where several were found to thrash."""
    found = job.run.threads
    if found is None or not found.is_thrash or (had := found.opencv or 0) < 2:
        return None
    wasted = THREADS_WASTE * min(math.log2(max(had / found.cores, 1.0)), MOST_DOUBLINGS)
    # a worker that uses more than a core has all of its CPU in less time
    hidden = max(found.cpu_s / max(job.workload.batch_cpu.mean_s, 1e-6), 1.0)
    saved = 1.0 - (1.0 - wasted) * hidden
    workload = with_one_thread(job.workload, saved)
    run = job.run.replaced(workload=workload)
    return replace(job, run=run, workload=workload, freed=found, threads_save=saved)


def _confirm(job: Job, proposed: Decision) -> Decision:
    """Return what is proposed, or the job's own setting and why."""
    gain, quiet = proposed.gain, job.without_other_load
    assert gain is not None
    then = proposed.job.without_other_load
    alone = predict_gain(quiet.as_it_was, Candidate(then, proposed.new))
    if min(gain.low, alone.low) > 0.0:
        return proposed
    doubt = ''
    if gain.share >= thresholds.WORTHWHILE_GAIN:
        beside = ''
        if alone != gain:
            beside = f', {phrase_gain(alone)} without the other programs on this host'
        doubt = f'{_phrase(proposed)}{beside}: too unsure to be written.'
    return Decision(job, job.old, doubt=doubt)


def propose(job: Job) -> Decision:
    """The setting that is best by all that is known, however sure that is."""
    new = _choose_prefetch(job, _with_persistence(job, _choose_workers(job)))
    gain = None if new == job.old else predict_gain(job.as_it_was, Candidate(job, new))
    return Decision(job, new, gain)


def predict_gain(before: Candidate, after: Candidate) -> Gain:
    """Predict what ``after`` saves, image for image.

    Both see the same errors of the costs.
    """
    job, old = before.job, before.setting
    sized, new = after.job, after.setting

    def image_s(plan: JobPlan, workload: Workload, setting: LoaderSetting) -> float:
        # whole batches: an epoch of another size may see a few images more
        images = plan.epochs * plan.iterations * (workload.batch_size or 1)
        return estimate_job_s(workload, setting, plan) / images

    is_freed = sized.freed is not None and job.freed is None

    def share_of(workload: Workload, error: float = 0.0) -> float:
        # of which the step is known, or there were no such candidate
        other = at_batch_size(workload, sized.workload.batch_size)
        if is_freed:
            other = with_one_thread(other, sized.threads_save - error)
        then_s = image_s(sized.plan, other, new)
        return 1.0 - then_s / image_s(job.plan, workload, old)

    share = share_of(job.workload)
    changed = perturb(job.workload, alone=0 in (old.num_workers, new.num_workers))
    noises = [share_of(workload) - share for workload in changed]
    if is_freed:
        noises.append(share - share_of(job.workload, THREADS_ERROR))
    line = job.workload.step_line
    if line is not None and sized is not job:
        step = (sized.workload.batch_size or 0) - (job.workload.batch_size or 0)
        noises.append((1.0 - share) * line.image_error_s * step / sized.iter_s(new))
    noise = math.hypot(*noises)
    model = (1.0 - share) * model_error(
        sized.workload,
        new.num_workers,
        run_cpu_share=_cpu_share(before),
        cpu_share=_cpu_share(after),
    )
    if sized is job and new == replace(old, persistent_workers=new.persistent_workers):
        # the iterations stay what they are: it is all in the starts
        model = START_ERROR * abs(share)
    reach = COVERAGE * math.hypot(noise, model)
    return Gain(share, share - reach, share + reach, noise)


def _cpu_share(candidate: Candidate) -> float:
    """Share of the free cores that an iteration uses, at most 1."""
    job, setting = candidate.job, candidate.setting
    return min(job.workload.cpu_floor_s / job.iter_s(setting), 1.0)


def most_gain(job: Job, setting: LoaderSetting) -> float:
    """Most that any other setting could save of the job.

    With workers, what data that costs nothing would save. Without, nothing is fetched
    and no worker is started, which can be less.
    """
    ideal_s = job.plan.epochs * job.plan.iterations * job.workload.ready_s
    alone_s = job.total_s(replace(setting, num_workers=0))
    return max(1.0 - min(ideal_s, alone_s) / job.total_s(setting), 0.0)


def read_setting(run: Run) -> LoaderSetting:
    """The run's own setting."""
    loader = run.meta.loader
    workers = loader.num_workers or 0
    persistent = bool(loader.persistent_workers) and workers > 0
    prefetch = loader.prefetch_factor or DEFAULT_PREFETCH
    return LoaderSetting(workers, prefetch, persistent)


def count_starts(run: Run) -> int:
    """Number of times that the loader starts over, as far as known.

    A loop that counts iterations says nothing of its epochs, so only what was seen
    counts.
    """
    record = run.meta
    if record.loop == 'epoch' and record.max_epochs:
        return record.max_epochs
    return run.figures.epoch_starts


def starts_cost(run: Run) -> bool:
    """True if starting workers anew was measured to cost something, and nothing else.

    Workers that grow give their memory back when an epoch ends them: they stay so.
    """
    if (
        count_starts(run) < 2
        or run.figures.run_share(run.figures.startup_s) < thresholds.STARTUP_MEASURABLE
    ):
        return False
    return find_worker_growth(run) is None


def _choose_workers(job: Job) -> LoaderSetting:
    old = job.old
    is_worth = most_gain(job, old) >= thresholds.WORTHWHILE_GAIN
    if not is_worth and old.num_workers <= job.cores:
        return old
    new = _with_persistence(job, replace(old, num_workers=_find_fewest(job)))
    if not (_is_worthwhile(job, old, new) or _is_crowd(job, new)):
        return old
    deeper = replace(new, prefetch_factor=max(old.prefetch_factor, DEFAULT_PREFETCH))
    return deeper if _is_worthwhile(job, new, deeper) else new


def _find_fewest(job: Job) -> int:
    """The fewest workers that are within 2 % of the fastest job, if they lived on.

    The core of the training process is theirs only if that saves a tenth, or if they
    hardly need it: sharing one is what simulations know least about.
    """
    workload, old, most = job.workload, job.old, job.cap.workers
    prefetch = max(old.prefetch_factor, DEFAULT_PREFETCH)
    times: dict[int, float] = {}
    # what no number of workers is faster than, but for what is won at the starts
    ideal_s = workload.bound_iter_s(MOST_WORKERS)
    ideal_s *= job.plan.epochs * job.plan.iterations
    for count in _list_counts(most):
        some = LoaderSetting(count, prefetch, persistent_workers=True)
        times[count] = job.total_s(some)
        if times[count] <= ideal_s * (1 + SAME_SPEED / 4):
            break
    if old.num_workers <= most:
        own = LoaderSetting(old.num_workers, prefetch, persistent_workers=True)
        times[old.num_workers] = job.total_s(own)
    spare = most
    if not job.run.waiting_share:
        step_s = workload.step.mean_s
        own_cores = round(workload.step_cpu_s / step_s) if step_s > 0.0 else 0
        spare = max(math.floor(workload.usable_cores) - own_cores, 1)
    spared = {count: s for count, s in times.items() if count <= spare}
    if min(spared.values()) <= min(times.values()) * (1 + OWN_CORE_GAIN):
        times = spared
    return _find_least(times)


def _list_counts(most: int) -> Iterator[int]:
    yield 0
    count = 1
    while count < most:
        yield count
        count += max(count // 4, 1) if count >= EACH_UP_TO else 1
    if most > 0:
        yield most


def _find_least(times: dict[int, float]) -> int:
    """The smallest number that is within 2 % of the fastest."""
    enough_s = min(times.values()) * (1 + SAME_SPEED)
    return min(number for number, seconds in times.items() if seconds <= enough_s)


def _is_worthwhile(job: Job, before: LoaderSetting, after: LoaderSetting) -> bool:
    if before == after:
        return False
    gain = predict_gain(Candidate(job, before), Candidate(job, after))
    return gain.is_worthwhile


def _is_crowd(job: Job, new: LoaderSetting) -> bool:
    """True if the old workers only take turns on too few cores.

    Only where that was measured: workers that wait for storage are right to outnumber
    the cores.
    """
    run, old = job.run, job.old
    cpu_s, delay_s = run.figures.worker_cpu_s, run.figures.worker_run_delay_s
    if not new.num_workers < old.num_workers > job.cores:
        return False
    if not cpu_s or not delay_s or not job.workload.is_batch_time_known:
        return False
    if run.waiting_share or delay_s / (cpu_s + delay_s) < thresholds.RUN_DELAY_PROBLEM:
        return False
    return job.total_s(new) <= job.total_s(old) * (1 + SAME_SPEED)


def _with_persistence(job: Job, new: LoaderSetting) -> LoaderSetting:
    """With workers that live through all epochs, where they should."""
    loader, persists = job.run.meta.loader, False
    if new.num_workers and loader.persistent_workers is not False:
        persists = new.persistent_workers
    elif 0 < new.num_workers <= job.cap.workers:
        is_new = not loader.num_workers
        persists = count_starts(job.run) >= 2 if is_new else starts_cost(job.run)
    return replace(new, persistent_workers=persists)


def _choose_prefetch(job: Job, new: LoaderSetting) -> LoaderSetting:
    """More batches ahead, where they help by themselves."""
    if new.num_workers == 0 or most_gain(job, new) < thresholds.WORTHWHILE_GAIN:
        return new
    times = {new.prefetch_factor: job.total_s(new)}
    for factor in PREFETCHES:
        deeper = replace(new, prefetch_factor=factor)
        is_carried = job.cap_with(factor).workers >= new.num_workers
        if factor > new.prefetch_factor and is_carried:
            times[factor] = job.total_s(deeper)
    deeper = replace(new, prefetch_factor=_find_least(times))
    return deeper if _is_worthwhile(job, new, deeper) else new


def _phrase(decision: Decision) -> str:
    """``num_workers 2 -> 5 would save 9 % of the time (...)``."""
    old, new, gain = asdict(decision.job.old), asdict(decision.new), decision.gain
    if decision.job.freed is not None:
        old['opencv_num_threads'] = decision.job.freed.opencv
        new['opencv_num_threads'] = ONE_THREAD
    changed = [
        f'{name} {old[name]} -> {new[name]}' for name in old if old[name] != new[name]
    ]
    assert gain is not None
    return f'{", ".join(changed)} would save {phrase_gain(gain)}'


def phrase_gain(gain: Gain) -> str:
    """``9 % of the time (4 to 14 %, 9 times in 10)``."""
    share_pct = 100 * gain.share
    low_pct, high_pct = 100 * gain.low, 100 * gain.high
    interval = f'{low_pct:.0f} to {high_pct:.0f} %, 9 times in 10'
    return f'{share_pct:.0f} % of the time ({interval})'
