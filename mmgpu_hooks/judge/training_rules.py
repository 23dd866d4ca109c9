"""Rules about everything but the loader."""

from __future__ import annotations

from mmgpu_hooks.judge.duration_text import format_seconds, format_sum
from mmgpu_hooks.judge.facts import Facts
from mmgpu_hooks.judge.rule import cannot_tell, fine, notice, problem, rule
from mmgpu_hooks.judge.thresholds import (
    DATA_WAIT_NOTICE,
    GPU_UTIL_LOW_PCT,
    GPU_ZERO_NOTICE_PCT,
    HOOKS_PROBLEM,
    SAVE_PROBLEM,
    VALIDATION_NOTICE,
    VALIDATION_PROBLEM,
)
from mmgpu_hooks.schema import Finding


@rule('MG201', 'The step sets the speed')
def judge_compute(facts: Facts) -> Finding | None:
    """Data is at hand when the loop asks: forward, backward and optimizer are the job.

    Loader settings cannot make this run faster. What can: mixed precision, a larger
    batch, a smaller input, a faster card.
    """
    share, summary = facts.data_wait_share, facts.summary
    if share is None or not facts.is_enough or share >= DATA_WAIT_NOTICE:
        return None
    step_share = (summary.step_s or 0.0) / (summary.iter_s or 1.0)
    return fine(
        f'The step takes {100 * step_share:.0f} % of an iteration '
        f'({format_seconds(summary.step_s)} of {format_seconds(summary.iter_s)}).'
    )


@rule('MG202', 'The GPU swings')
def judge_gpu(facts: Facts) -> Finding | None:
    """GPU utilisation is low, or falls to 0 % again and again.

    NVML's utilisation is the share of the last 1/6 to 1 s in which at least one
    kernel ran, so 100 % does not mean that the card is full, but 0 % means that it
    stood still.
    """
    if facts.summary.run.device != 'cuda':
        return None
    gpu = facts.summary.gpu
    if gpu is None or gpu.util_pct is None:
        reason = facts.summary.why_no_gpu_util
        return cannot_tell(f'GPU utilisation is unknown ({reason.rstrip(".")})')
    last = facts.summary.gpu_last_iteration
    until = '' if last is None else f' until iteration {last}'
    detail = (
        f'GPU utilisation{until} {gpu.util_pct:.0f} %, at 0 % for '
        f'{gpu.zero_pct or 0.0:.0f} % of the time ({gpu.samples} samples).'
    )
    swings = (gpu.zero_pct or 0.0) >= GPU_ZERO_NOTICE_PCT
    return notice(detail) if swings or gpu.util_pct < GPU_UTIL_LOW_PCT else fine(detail)


@rule('MG301', 'Checkpoint saves take their share')
def judge_saves(facts: Facts) -> Finding | None:
    """Training stands still while a checkpoint is saved.

    A longer ``interval`` of CheckpointHook saves less often; it is never changed for
    you.
    """
    share = facts.part_share('checkpoint_save')
    saves = facts.summary.saves
    if share < SAVE_PROBLEM or not saves:
        return None
    seconds = facts.summary.ledger_s['checkpoint_save']
    return problem(
        f'{saves} saves took {format_sum(seconds)} ({100 * share:.0f} % of the '
        f'run, {format_seconds(seconds / saves)} each).',
        share,
    )


@rule('MG302', 'Validation takes its share')
def judge_validation(facts: Facts) -> Finding | None:
    """Training stands still during validation and its metrics.

    ``val_interval`` sets how often it runs. Its loader has settings of its own, which
    ``mmgpu recommend`` chooses by what validations showed.
    """
    share = facts.part_share('validation')
    if share < VALIDATION_NOTICE:
        return None
    seconds = facts.summary.ledger_s['validation']
    detail = f'Validation took {format_sum(seconds)} ({100 * share:.0f} % of the run).'
    if share >= VALIDATION_PROBLEM:
        return problem(detail, share)
    return notice(detail, share)


@rule('MG303', 'Hooks take their share')
def judge_hooks(facts: Facts) -> Finding | None:
    """Hooks (logging, visualisation, EMA, schedulers) take more than they should.

    Saves and validation are counted apart. Look for hooks that draw images or write
    files at short intervals.
    """
    share = facts.part_share('hooks')
    if share < HOOKS_PROBLEM:
        return None
    seconds = facts.summary.ledger_s['hooks']
    return problem(
        f'Hooks took {format_sum(seconds)} ({100 * share:.0f} % of the run).', share
    )
