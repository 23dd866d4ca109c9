"""Rules about checkpoint saves of a whole run: one finding for each cause of delay."""

from __future__ import annotations

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.memory import count_left
from mmgpu_hooks.judge.rules.rule import (
    cannot_tell_as,
    fine,
    notice,
    problem,
    rule,
)
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.saves import DELAY_CAUSES
from mmgpu_hooks.schema.judged import Finding, SaveJudgement
from mmgpu_hooks.schema.text import phrase, sentences

_MOST_VALUES = 1_000_000
"""Maximum number of values that MMEngine keeps in the history of a scalar."""


@rule('MG301', 'What checkpoint saves take', 'save_bound')
def judge_save_time(run: Run) -> Finding | None:
    """Training stands still while a checkpoint is saved, the GPU too.

    Ranks that do not save wait for those that do. A longer ``interval`` of
    CheckpointHook saves less often; it is never changed for you.
    """
    figures = run.figures
    seconds, saves = figures.ledger_s.get('checkpoint_save', 0.0), figures.saves
    if not saves or seconds <= 0:
        return None
    share, ranks = figures.part_share('checkpoint_save'), run.meta.world_size
    took = phrase(
        '{saves} took {whole_s:sum} ({run_share:.1%} of the run)',
        saves=saves,
        whole_s=seconds,
        run_share=share,
    )
    if saves > 1:
        took = phrase(
            '{saves} took {whole_s:sum}, {each_s} each ({run_share:.1%} of the run)',
            saves=saves,
            whole_s=seconds,
            each_s=seconds / saves,
            run_share=share,
        )
    detail = phrase('{took}.', took=took)
    if ranks > 1:
        detail = phrase(
            '{took}, and {ranks_s:sum} of the time of {ranks}.',
            took=took,
            ranks_s=ranks * seconds,
            ranks=ranks,
        )
    return problem(detail, share) if share >= thresholds.SAVE_PROBLEM else fine(detail)


@rule('MG304', 'Workers hold up saves', 'save_bound')
def judge_saves_by_workers(run: Run) -> Finding | None:
    """While a checkpoint is saved, loader workers have the cores that the save needs.

    The saving thread was ready to run and got no core, and the workers' CPU in that
    very span fills the usable cores: ``num_workers`` is too high for this host. What
    the workers make meanwhile is not lost, so the *net* delay counts. Fewer workers
    help, or ``GPUEfficiencyHook(worker_nice=10)``, which lets the saving thread go
    first.
    """
    return _judge_cause(run, 'workers')


@rule('MG305', 'Other programs hold up saves', 'save_bound')
def judge_saves_by_others(run: Run) -> Finding | None:
    """While a checkpoint is saved, other programs have the cores that the save needs.

    No setting of the loader helps: run them elsewhere, or at another time.
    """
    return _judge_cause(run, 'other_load')


@rule('MG306', 'Storage holds up saves', 'save_bound')
def judge_saves_by_storage(run: Run) -> Finding | None:
    """A checkpoint save is blocked in writing: a slow disk, or a slow remote backend.

    Workers are not the reason. Save to a faster disk, or less often; where a file
    backend writes to another host, save to a local disk and copy from there.
    """
    return _judge_cause(run, 'storage')


@rule('MG307', 'Memory runs short in saves', 'save_bound')
def judge_saves_by_memory(run: Run) -> Finding | None:
    """While a checkpoint is saved, tasks wait for memory, and pages are read again.

    MMEngine holds a checkpoint in memory, and the file as well, before it writes it.
    Free some memory (fewer workers, a smaller batch) or save without the optimizer.
    """
    return _judge_cause(run, 'memory')


@rule('MG309', 'Histories fill checkpoints')
def judge_histories(run: Run) -> Finding | None:
    """Checkpoints grow from save to save: each holds the history of every scalar.

    MMEngine's message hub keeps each value of each scalar (losses, times, learning
    rates), 16 bytes per iteration and up to a million values, and every checkpoint
    holds them all; ``save_optimizer=False`` leaves them in. Each new value also copies
    the history before it, so iterations take longer with age.

    No argument of MMEngine's shortens them. A hook that sets ``max_length`` of the
    histories does, in memory and in checkpoints, and training can be resumed: the
    page on slow saves (``docs/en/slow-saves.md``) has one of six lines. Log lines need
    no more values than the largest ``window_size`` of ``log_processor``.
    """
    known = [save for save in run.save_records if save.bytes and save.message_hub_bytes]
    if not known:
        return None
    first, last = known[0], known[-1]
    whole, held = last.bytes or 0, last.message_hub_bytes or 0
    grown, iterations = held, last.iteration
    if first.iteration < last.iteration:
        grown -= first.message_hub_bytes or 0
        iterations -= first.iteration
    each = max(grown, 0) / max(iterations, 1)
    left = count_left(run)
    if left is not None and run.intervals:
        left = max(left + run.intervals[-1].iteration - last.iteration, 0)
    # one that is full stays as long
    more = min((left or 0) * each, max(_MOST_VALUES * each - held, 0.0))
    end_held, end_whole = held + more, whole + more
    least = max(
        thresholds.HISTORIES_NOTICE_BYTES, thresholds.HISTORIES_NOTICE * end_whole
    )
    if end_held < least:
        return None
    facts = {'iteration': last.iteration, 'held_bytes': held, 'whole_bytes': whole}
    if more <= 0:
        return notice(
            phrase(
                'The checkpoint at iteration {iteration} holds {held_bytes} of '
                'histories in {whole_bytes}. A hook that sets their max_length keeps '
                'them short.',
                **facts,
            )
        )
    return notice(
        phrase(
            'The checkpoint at iteration {iteration} holds {held_bytes} of histories '
            'in {whole_bytes}; {end_held_bytes} of {end_whole_bytes} when training '
            'ends, {each_bytes:.0f} bytes more per iteration. A hook that sets their '
            'max_length keeps them short.',
            end_held_bytes=end_held,
            end_whole_bytes=end_whole,
            each_bytes=each,
            **facts,
        )
    )


@rule('MG311', 'Saves that cannot be judged')
def judge_unknown_saves(run: Run) -> Finding | None:
    """Some saves were slow without a proven cause, or were not measured well enough.

    Without the scheduler's statistics of the saving thread
    (``/proc/thread-self/schedstat``), what it waited for is unknown.
    """
    unknown = run.saves_held_by(None) or [
        judged
        for save, judged in zip(run.save_records, run.judged_saves)
        if judged.gross_delay_s is None and save.error is None
    ]
    if not unknown:
        return None
    worst = max(unknown, key=_delay_s)
    return cannot_tell_as(
        phrase(
            '{unknown_saves:d} of {saves}; {worst}',
            unknown_saves=len(unknown),
            saves=len(run.judged_saves),
            worst=worst.sentence,
        )
    )


def _delay_s(save: SaveJudgement) -> float:
    """Returns by how many seconds a save exceeded its usual time; 0 if unknown."""
    # one that was measured comes first
    return save.gross_delay_s or 0.0


def _judge_cause(run: Run, cause: str) -> Finding | None:
    """Makes one finding for all saves that were slow for the same cause."""
    slow = run.saves_held_by(cause)
    if not slow:
        return None
    gross_s = sum(map(_delay_s, slow))
    nets = [save.net_delay_s for save in slow if save.net_delay_s is not None]
    share = run.figures.run_share(sum(nets)) if nets else None
    worst = max(slow, key=_delay_s)
    facts = {
        'slow_saves': len(slow),
        'saves': len(run.judged_saves),
        'gross_s': gross_s,
    }
    if not nets:
        lost = phrase(
            '{slow_saves:d} of {saves} took {gross_s:.1f} s longer in all (gross); the '
            'job lost an unknown time (net).',
            **facts,
        )
    elif len(nets) < len(slow):
        lost = phrase(
            '{slow_saves:d} of {saves} took {gross_s:.1f} s longer in all (gross); the '
            'job lost {net_s:.1f} s (net, known of {known_saves:d}).',
            net_s=sum(nets),
            known_saves=len(nets),
            **facts,
        )
    else:
        lost = phrase(
            '{slow_saves:d} of {saves} took {gross_s:.1f} s longer in all (gross); the '
            'job lost {net_s:.1f} s (net).',
            net_s=sum(nets),
            **facts,
        )
    detail = sentences(
        lost,
        DELAY_CAUSES[cause].why,
        phrase('The worst: {worst}', worst=worst.sentence),
    )
    if share is not None and share >= thresholds.SAVE_PROBLEM:
        return problem(detail, share)
    return notice(detail, share)
