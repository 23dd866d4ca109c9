"""CPUs that the next SLURM job of a training should ask for. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.choice import SAME_SPEED, Decision, Job, decide
from mmgpu_hooks.recommend.other_start import with_cores
from mmgpu_hooks.schema.judged import NextJob


def recommend_next_job(run: Run) -> NextJob | None:
    """The fewest CPUs with which a training is as fast as it gets on its host.

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
        used_cores=_used_cores(run, ranks),
        predicted_iter_s=_on(run, decision, cores).iter_s(decision.new),
        num_workers=decision.new.num_workers,
    )


def _decide_with(run: Run, cores: float) -> Decision:
    other = with_cores(run, cores)
    assert other.workload is not None  # the caller has seen to it
    return decide(Job(other, other.workload))


def _total_s(decision: Decision) -> float:
    return decision.job.total_s(decision.new)


def _on(run: Run, decision: Decision, cores: int) -> Job:
    """The job of a decision with other cores."""
    job = decision.job
    workload = replace(job.workload, usable_cores=float(cores))
    return replace(job, run=with_cores(run, cores), workload=workload)


def _find_fewest(run: Run, decision: Decision) -> int:
    """Whole cores, by bisection: more of them never make a job slower."""
    job, new = decision.job, decision.new
    most = max(math.floor(job.workload.usable_cores), 1)
    enough_s = job.total_s(new) * (1 + SAME_SPEED)
    # of a step on fewer cores than it has threads this run shows nothing
    low, high = min(job.workload.step_threads, most), most
    while low < high:
        middle = (low + high) // 2
        fewer = _on(run, decision, middle)
        is_carried = fewer.cap.workers >= min(new.num_workers, job.cap.workers)
        if is_carried and fewer.total_s(new) <= enough_s:
            high = middle
        else:
            low = middle + 1
    return high


def _used_cores(run: Run, ranks: int) -> float | None:
    """Cores that a task with so many ranks used on average, like this one."""
    figures = run.figures
    own, workers_s = figures.process_cpu_cores, figures.worker_cpu_s
    if own is None or not figures.iter_s:
        return None
    if run.meta.loader.num_workers and workers_s is None:
        return None
    return ranks * (own + (workers_s or 0.0) / figures.iter_s)
