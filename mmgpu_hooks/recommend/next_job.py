"""Computes how many CPUs a training's next SLURM job should ask for; no I/O."""

from __future__ import annotations

import math
from dataclasses import replace

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.job import SAME_SPEED, Decision, Job
from mmgpu_hooks.recommend.other_start import with_cores
from mmgpu_hooks.recommend.search import decide
from mmgpu_hooks.recommend.settings import SETTINGS
from mmgpu_hooks.schema.judged import NextJob


def recommend_next_job(run: Run) -> NextJob | None:
    """Finds the fewest CPUs per SLURM task beyond which a training is hardly faster.

    More than the run had are asked for only where they are predicted to be worth it.
    The prediction is that of the loader's simulation, at the best setting for so many
    cores.

    Args:
        run: One rank's.

    Returns:
        ``None`` where the run was no SLURM job, or nothing can be predicted of it.
    """
    host = run.meta.host
    if run.meta.slurm_job_id is None and host.slurm_cpus is None:
        return None
    had = host.mended_cores or host.usable_cores
    if had is None or run.workload is None or run.is_stalled:
        return None
    decision = _decide_with(run, had)
    if host.logical_cpus is not None and host.logical_cpus / host.ranks > had:
        wide = _decide_with(run, host.logical_cpus / host.ranks)
        least = thresholds.WORTHWHILE_GAIN
        if _total_s(wide) <= _total_s(decision) * (1 - least):
            decision = wide
    cores = _find_fewest(run, decision)
    ranks = host.slurm_task_ranks or 1
    return NextJob(
        cpus_per_task=cores * ranks,
        asked_cpus=host.slurm_given_cpus or host.slurm_cpus,
        # of a task whose ranks are all like this one
        used_cores=None if run.used_cores is None else ranks * run.used_cores,
        predicted_iter_s=_on(run, decision, cores).at(decision.new).iter_s,
        num_workers=decision.job.at(decision.new).loader.num_workers,
    )


def _decide_with(run: Run, cores: float) -> Decision:
    other = with_cores(run, cores)
    assert other.workload is not None  # the caller has seen to it
    return decide(Job.of(other, other.workload, SETTINGS))


def _total_s(decision: Decision) -> float:
    return decision.job.at(decision.new).total_s


def _on(run: Run, decision: Decision, cores: int) -> Job:
    """Copies a tuning job as if it had another number of cores."""
    workload = replace(decision.job.base.workload, usable_cores=float(cores))
    return Job.of(with_cores(run, cores), workload, SETTINGS)


def _find_fewest(run: Run, decision: Decision) -> int:
    """Finds by bisection the fewest cores beyond which a training is hardly faster.

    More cores never make a job slower.
    """
    job, new = decision.job, decision.new
    workload, workers = job.base.workload, job.at(new).loader.num_workers
    most = max(math.floor(workload.usable_cores), 1)
    enough_s = _total_s(decision) * (1 + SAME_SPEED)
    # of a step on fewer cores than it has threads this run shows nothing
    low, high = min(workload.step_threads, most), most
    while low < high:
        middle = (low + high) // 2
        fewer = _on(run, decision, middle)
        carried = min(workers, job.cap(new).workers)
        is_carried = fewer.cap(new).workers >= carried
        if is_carried and fewer.at(new).total_s <= enough_s:
            high = middle
        else:
            low = middle + 1
    return high
