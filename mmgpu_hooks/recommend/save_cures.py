"""Decides what makes checkpoint saves cost less.

Advice rests on what the job lost (net); what the pauses lost (gross) is said as well.
Only niced workers are ever applied: they change nothing that is trained.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.saves import others_here_s
from mmgpu_hooks.judge.thresholds import (
    OPTIMIZER_NOTICE,
    SAVE_CURE_WORTH,
    SAVE_PROBLEM,
)
from mmgpu_hooks.model.prediction import predict_setting
from mmgpu_hooks.recommend.changes import WORKERS_KEY
from mmgpu_hooks.recommend.choice import SAME_SPEED
from mmgpu_hooks.schema import (
    Change,
    HostLimits,
    Recommendation,
    SaveCure,
    SaveJudgement,
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
    old = run.run.loader.num_workers
    new = next((c.new for c in recommendation.changes if c.key == WORKERS_KEY), old)
    changes = (*recommendation.changes, *_nice_workers(run, new))
    is_fewer = old is not None and new is not None and new < old
    return replace(
        recommendation,
        changes=changes,
        reason=None if changes else recommendation.reason,
        save_cures=tuple(_list_cures(run, new if is_fewer else _fewest(run))),
    )


def _nice_workers(run: Run, workers: int | None) -> Iterator[Change]:
    niced, anyway = forecast_saves(run, workers, NICE), forecast_saves(run, workers)
    if run.run.worker_nice or not workers or not niced or not anyway:
        return
    if niced.net_s is None or anyway.net_s is None:
        return
    if _is_worth(run, niced.net_s - anyway.net_s):
        yield Change(
            key=NICE_KEY,
            old=run.run.worker_nice,
            new=NICE,
            reason='loader workers had the cores while checkpoints were saved; '
            f'with niced ones {_phrase_gains(niced)}',
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


def _list_cures(run: Run, fewer: int | None) -> Iterator[SaveCure]:
    now, fewest = run.run.loader.num_workers, 'the fewest that are predicted to keep up'
    argument = f'niced workers, GPUEfficiencyHook(worker_nice={NICE})'
    niced = None if run.run.worker_nice else forecast_saves(run, now, NICE)
    ways = [
        ('polite_workers', argument, niced),
        ('fewer_workers', f'num_workers={fewer}, {fewest}', forecast_saves(run, fewer)),
    ]
    for name, what, found in ways:
        if found is not None:
            yield SaveCure(
                name=name,
                sentence=f'{what}: {_phrase_gains(found)}',
                save_s=found.then_s,
                saves=found.saves,
                run_gross_s=found.gross_s,
                run_net_s=found.net_s,
            )
    yield from _cure_by_interval(run)
    yield from _cure_by_size(run)


def _cure_by_interval(run: Run) -> Iterator[SaveCure]:
    """Said, never done: how much work a crash may cost is the user's to decide."""
    saves_s = run.ledger_s.get('checkpoint_save', 0.0)
    if run.saves < 2 or run.part_share('checkpoint_save') < SAVE_PROBLEM:
        return
    # how many times longer the interval must be for saves not to be a problem
    allowed_s = SAVE_PROBLEM / (1 - SAVE_PROBLEM) * max(run.duration_s - saves_s, 0.0)
    longer = math.ceil(saves_s / allowed_s) if allowed_s > 0.0 else 1
    # one is left: the last of a run is what it was for
    times = min(longer, run.saves)
    spared = run.saves - run.saves // times
    if times < 2:
        return
    won_back_s = sum(
        (judged.gross_delay_s or 0.0) - judged.net_delay_s
        for judged in run.judged_saves
        if judged.net_delay_s is not None
    )
    each_s, net_s = saves_s / run.saves, max(saves_s - won_back_s, 0.0) / run.saves
    yield SaveCure(
        name='longer_interval',
        sentence=f'an interval of CheckpointHook {times} times as long: {spared} of '
        f'{run.saves} saves less, {each_s * spared:.1f} s of such a run (gross), '
        f'the job gains {net_s * spared:.1f} s (net); it is never changed for you',
        save_s=each_s,
        saves=spared,
        run_gross_s=each_s * spared,
        run_net_s=net_s * spared,
    )


def _cure_by_size(run: Run) -> Iterator[SaveCure]:
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
        return
    mean_s = (sum(lengths_s) - less_s) / count
    yield SaveCure(
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


@dataclass(frozen=True)
class SaveForecast:
    """What a setting makes of the saves that workers hold up."""

    saves: int
    now_s: float
    """Mean save of those."""
    then_s: float
    gross_s: float
    """Less in all."""
    net_s: float | None


def forecast_saves(
    run: Run, workers: int | None, nice: int | None = None
) -> SaveForecast | None:
    """Scale the wait for a core of each save that workers delay to another crowding.

    Delays that make no single save slow count too, as soon as they add up to something.

    Args:
        run: The run.
        workers: The setting in question.
        nice: Nice value of its workers. Default: as in the run.

    Returns:
        ``None`` where workers delay no save by enough, or the cores are unknown.
    """
    held = [
        (save, judged)
        for save, judged in zip(run.save_records, run.judged_saves)
        if judged.held_s.get('workers', 0.0) > 0.0
    ]
    seconds = sum(judged.held_s['workers'] for _, judged in held)
    is_enough = run.run_share(seconds) >= SAVE_CURE_WORTH
    old, host = run.run.loader.num_workers, run.run.host
    if not held or not (is_enough or run.saves_held_by('workers')):
        return None
    if not old or workers is None or host.usable_cores is None:
        return None
    now = run.run.worker_nice or 0
    then = now if nice is None else nice
    less = [_less_s(*one, host, workers / old, (now, then)) for one in held]
    nets = [
        judged.net_delay_s * less_s / judged.gross_delay_s
        for (_, judged), less_s in zip(held, less)
        if judged.net_delay_s is not None and judged.gross_delay_s
    ]
    walls_s = sum(save.wall_s for save, _ in held)
    return SaveForecast(
        saves=len(held),
        now_s=walls_s / len(held),
        then_s=(walls_s - sum(less)) / len(held),
        gross_s=sum(less),
        net_s=sum(nets) if nets else None,
    )


def _less_s(
    save: SaveRecord,
    judged: SaveJudgement,
    host: HostLimits,
    times: float,
    nice: tuple[int, int],
) -> float:
    """Seconds by which one save is shorter with so many times as many busy workers.

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
    now = crowding(busy, cores, others, nice[0])
    then = crowding(busy * times, cores, others, nice[1])
    if not 0.0 < now < math.inf:
        return 0.0
    return judged.held_s['workers'] * max(1.0 - then / now, 0.0)


def _fewest(run: Run) -> int | None:
    """Fewer workers than now with which the iterations are as fast."""
    workload = run.workload
    if workload is None or not workload.is_batch_time_known or workload.num_workers < 2:
        return None
    counts, prefetch = range(1, workload.num_workers + 1), workload.prefetch_factor
    *fewer, now = [predict_setting(workload, count, prefetch) for count in counts]
    as_fast_s = now.iter_time_s * (1 + SAME_SPEED)
    return next((p.num_workers for p in fewer if p.iter_time_s <= as_fast_s), None)


def _phrase_gains(found: SaveForecast) -> str:
    """Seconds per save and in all, gross and net."""
    gains = 'the net delay is not known'
    if found.net_s is not None:
        gains = f'the job gains {found.net_s:.1f} s (net)'
    return (
        f'{found.saves} saves are predicted to take {found.then_s:.2f} s each, now '
        f'{found.now_s:.2f} s; {found.gross_s:.1f} s less in all (gross), {gains}'
    )


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
