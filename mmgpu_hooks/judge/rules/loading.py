"""Rules about the training loop's waits for data."""

from __future__ import annotations

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.rules.rule import (
    cannot_tell,
    cannot_tell_as,
    fine,
    notice,
    problem,
    rule,
)
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.judged import Finding
from mmgpu_hooks.schema.text import phrase


@rule('MG101', 'Waiting for data', 'data_bound')
def judge_data_wait(run: Run) -> Finding | None:
    """The training loop stands still until a batch arrives.

    ``data_wait`` is the time blocked in ``next(loader)`` alone; hooks, checkpoint
    saves and validation are not in it (they are in MMEngine's ``data_time``). From
    10 % of an iteration on, the loader and not the model sets the speed.
    """
    figures, parts = run.figures, run.figures.per_iteration
    if parts is None:
        return cannot_tell(phrase('no iteration was measured'))
    share = parts.data_wait_share
    detail = phrase(
        '{data_wait_share} of an iteration is spent waiting for data ({data_wait_s} of '
        '{iter_s}, mean of {steady_iterations}).',
        parts,
        iter_s=parts.total_s,
        steady_iterations=figures.steady_iterations,
    )
    if share >= thresholds.DATA_WAIT_PROBLEM:
        waits_s = parts.data_wait_s * figures.iterations
        return problem(detail, figures.run_share(waits_s))
    if share >= thresholds.DATA_WAIT_NOTICE:
        return notice(detail, share)
    return fine(detail)


@rule('MG103', 'Loading is blocked, not busy', 'data_bound_storage')
def judge_blocked_loading(run: Run) -> Finding | None:
    """Most of a batch's loading time is waiting (storage, network, locks), not CPU.

    More workers help, because they wait side by side; faster storage, a local copy
    or a cache help more.
    """
    bound_share = run.bound_share
    if bound_share is None or not run.is_starved:
        return None
    share, workload = run.blocked_share, run.workload
    if workload is None:
        return cannot_tell_as(run.why_no_workload)
    if share is None:
        return cannot_tell(
            phrase('the time to load a batch was only bounded, not measured')
        )
    if not run.waiting_share:
        return None
    return problem(
        phrase(
            'Of {loading_s} to load a batch only {cpu_s} is CPU; {blocked_share} is '
            'waiting for storage or locks.',
            loading_s=workload.batch_time.mean_s,
            cpu_s=workload.batch_cpu.mean_s,
            blocked_share=share,
        ),
        bound_share,
    )


@rule('MG104', 'The loader starts again and again', 'startup_bound')
def judge_starts(run: Run) -> Finding | None:
    """Each epoch begins with a pause: workers start, and no batch is made yet.

    ``persistent_workers=True`` keeps the workers from one epoch to the next. Short
    epochs suffer most. Iteration-based training starts over at the end of its data, and
    MMEngine pauses for two seconds then; a sampler without an end
    (``sampler=dict(type='InfiniteSampler')``) never gets there.
    """
    figures = run.figures
    loader, share = run.meta.loader, figures.run_share(figures.startup_s)
    is_again = figures.epoch_starts >= 2
    if run.meta.loop != 'iter':
        is_again = bool(loader.num_workers) and loader.persistent_workers is False
    if not is_again or share < thresholds.STARTUP_PROBLEM:
        return None
    return problem(
        phrase(
            '{startup_s:sum} ({run_share} of the run) went into {epoch_starts} of the '
            'loader, beyond a normal wait.',
            startup_s=figures.startup_s,
            run_share=share,
            epoch_starts=figures.epoch_starts,
        ),
        share,
    )
