"""Recommends settings for a start that gives a training more cores; no I/O."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.slurm import find_narrow_start
from mmgpu_hooks.recommend.host_memory import limit_to_memory
from mmgpu_hooks.recommend.job import Job
from mmgpu_hooks.recommend.recommendation import recommend_settings
from mmgpu_hooks.recommend.settings import SETTINGS
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.judged import MendedStart
from mmgpu_hooks.schema.text import phrase


def with_cores(run: Run, cores: float) -> Run:
    """Copies a run as if each of its ranks could use another number of cores.

    What was measured is that of the cores that the run had, and so are the costs that
    are fitted to it; what is predicted of them is for the others.

    Args:
        run: One rank's.
        cores: Of each rank; no fewer than the run had.
    """
    host = structs.replace(run.meta.host, usable_cores=cores)
    evidence = replace(
        run.evidence,
        run=structs.replace(run.meta, host=host),
        cores_had=run.cores_had,
    )
    workload = run.workload
    if workload is not None:
        # several runs may have been fitted together to it
        host_cores = max(workload.host_cores, cores)
        workload = replace(workload, usable_cores=cores, host_cores=host_cores)
    return Run(evidence, run.other_ranks, figures=run.figures, workload=workload)


def expect_cores(run: Run, cores: float) -> None:
    """Raises a `UserError` if a run on ``cores`` cores per rank cannot be predicted.

    Raises:
        UserError: If they are fewer than the run had, or more than its host has.
    """
    host = run.meta.host
    least, logical = host.usable_cores, host.logical_cpus
    if least is not None and cores < least:
        raise UserError(
            phrase(
                '--cores: expected at least the {least_cores:g} usable cores that the '
                'run had, found {cores:g}; what fewer would give, this run does not '
                'show.',
                least_cores=least,
                cores=cores,
            )
        )
    if logical is not None and cores * host.ranks > logical:
        most = phrase('the {logical_cpus} of the host', host)
        if host.ranks > 1:
            most = phrase('the {logical_cpus} of the host for {ranks}', host)
        raise UserError(
            phrase(
                '--cores: expected at most {most}, found {cores:g} for each rank.',
                most=most,
                cores=cores,
            )
        )


def recommend_mended(run: Run) -> MendedStart | None:
    """Recommends settings for a start that gives the run all CPUs of its SLURM task."""
    found = find_narrow_start(run.meta.host)
    if found is None:
        return None
    mended = with_cores(run, found.mended_cores)
    settings = limit_to_memory(recommend_settings(mended), mended)
    predicted = (change.predicted_iter_s for change in settings.changes)
    iter_s = next((seconds for seconds in predicted if seconds is not None), None)
    if iter_s is None and mended.workload is not None:
        iter_s = Job.of(mended, mended.workload, SETTINGS).base.iter_s
    return MendedStart(
        command=found.command,
        cores=found.mended_cores,
        changes=settings.changes,
        no_change_reason=settings.reason,
        predicted_iter_s=iter_s,
    )
