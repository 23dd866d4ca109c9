"""Decides what makes checkpoint saves cost less. Pure, like the policy beside it.

Advice rests on what the job lost (net); what the pauses lost (gross) is said as well.
Only polite workers are ever applied: they change nothing that is trained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.thresholds import (
    OPTIMIZER_NOTICE,
    SAVE_CURE_WORTH,
    SAVE_PROBLEM,
)
from mmgpu_hooks.model.save_cures import times_less_often
from mmgpu_hooks.recommend.changes import KEY
from mmgpu_hooks.recommend.save_forecast import (
    SaveForecast,
    fewest_that_keep_up,
    forecast_saves,
    render_gains,
)
from mmgpu_hooks.schema import Change, Recommendation, SaveCure

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
