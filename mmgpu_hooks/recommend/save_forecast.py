"""What saves would take with other workers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.save_causes import strangers_here_s
from mmgpu_hooks.judge.thresholds import SAVE_CURE_WORTH
from mmgpu_hooks.model.prediction import predict_grid
from mmgpu_hooks.model.save_cures import crowding, rescale_delay_s
from mmgpu_hooks.recommend.choice import SAME_SPEED
from mmgpu_hooks.schema import HostLimits, SaveJudgement, SaveRecord


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
    if workload is None or not workload.is_occupancy_known:
        return None
    old, prefetch = workload.num_workers, workload.prefetch_factor
    if old < 2:
        return None
    settings = [(count, prefetch) for count in range(1, old + 1)]
    *fewer, now = predict_grid(workload, settings)
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
