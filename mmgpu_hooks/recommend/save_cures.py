"""Decides what makes checkpoint saves cost less. Pure, like the policy beside it.

Advice rests on what the job lost (net); what the pauses lost (gross) is said as well.
Only niced workers are ever applied: they change nothing that is trained.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.saves import strangers_here_s
from mmgpu_hooks.judge.thresholds import (
    OPTIMIZER_NOTICE,
    SAVE_CURE_WORTH,
    SAVE_PROBLEM,
)
from mmgpu_hooks.model.prediction import predict_setting
from mmgpu_hooks.recommend.changes import KEY
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
"""Where the hook usually is; whoever rewrites looks where it really is."""

POLITE = 10
"""Nice value of polite workers: a tenth of the weight, and not starved by anybody."""


def with_save_cures(recommendation: Recommendation, run: Run) -> Recommendation:
    """Add the cures for slow or expensive saves to what is recommended anyway.

    Args:
        recommendation: Settings of the loader.
        run: The run it was made of.

    Returns:
        With ``save_cures``, and with polite workers among the changes where the job
        gains enough by them.
    """
    old = run.run.loader.num_workers
    new = next(
        (c.new for c in recommendation.changes if c.key == f'{KEY}num_workers'), old
    )
    is_fewer = old is not None and new is not None and new < old
    cures = [
        _cure_by_politeness(run),
        _cure_by_fewer(run, new if is_fewer else fewest_that_keep_up(run)),
        _cure_by_interval(run),
        _cure_by_size(run),
    ]
    changes = (*recommendation.changes, *_make_polite(run, new))
    return replace(
        recommendation,
        changes=changes,
        reason=None if changes else recommendation.reason,
        save_cures=tuple(cure for cure in cures if cure is not None),
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


def _cure_by_politeness(run: Run) -> SaveCure | None:
    record = run.run
    polite = forecast_saves(run, record.loader.num_workers, POLITE)
    if polite is None or record.worker_nice:
        return None
    return _cure(
        'polite_workers',
        f'polite workers, GPUEfficiencyHook(worker_nice={POLITE})',
        polite,
    )


def _cure_by_fewer(run: Run, workers: int | None) -> SaveCure | None:
    fewer = forecast_saves(run, workers)
    if fewer is None:
        return None
    return _cure(
        'fewer_workers',
        f'num_workers={workers}, the fewest that are predicted to keep up',
        fewer,
    )


def _cure(name: str, what: str, forecast: SaveForecast) -> SaveCure:
    return SaveCure(
        name=name,
        sentence=f'{what}: {render_gains(forecast)}',
        save_s=forecast.then_s,
        saves=forecast.saves,
        run_gross_s=forecast.gross_s,
        run_net_s=forecast.net_s,
    )


def _cure_by_interval(run: Run) -> SaveCure | None:
    """Said, never done: how much work a crash may cost is the user's to decide."""
    seconds = run.ledger_s.get('checkpoint_save', 0.0)
    if run.saves < 2 or run.part_share('checkpoint_save') < SAVE_PROBLEM:
        return None
    longer = times_less_often(seconds, run.duration_s, SAVE_PROBLEM)
    # one is left: the last of a run is what it was for
    times = min(longer, run.saves)
    spared = run.saves - run.saves // times
    if times < 2:
        return None
    each_s = seconds / run.saves
    net_s = max(seconds - _won_back_s(run), 0.0) / run.saves
    return SaveCure(
        name='longer_interval',
        sentence=f'an interval of CheckpointHook {times} times as long: {spared} of '
        f'{run.saves} saves less, {each_s * spared:.1f} s of such a run (gross), '
        f'the job gains {net_s * spared:.1f} s (net); it is never changed for you',
        save_s=each_s,
        saves=spared,
        run_gross_s=each_s * spared,
        run_net_s=net_s * spared,
    )


def _cure_by_size(run: Run) -> SaveCure | None:
    """Said, never done: a checkpoint without the optimizer cannot be resumed."""
    slim = [
        (save, judged, (save.optimizer_bytes or 0) / save.bytes)
        for save, judged in zip(run.save_records, run.judged_saves)
        if save.bytes and (save.optimizer_bytes or 0) >= OPTIMIZER_NOTICE * save.bytes
    ]
    # what a write through busy cores takes is cured by freeing them
    lengths = [
        save.wall_s - (judged.held_s.get('workers', 0.0)) for save, judged, _ in slim
    ]
    less_s = sum(
        length_s * min(share, 1.0) for length_s, (_, _, share) in zip(lengths, slim)
    )
    if not slim or not _is_worth(run, less_s):
        return None
    mean_s = (sum(lengths) - less_s) / len(slim)
    spared = sum(save.optimizer_bytes or 0 for save, _, _ in slim) / len(slim)
    return SaveCure(
        name='slimmer_checkpoint',
        sentence='CheckpointHook(save_optimizer=False) in checkpoints that nobody '
        f'resumes from: {spared / 2**20:.0f} MiB less in each of {len(slim)}, '
        f'predicted to take {mean_s:.2f} s each; {less_s:.1f} s less in all',
        save_s=mean_s,
        saves=len(slim),
        run_gross_s=less_s,
        run_net_s=less_s,
    )


def _won_back_s(run: Run) -> float:
    return sum(
        (judged.gross_delay_s or 0.0) - judged.net_delay_s
        for judged in run.judged_saves
        if judged.net_delay_s is not None
    )


def _is_worth(run: Run, net_s: float | None) -> bool:
    return net_s is not None and run.run_share(net_s) >= SAVE_CURE_WORTH


def _make_polite(run: Run, workers: int | None) -> tuple[Change, ...]:
    """One change, where the job gains enough beyond what a new number of them gives."""
    polite = forecast_saves(run, workers, POLITE)
    anyway = forecast_saves(run, workers)
    if run.run.worker_nice or not workers or not polite or not anyway:
        return ()
    if polite.net_s is None or anyway.net_s is None:
        return ()
    if not _is_worth(run, polite.net_s - anyway.net_s):
        return ()
    return (
        Change(
            key=NICE_KEY,
            old=run.run.worker_nice,
            new=POLITE,
            reason='loader workers had the cores while checkpoints were saved; with '
            f'polite ones {render_gains(polite)}',
            confidence='medium',
            rules=('MG304',),
        ),
    )


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
    Saves whose wait the model does not expect are left as they are.

    Args:
        run: The run.
        workers: The setting in question.
        nice: Nice value of its workers. Default: as in the run.

    Returns:
        ``None`` where workers delay no save by enough, or the cores are unknown.
    """
    held = _delayed(run)
    record = run.run
    old = record.loader.num_workers
    if not held or not old or workers is None or record.host.usable_cores is None:
        return None
    now = record.worker_nice or 0
    then = now if nice is None else nice
    gross_s = net_s = 0.0
    nets = 0
    for save, judged in held:
        less_s = _less_s(save, judged, record.host, workers / old, (now, then))
        delay_s = judged.gross_delay_s or 0.0
        gross_s += less_s
        if judged.net_delay_s is not None and delay_s > 0.0:
            nets += 1
            net_s += judged.net_delay_s * less_s / delay_s
    walls_s = sum(save.wall_s for save, _ in held)
    return SaveForecast(
        saves=len(held),
        now_s=walls_s / len(held),
        then_s=(walls_s - gross_s) / len(held),
        gross_s=gross_s,
        net_s=net_s if nets else None,
    )


def _delayed(run: Run) -> list[tuple[SaveRecord, SaveJudgement]]:
    delayed = [
        (save, judged)
        for save, judged in zip(run.save_records, run.judged_saves)
        if judged.held_s.get('workers', 0.0) > 0.0
    ]
    seconds = sum(judged.held_s['workers'] for _, judged in delayed)
    is_enough = run.run_share(seconds) >= SAVE_CURE_WORTH
    return delayed if is_enough or run.saves_held_by('workers') else []


def _less_s(
    save: SaveRecord,
    judged: SaveJudgement,
    host: HostLimits,
    times: float,
    nice: tuple[int, int],
) -> float:
    """Seconds by which one save is shorter with so many times as many busy workers."""
    busy = save.workers_busy if save.workers_busy is not None else save.workers
    cores = host.cores_had
    if busy is None or cores is None or save.wall_s <= 0.0:
        return 0.0
    # of the ranks on a host, one is counted, with its part of the cores
    strangers = 0.0
    if host.ranks_on_host <= 1:
        strangers = (strangers_here_s(save, host) or 0.0) / save.wall_s
    delay_s = judged.held_s.get('workers', 0.0)
    then_s = rescale_delay_s(
        delay_s,
        crowding(busy, cores, strangers, nice[0]),
        crowding(busy * times, cores, strangers, nice[1]),
    )
    return 0.0 if then_s is None else max(delay_s - then_s, 0.0)


def fewest_that_keep_up(run: Run) -> int | None:
    """Fewer workers than now with which the iterations are as fast."""
    workload = run.workload
    if workload is None or not workload.is_batch_time_known:
        return None
    old, prefetch = workload.num_workers, workload.prefetch_factor
    if old < 2:
        return None
    counts = range(1, old + 1)
    *fewer, now = [predict_setting(workload, count, prefetch) for count in counts]
    as_fast_s = now.iter_time_s * (1 + SAME_SPEED)
    return next((p.num_workers for p in fewer if p.iter_time_s <= as_fast_s), None)


def render_gains(found: SaveForecast) -> str:
    """Seconds per save and in all, gross and net."""
    gains = 'the net delay is not known'
    if found.net_s is not None:
        gains = f'the job gains {found.net_s:.1f} s (net)'
    return (
        f'{found.saves} saves are predicted to take {found.then_s:.2f} s each, now '
        f'{found.now_s:.2f} s; {found.gross_s:.1f} s less in all (gross), {gains}'
    )


def crowding(busy: float, cores: float, strangers: float = 0.0, nice: int = 0) -> float:
    """Wait for a core over CPU of a thread that shares its cores fairly.

    ``busy`` tasks and one thread on C cores give it ``C / (1 + busy)`` of a core at
    most one. Against 8, 4 and 2 busy workers on 2 cores a save of 0.26 s took 1.48,
    0.66 and 0.37 s; this gives 1.17, 0.65 and 0.39 s.

    Args:
        busy: Workers that want a core.
        cores: Usable cores.
        strangers: Others that want one.
        nice: Nice value of the workers.
    """
    if cores <= 0.0:
        return math.inf
    rivals = max(busy, 0.0) * NICE_WEIGHT**-nice + max(strangers, 0.0)
    return max((1.0 + rivals) / cores - 1.0, 0.0)


def rescale_delay_s(delay_s: float, now: float, then: float) -> float | None:
    """A wait for a core under another crowding.

    Args:
        delay_s: As it was measured.
        now: :func:`crowding` of then.
        then: :func:`crowding` of the setting in question.

    Returns:
        ``None`` where the model expects no wait now: it has nothing to scale.
    """
    if not 0.0 < now < math.inf:
        return None
    return delay_s * then / now


def times_less_often(saves_s: float, run_s: float, share: float) -> int:
    """How many times longer the interval must be for saves to take ``share`` of a run.

    Args:
        saves_s: Seconds in saves now.
        run_s: Seconds of the run, saves included.
        share: From 0 to 1, both excluded.
    """
    allowed_s = share / (1.0 - share) * max(run_s - saves_s, 0.0)
    return math.ceil(saves_s / allowed_s) if allowed_s > 0.0 else 1
