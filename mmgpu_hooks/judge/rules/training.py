"""Rules about the train step, GPU utilisation, validations and hooks."""

from __future__ import annotations

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.rules.rule import cannot_tell, fine, notice, problem, rule
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.judged import Finding
from mmgpu_hooks.schema.text import phrase


@rule('MG202', 'The GPU swings')
def judge_gpu(run: Run) -> Finding | None:
    """GPU utilisation is low, or falls to 0 % again and again.

    NVML's utilisation is the share of the last 1/6 to 1 s in which at least one
    kernel ran. So 100 % does not mean that the card is full, but 0 % means that it
    stood still. Some integrated GPUs say 0 % always.
    """
    figures = run.figures
    if run.meta.device != 'cuda':
        return None
    gpu = figures.gpu
    if gpu is None or gpu.util_pct is None:
        return cannot_tell(
            phrase(
                'GPU utilisation is unknown: {reason}', reason=figures.why_no_gpu_util
            )
        )
    idle_pct = figures.gpu_idle_pct
    if gpu.util_pct == 0.0 and idle_pct is not None and idle_pct < 50.0:
        return cannot_tell(
            phrase(
                'NVML says 0 % in all {samples}, but CUDA events saw steps on the GPU '
                'for {busy_pct} of the time',
                samples=gpu.samples,
                busy_pct=100 - idle_pct,
            )
        )
    # each sample has both
    zero_pct, last = gpu.zero_pct or 0.0, figures.gpu_last_iteration
    facts = {'util_pct': gpu.util_pct, 'zero_pct': zero_pct, 'samples': gpu.samples}
    detail = phrase(
        'GPU utilisation {util_pct}, at 0 % for {zero_pct} of the time ({samples}).',
        **facts,
    )
    if last is not None:
        detail = phrase(
            'GPU utilisation until iteration {last_iteration} {util_pct}, at 0 % for '
            '{zero_pct} of the time ({samples}).',
            last_iteration=last,
            **facts,
        )
    is_low = gpu.util_pct < thresholds.GPU_UTIL_LOW_PCT
    swings = zero_pct >= thresholds.GPU_ZERO_NOTICE_PCT
    return notice(detail) if is_low or swings else fine(detail)


@rule('MG203', 'Training stood still')
def judge_standstills(run: Run) -> Finding | None:
    """Training stood still for long, and then went on by itself.

    The watchdog (``stuck_after_s``) noticed it; the log says where. A mount that did
    not answer, a sample that takes minutes and a rank that was late are the usual
    reasons; ``mmgpu explain worker_stuck`` and the other causes say what helps.
    """
    ended = [stuck for stuck in run.evidence.stuck if stuck.is_over]
    noticed = [stuck for stuck in run.evidence.stuck if not stuck.is_over]
    if not ended:
        return None
    # late: few runs stand still
    from mmgpu_hooks.judge.standstill import Rank, name_cause, phrase_part

    lost_s = sum(stuck.waited_s for stuck in ended)
    worst = max(noticed, key=lambda stuck: stuck.waited_s, default=ended[0])
    cause = name_cause(Rank(run.evidence), worst).name
    where = phrase_part(worst)
    if worst.sample is not None:
        where = phrase('{where}, at sample {sample}', where=where, sample=worst.sample)
    if cause == 'unknown':
        return notice(
            phrase(
                'Training stood still for {lost_s:sum}, {where}.',
                lost_s=lost_s,
                where=where,
            )
        )
    return notice(
        phrase(
            'Training stood still for {lost_s:sum}, {where} ({cause}).',
            lost_s=lost_s,
            where=where,
            cause=cause,
        )
    )


@rule('MG204', 'Ranks train different numbers of batches')
def judge_shards(run: Run) -> Finding | None:
    """One rank has fewer batches an epoch than the others.

    Each gradient pairs with that of the same count on the other ranks, so the short
    rank begins its next epoch while the others still train this one. That goes well
    until something happens between epochs on all ranks (a validation, a save with a
    barrier) or training ends: then the ranks wait for each other for ever;
    ``mmgpu explain uneven_inputs`` says what helps.
    """
    batches = {
        rank.meta.rank: rank.meta.loader.batches_per_epoch
        for rank in (run, *run.other_ranks)
        if rank.meta.loop == 'epoch'
    }
    known = {number: count for number, count in batches.items() if count is not None}
    if len(set(known.values())) < 2:
        return None
    # late: few runs have such ranks
    from mmgpu_hooks.judge.standstill import describe_batches

    return notice(phrase('{shards:;}.', shards=tuple(describe_batches(known))))


@rule('MG302', 'Validation takes its share', 'validation_bound')
def judge_validation(run: Run) -> Finding | None:
    """Training stands still during validation and its metrics.

    ``val_interval`` sets how often it runs. Its loader has settings of its own, which
    ``mmgpu recommend`` chooses by what validations showed.
    """
    share = run.figures.part_share('validation')
    if share < thresholds.VALIDATION_NOTICE:
        return None
    seconds = run.figures.ledger_s['validation']
    detail = phrase(
        'Validation took {whole_s:sum} ({run_share} of the run).',
        whole_s=seconds,
        run_share=share,
    )
    is_problem = share >= thresholds.VALIDATION_PROBLEM
    return problem(detail, share) if is_problem else notice(detail, share)


@rule('MG303', 'Hooks take their share', 'hook_bound')
def judge_hooks(run: Run) -> Finding | None:
    """Hooks (logging, visualisation, EMA, schedulers) take more than they should.

    Saves and validation are counted apart. Look for hooks that draw images or write
    files at short intervals.
    """
    share = run.figures.part_share('hooks')
    if share < thresholds.HOOKS_PROBLEM:
        return None
    seconds = run.figures.ledger_s['hooks']
    return problem(
        phrase(
            'Hooks took {whole_s:sum} ({run_share} of the run).',
            whole_s=seconds,
            run_share=share,
        ),
        share,
    )
