"""Decides what makes checkpoint saves cost less: niced workers.

They change nothing that is trained. The change rests on what the job lost (net); what
the pauses lost (gross) is said as well.
"""

from __future__ import annotations

from dataclasses import replace

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.thresholds import SAVE_CURE_WORTH
from mmgpu_hooks.recommend.policy import WORKERS_KEY
from mmgpu_hooks.schema.judged import Change, Recommendation, SaveCure

NICE_KEY = 'default_hooks.gpu_efficiency.worker_nice'
"""Where ``mmgpu enable`` puts the hook."""

NICE = 10
"""Of niced workers: a tenth of the weight, which starves nothing."""


def with_save_cures(recommendation: Recommendation, run: Run) -> Recommendation:
    """Add the cure for saves that workers hold up to what is recommended anyway.

    Args:
        recommendation: Settings of the loader.
        run: The run it was made of.

    Returns:
        With ``save_cures``, and with niced workers among the changes where the job
        gains enough by them and its new number of workers leaves no core free.
    """
    changes, old = recommendation.changes, run.run.loader.num_workers
    cores = run.run.host.cores_had
    cure = None if run.run.worker_nice else _cure_by_nice(run)
    if cure is None or cores is None:
        return recommendation
    new = next((one.new for one in changes if one.key == WORKERS_KEY), old) or 0
    if new + 1 > cores and cure.run_net_s and _is_worth(run, cure.run_net_s):
        change = Change(
            key=NICE_KEY,
            old=run.run.worker_nice,
            new=NICE,
            reason='loader workers had the cores while checkpoints were saved; '
            f'{cure.sentence}',
            confidence='medium',
            rules=('MG304',),
        )
        changes = (*changes, change)
    reason = None if changes else recommendation.reason
    return replace(recommendation, changes=changes, reason=reason, save_cures=(cure,))


def _cure_by_nice(run: Run) -> SaveCure | None:
    """The saving thread goes first: what workers were proven to hold up is spared.

    Delays that make no single save slow count too, as soon as they add up to something.

    Returns:
        ``None`` where workers delay no save by enough.
    """
    held = [
        (save, judged)
        for save, judged in zip(run.save_records, run.judged_saves)
        if judged.held_s.get('workers', 0.0) > 0.0
    ]
    gross_s = sum(judged.held_s['workers'] for _, judged in held)
    if not held or not (_is_worth(run, gross_s) or run.saves_held_by('workers')):
        return None
    nets = [
        judged.net_delay_s * judged.held_s['workers'] / judged.gross_delay_s
        for _, judged in held
        if judged.net_delay_s is not None and judged.gross_delay_s
    ]
    net_s, count = sum(nets) if nets else None, len(held)
    walls_s = sum(save.wall_s for save, _ in held)
    gains = 'the net delay is not known'
    if net_s is not None:
        gains = f'the job gains {net_s:.1f} s (net)'
    return SaveCure(
        name='polite_workers',
        sentence=f'niced workers, GPUEfficiencyHook(worker_nice={NICE}): {count} saves '
        f'are predicted to take {(walls_s - gross_s) / count:.2f} s each, now '
        f'{walls_s / count:.2f} s; {gross_s:.1f} s less in all (gross), {gains}',
        save_s=(walls_s - gross_s) / count,
        saves=count,
        run_gross_s=gross_s,
        run_net_s=net_s,
    )


def _is_worth(run: Run, net_s: float) -> bool:
    return run.run_share(net_s) >= SAVE_CURE_WORTH
