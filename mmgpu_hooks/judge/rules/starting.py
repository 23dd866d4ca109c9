"""Rules about what passes before a training's first new iteration."""

from __future__ import annotations

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.rules.rule import notice, rule
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.figures import format_pct, format_sum
from mmgpu_hooks.schema.judged import Finding


@rule('MG501', 'Resuming loads what it skips')
def judge_resume(run: Run) -> Finding | None:
    """An iteration-based training that resumes loads all that it has trained on again.

    MMEngine takes every batch from the loader and throws it away, so that the batches
    that follow are those of a training that was never interrupted.
    ``GPUEfficiencyHook(optimize='resume')`` lets the sampler alone go on: the same
    batches follow, and their random augmentation is another one.
    """
    seconds = run.figures.ledger_s.get('resume', 0.0)
    share = run.figures.part_share('resume')
    is_little = share < thresholds.START_SHARE or seconds < thresholds.START_LEAST_S
    if is_little or 'resume' in run.meta.optimized:
        return None
    return notice(
        f'Resuming loaded {run.meta.start_iteration} batches only to skip them, in '
        f'{format_sum(seconds)} ({format_pct(100 * share)} of the run); '
        "optimize='resume' skips them without loading.",
        share,
    )
