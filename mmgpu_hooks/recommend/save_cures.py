"""Decides what makes checkpoint saves cost less.

Advice rests on what the job lost (net); what the pauses lost (gross) is said as well.
Only niced workers are ever applied: they change nothing that is trained.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.saves import others_here_s
from mmgpu_hooks.judge.thresholds import (
    OPTIMIZER_NOTICE,
    SAVE_CURE_WORTH,
)
from mmgpu_hooks.recommend.changes import WORKERS_KEY
from mmgpu_hooks.schema import (
    Change,
    HostLimits,
    Recommendation,
    SaveCure,
    SaveRecord,
)

NICE_WEIGHT = 1.25
"""Each step of nice makes a task's share of a core this much smaller (Linux,
``sched_prio_to_weight``)."""

NICE_KEY = 'default_hooks.gpu_efficiency.worker_nice'
"""Where the hook usually is; a rewrite finds where it really is."""

NICE = 10
"""Of niced workers: a tenth of the weight, which starves nothing."""


def with_save_cures(recommendation: Recommendation, run: Run) -> Recommendation:
    """Add the cures for slow or expensive saves to what is recommended anyway.

    Args:
        recommendation: Settings of the loader.
        run: The run it was made of.

    Returns:
        With ``save_cures``, and with niced workers among the changes where the job
        gains enough by them, beyond what a new number of workers gives.
    """
    changes, old = recommendation.changes, run.run.loader.num_workers
    cures = [_cure_by_size(run)]
    if old and not run.run.worker_nice:
        new = next((one.new for one in changes if one.key == WORKERS_KEY), old)
        cures.insert(0, _cure_by_nice(run, 1.0))
        changes = (*changes, *_nice_workers(run, new / old))
    return replace(
        recommendation,
        changes=changes,
        reason=None if changes else recommendation.reason,
        save_cures=tuple(cure for cure in cures if cure is not None),
    )


def _nice_workers(run: Run, times: float) -> Iterator[Change]:
    """Niced workers as a change, with so many times as many workers."""
    niced, anyway = _cure_by_nice(run, times), _cure_by_nice(run, times, nice=0)
    if not niced or not anyway or niced.run_net_s is None or anyway.run_net_s is None:
        return
    if times > 0.0 and _is_worth(run, niced.run_net_s - anyway.run_net_s):
        yield Change(
            key=NICE_KEY,
            old=run.run.worker_nice,
            new=NICE,
            reason='loader workers had the cores while checkpoints were saved; '
            f'{niced.sentence}',
            confidence='medium',
            rules=('MG304',),
        )


def with_keys_set(
    recommendation: Recommendation, keys: Iterable[str]
) -> Recommendation:
    """Name the argument of our hook by the key under which it was set.

    Args:
        recommendation: Whose changes name it by :data:`NICE_KEY`.
        keys: What the rewrite set, dotted.

    Returns:
        Without that change where it was not set.
    """
    argument = NICE_KEY.rpartition('.')[2]
    found = next((key for key in keys if key.rpartition('.')[2] == argument), None)
    placed = [
        replace(change, key=found or '') if change.key == NICE_KEY else change
        for change in recommendation.changes
    ]
    kept = tuple(change for change in placed if change.key)
    return replace(recommendation, changes=kept)


def _cure_by_nice(run: Run, times: float, nice: int = NICE) -> SaveCure | None:
    """Scale the wait for a core of each save that workers delay to another crowding.

    Delays that make no single save slow count too, as soon as they add up to something.

    Args:
        run: The run, whose workers are not niced.
        times: As many times as many workers as now.
        nice: Nice value of the workers.

    Returns:
        ``None`` where workers delay no save by enough, or the cores are unknown.
    """
    held = [
        (save, judged)
        for save, judged in zip(run.save_records, run.judged_saves)
        if judged.held_s.get('workers', 0.0) > 0.0
    ]
    is_enough = _is_worth(run, sum(judged.held_s['workers'] for _, judged in held))
    if not held or not (is_enough or run.saves_held_by('workers')):
        return None
    host = run.run.host
    if host.usable_cores is None:
        return None
    gross_s, nets, walls_s = 0.0, [], sum(save.wall_s for save, _ in held)
    for save, judged in held:
        less_s = judged.held_s['workers'] * _share_spared(save, host, times, nice)
        gross_s += less_s
        if judged.net_delay_s is not None and judged.gross_delay_s:
            nets.append(judged.net_delay_s * less_s / judged.gross_delay_s)
    net_s = sum(nets) if nets else None
    then_s, count = (walls_s - gross_s) / len(held), len(held)
    gains = 'the net delay is not known'
    if net_s is not None:
        gains = f'the job gains {net_s:.1f} s (net)'
    return SaveCure(
        name='polite_workers',
        sentence=f'niced workers, GPUEfficiencyHook(worker_nice={NICE}): {count} saves '
        f'are predicted to take {then_s:.2f} s each, now {walls_s / count:.2f} s; '
        f'{gross_s:.1f} s less in all (gross), {gains}',
        save_s=then_s,
        saves=count,
        run_gross_s=gross_s,
        run_net_s=net_s,
    )


def _share_spared(save: SaveRecord, host: HostLimits, times: float, nice: int) -> float:
    """Share of what workers delay a save that another crowding spares it.

    A save whose wait the crowding does not explain is left as it is.
    """
    busy = save.workers_busy if save.workers_busy is not None else save.workers
    cores = host.cores_had
    if busy is None or cores is None or save.wall_s <= 0.0:
        return 0.0
    # of the ranks on a host, one is counted, with its part of the cores
    others = 0.0
    if host.ranks_on_host <= 1:
        others = (others_here_s(save, host) or 0.0) / save.wall_s
    now, then = (
        crowding(busy, cores, others),
        crowding(busy * times, cores, others, nice),
    )
    return max(1.0 - then / now, 0.0) if 0.0 < now < math.inf else 0.0


def _cure_by_size(run: Run) -> SaveCure | None:
    """Said, never done: a checkpoint without the optimizer cannot be resumed."""
    spared_bytes, lengths_s, less_s = [], [], 0.0
    for save, judged in zip(run.save_records, run.judged_saves):
        spared = save.optimizer_bytes or 0
        if save.bytes and spared >= OPTIMIZER_NOTICE * save.bytes:
            # what a write through busy cores takes is cured by freeing them
            length_s = save.wall_s - judged.held_s.get('workers', 0.0)
            less_s += length_s * min(spared / save.bytes, 1.0)
            spared_bytes.append(spared)
            lengths_s.append(length_s)
    count = len(lengths_s)
    if not count or not _is_worth(run, less_s):
        return None
    mean_s = (sum(lengths_s) - less_s) / count
    return SaveCure(
        name='slimmer_checkpoint',
        sentence='CheckpointHook(save_optimizer=False) in checkpoints that training is '
        f'never resumed from: {sum(spared_bytes) / count / 2**20:.0f} MiB less in each '
        f'of {count}, predicted to take {mean_s:.2f} s each; {less_s:.1f} s less in '
        'all',
        save_s=mean_s,
        saves=count,
        run_gross_s=less_s,
        run_net_s=less_s,
    )


def _is_worth(run: Run, net_s: float) -> bool:
    return run.run_share(net_s) >= SAVE_CURE_WORTH


def crowding(busy: float, cores: float, others: float = 0.0, nice: int = 0) -> float:
    """Wait for a core over CPU of a thread that shares its cores fairly.

    ``busy`` tasks and one thread on C cores give it ``C / (1 + busy)`` of a core at
    most one. Against 8, 4 and 2 busy workers on 2 cores a save of 0.26 s took 1.48,
    0.66 and 0.37 s; this gives 1.17, 0.65 and 0.39 s.

    Args:
        busy: Workers that want a core.
        cores: Usable cores.
        others: Other processes that want one.
        nice: Nice value of the workers.
    """
    if cores <= 0.0:
        return math.inf
    rivals = max(busy, 0.0) * NICE_WEIGHT**-nice + max(others, 0.0)
    return max((1.0 + rivals) / cores - 1.0, 0.0)
