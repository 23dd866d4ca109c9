"""Judges saves that were brought about beside several numbers of workers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Optional

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.saves import judge_saves, net_delay_s, won_back_s
from mmgpu_hooks.judge.thresholds import (
    BENCH_CHANCE,
    BENCH_SAVES,
    SLOW_SAVE_RATIO,
    SLOW_SAVE_S,
)
from mmgpu_hooks.model.stats import rank_sum_chance
from mmgpu_hooks.schema import (
    SaveBench,
    SaveBenchRow,
    SavePlan,
    SaveRecord,
    SaveSetting,
    Trial,
)

Won = tuple[Optional[float], ...]
"""Seconds won back after each save of a row; ``None`` where that is unknown."""


def fold_save_row(
    plan: SavePlan, result: Trial, run: Run | None
) -> tuple[SaveBenchRow, Won]:
    """The saves of one setting, by themselves.

    Args:
        plan: What was to be trained.
        result: What became of it.
        run: What it recorded; one that was cut short has the saves until then.

    Returns:
        The row, and the seconds won back after each of its saves.
    """
    row = SaveBenchRow(
        setting=plan.setting,
        status=result.status,
        error=result.error,
    )
    if run is None:
        return row, ()
    judged = judge_saves(
        run.save_records, run.save_aftermaths, run.run.host, run.run.loader
    )
    measured = [
        (save, judgement)
        # the first finds every cache cold
        for save, judgement in list(zip(run.save_records, judged))[1:][: plan.saves]
        if save.error is None
    ]
    saves = tuple(save for save, _ in measured)
    slow = [judgement for _, judgement in measured if judgement.is_slow]
    causes = Counter(j.cause for j in slow if j.cause is not None)
    size = _median(saves, lambda save: save.bytes)
    row = replace(
        row,
        saves=saves,
        save_s=_median(saves, lambda save: save.wall_s),
        cpu_s=_median(saves, lambda save: save.cpu_s),
        run_delay_s=_median(saves, lambda save: save.run_delay_s),
        blocked_s=_median(saves, lambda save: save.blocked_s),
        bytes=None if size is None else round(size),
        workers_busy=_median(saves, lambda save: save.workers_busy),
        strangers_cores=_median(saves, _strangers_cores),
        data_wait_s=run.data_wait_s,
        slow=len(slow),
        cause=causes.most_common(1)[0][0] if causes else None,
    )
    # one save an iteration, so that tells whose it is
    after = {one.iteration: one for one in run.save_aftermaths}
    loader = run.run.loader
    won = [won_back_s(after.get(save.iteration), loader) for save in saves]
    return row, tuple(won)


def judge_save_bench(
    measured: Sequence[tuple[SaveBenchRow, Won]],
    *,
    asked: int = 0,
    seconds: float = 0.0,
    is_interrupted: bool = False,
) -> SaveBench:
    """Set every setting against the one with the fewest workers.

    Args:
        measured: Rows of :func:`fold_save_row`, in any order.
        asked: Settings that were to be trained.
        seconds: Of the whole experiment.
        is_interrupted: Whether somebody stopped it.
    """
    ordered = sorted(measured, key=lambda item: _rank(item[0].setting))
    reference = next(
        (
            row
            for row, _ in ordered
            if len(row.saves) >= BENCH_SAVES and row.setting.worker_nice is None
        ),
        None,
    )
    rows = tuple(_compare(row, won, reference) for row, won in ordered)
    return SaveBench(
        rows=rows,
        reference=reference.setting if reference else None,
        harmful_workers=find_harmful_workers(rows),
        is_told=any(
            row.is_harmful is not None and row.setting.worker_nice is None
            for row in rows
        ),
        is_interrupted=is_interrupted,
        seconds=seconds,
        asked=asked,
    )


def find_harmful_workers(rows: Sequence[SaveBenchRow]) -> int | None:
    """The smallest number of workers from which on saves are harmed.

    A number above it that is known to be harmless speaks against it; one of which
    nothing is known does not.

    Args:
        rows: With their ``is_harmful``; those with a nice value do not count.
    """
    plain = [row for row in rows if row.setting.worker_nice is None]
    harmful = None
    for row in sorted(plain, key=lambda row: -row.setting.num_workers):
        if row.is_harmful is False:
            break
        if row.is_harmful:
            harmful = row.setting.num_workers
    return harmful


def _rank(setting: SaveSetting) -> tuple[bool, int]:
    return setting.worker_nice is not None, setting.num_workers


def _compare(
    row: SaveBenchRow, won: Won, reference: SaveBenchRow | None
) -> SaveBenchRow:
    if not row.saves:
        return replace(row, remark=row.error or 'no save was measured')
    if len(row.saves) < BENCH_SAVES:
        count = len(row.saves)
        return replace(row, remark=f'{count} save(s) are too few to tell')
    if reference is None or reference.save_s is None or row.save_s is None:
        return row
    usual_s = reference.save_s
    if row.setting == reference.setting:
        others = row.cause == 'strangers'
        remark = 'other programs held these saves up' if others else None
        return replace(row, remark=remark)
    gross_s = row.save_s - usual_s
    nets = [
        net_delay_s(max(save.wall_s - usual_s, 0.0), won_s)
        for save, won_s in zip(row.saves, won)
    ]
    known = [net for net in nets if net is not None]
    chance = rank_sum_chance(
        [save.wall_s for save in reference.saves], [save.wall_s for save in row.saves]
    )
    row = replace(
        row,
        gross_s=gross_s,
        net_s=median(known) if known else None,
        chance=chance,
    )
    if gross_s < SLOW_SAVE_S or gross_s < SLOW_SAVE_RATIO * usual_s:
        return replace(row, is_harmful=False)
    if row.cause == 'strangers':
        return replace(row, remark='other programs held these saves up')
    if chance > BENCH_CHANCE:
        return replace(row, remark='longer, but within noise')
    return replace(row, is_harmful=True)


def _strangers_cores(save: SaveRecord) -> float | None:
    if save.strangers_cpu_s is None or save.wall_s <= 0:
        return None
    return save.strangers_cpu_s / save.wall_s


def _median(
    saves: Sequence[SaveRecord], read: Callable[[SaveRecord], float | None]
) -> float | None:
    known = [value for value in map(read, saves) if value is not None]
    return median(known) if known else None
