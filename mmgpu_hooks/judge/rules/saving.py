"""Rules about checkpoint saves, over a whole run: once per cause, with a count."""

from __future__ import annotations

from mmgpu_hooks.judge.duration_text import format_seconds, format_sum
from mmgpu_hooks.judge.rules.rule import cannot_tell, fine, notice, problem, rule
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.saves import CAUSES, sum_delays
from mmgpu_hooks.judge.thresholds import HUB_NOTICE, HUB_NOTICE_BYTES, SAVE_PROBLEM
from mmgpu_hooks.schema import Finding


@rule('MG301', 'Checkpoint saves take their share', 'save_bound')
def judge_saves(run: Run) -> Finding | None:
    """Training stands still while a checkpoint is saved.

    A longer ``interval`` of CheckpointHook saves less often; it is never changed for
    you.
    """
    share = run.part_share('checkpoint_save')
    saves = run.saves
    if share < SAVE_PROBLEM or not saves:
        return None
    seconds = run.ledger_s['checkpoint_save']
    return problem(
        f'{saves} saves took {format_sum(seconds)} ({100 * share:.0f} % of the '
        f'run, {format_seconds(seconds / saves)} each).',
        share,
    )


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
    return _judge_cause(run, 'strangers')


@rule('MG306', 'Storage holds up saves', 'save_bound')
def judge_saves_by_storage(run: Run) -> Finding | None:
    """The save is blocked in the write to a file system of this host: a slow disk.

    Workers are not the reason. Save to a faster disk, or less often.
    """
    return _judge_cause(run, 'storage')


@rule('MG307', 'Memory runs short in saves', 'save_bound')
def judge_saves_by_memory(run: Run) -> Finding | None:
    """While a checkpoint is saved, tasks wait for memory, and pages are read again.

    MMEngine holds a checkpoint in memory, and the file as well, before it writes it.
    Free some memory (fewer workers, a smaller batch) or save without the optimizer.
    """
    return _judge_cause(run, 'memory')


@rule('MG308', 'The remote backend holds up saves', 'save_bound')
def judge_saves_by_remote(run: Run) -> Finding | None:
    """The save waits for a file backend that writes elsewhere than to this host.

    Save to a local disk and copy from there, or save less often.
    """
    return _judge_cause(run, 'remote')


@rule('MG309', 'Histories fill the checkpoint')
def judge_hub(run: Run) -> Finding | None:
    """Every checkpoint holds all histories of MMEngine's message hub, which only grow.

    Each scalar that is logged adds 16 bytes per iteration. Log fewer, or update those
    that no resumed run needs with ``update_scalar(..., resumed=False)``: they stay out.
    """
    known = [save for save in run.save_records if save.bytes and save.error is None]
    if not known:
        return None
    last = known[-1]
    hub, whole = last.message_hub_bytes or 0, last.bytes or 1
    slow = run.saves_held_by('size')
    if not slow and (hub < HUB_NOTICE_BYTES or hub < HUB_NOTICE * whole):
        return None
    detail = (
        f'Histories take {hub / 2**20:.0f} MiB, {100 * hub / whole:.0f} %, of the '
        f'checkpoint at iteration {last.iteration}'
    )
    if not slow:
        return notice(f'{detail}.')
    delay = sum_delays(slow, len(run.judged_saves), 'for it')
    share = None if delay.net_s is None else run.run_share(delay.net_s)
    return notice(f'{detail}; {delay.sentence}', share)


@rule('MG310', 'What saving costs')
def judge_saving(run: Run) -> Finding | None:
    """All checkpoint saves of the run together, and what the other ranks lose to them.

    Training stands still meanwhile, the GPU too, and ranks that do not save wait for
    those that do. The *gross* delay is what slow saves took too long; the *net* delay
    is what the job lost, after what the workers made ahead was won back.
    """
    seconds = run.ledger_s.get('checkpoint_save', 0.0)
    if not run.saves or seconds <= 0:
        return None
    share, ranks = run.part_share('checkpoint_save'), run.run.world_size
    detail = (
        f'{run.saves} save(s) took {format_seconds(seconds / run.saves)} each, '
        f'{format_sum(seconds)} in all ({100 * share:.1f} % of the run)'
    )
    if ranks > 1:
        detail += (
            f'; all {ranks} ranks stood still meanwhile, '
            f'{format_sum(ranks * seconds / run.saves)} of their time per '
            f'save and {format_sum(ranks * seconds)} in all'
        )
    slow = [one for one in run.judged_saves if one.is_slow]
    if slow:
        delay = sum_delays(slow, len(run.judged_saves), 'than they need')
        detail += f'; {delay.sentence}'
    else:
        detail += '.'
    return notice(detail, share) if share >= SAVE_PROBLEM else fine(detail)


@rule('MG311', 'Saves that cannot be judged')
def judge_unknown_saves(run: Run) -> Finding | None:
    """Some saves were slow without a proven cause, or were not measured well enough.

    Without the scheduler's statistics of the saving thread
    (``/proc/thread-self/schedstat``), what it waited for is unknown.
    """
    slow, count = run.saves_held_by(None), len(run.judged_saves)
    if slow:
        worst = sum_delays(slow, count, '').worst
        return cannot_tell(
            f'{len(slow)} of {count} saves were slow, and no cause is proven; the '
            f'worst: {worst}'
        )
    unknown = [
        judged
        for save, judged in zip(run.save_records, run.judged_saves)
        if judged.gross_delay_s is None and save.error is None
    ]
    if unknown:
        return cannot_tell(f'{len(unknown)} of {count} saves; {unknown[0].sentence}')
    return None


def _judge_cause(run: Run, cause: str) -> Finding | None:
    slow = run.saves_held_by(cause)
    if not slow:
        return None
    delay = sum_delays(slow, len(run.judged_saves), CAUSES[cause].why)
    detail = f'{delay.sentence} The worst: {delay.worst}'
    if delay.net_s is None:
        return notice(detail)
    share = run.run_share(delay.net_s)
    return (problem if share >= SAVE_PROBLEM else notice)(detail, share)
