"""Judges saves that were made beside several numbers of workers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Optional

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.saves import is_delay, net_delay_s, won_back_s
from mmgpu_hooks.judge.thresholds import BENCH_CHANCE, BENCH_SAVES, SLOW_SAVE
from mmgpu_hooks.model.stats import rank_sum_chance
from mmgpu_hooks.schema.plural import plural
from mmgpu_hooks.schema.tried import SaveBench, SaveBenchRow, SavePlan, Trial

Won = tuple[Optional[float], ...]
"""Seconds won back after each save of a row; ``None`` where that is unknown."""


def summarize_saves(
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
    # the first save finds every cache cold
    pairs = list(zip(run.save_records, run.judged_saves))[1:][: plan.saves]
    saves = [save for save, _ in pairs if save.error is None]
    slow = [judged for save, judged in pairs if not save.error and judged.is_slow]
    causes = Counter(judged.cause for judged in slow if judged.cause)
    names = ('cpu_s', 'run_delay_s', 'blocked_s', 'bytes', 'workers_busy')
    medians = {name: _median([getattr(s, name) for s in saves]) for name in names}
    others = [s.other_cpu_s and s.other_cpu_s / s.wall_s for s in saves]
    row = replace(
        row,
        **medians,
        save_s=_median([save.wall_s for save in saves]),
        saves=tuple(saves),
        other_cores=_median(others),
        data_wait_s=run.data_wait_s,
        slow=len(slow),
        cause=causes.most_common(1)[0][0] if causes else None,
    )
    # there is one save an iteration
    after = {one.iteration: one for one in run.save_aftermaths}
    won = [won_back_s(after.get(save.iteration), run.run.loader) for save in saves]
    return row, tuple(won)


def judge_save_bench(
    measured: Sequence[tuple[SaveBenchRow, Won]],
    *,
    asked: int = 0,
    seconds: float = 0.0,
    is_interrupted: bool = False,
) -> SaveBench:
    """Compare every setting with the one with the fewest workers.

    Args:
        measured: Rows of :func:`summarize_saves`, in any order.
        asked: Settings that were to be trained.
        seconds: Of the whole experiment.
        is_interrupted: Whether it was stopped.
    """
    ordered = sorted(measured, key=lambda one: one[0].setting.num_workers)
    reference = next((row for row, _ in ordered if len(row.saves) >= BENCH_SAVES), None)
    rows = [_compare(row, won, reference) for row, won in ordered]
    harmful = None
    # a number above it that is known to be harmless speaks against it; one of which
    # nothing is known does not
    for row in reversed(rows):
        if row.is_harmful is False:
            break
        harmful = row.setting.num_workers if row.is_harmful else harmful
    return SaveBench(
        rows=tuple(rows),
        reference=reference.setting if reference else None,
        harmful_workers=harmful,
        is_interrupted=is_interrupted,
        seconds=seconds,
        asked=asked,
    )


def _compare(
    row: SaveBenchRow, won: Won, reference: SaveBenchRow | None
) -> SaveBenchRow:
    if len(row.saves) < BENCH_SAVES:
        why = f'too few to tell by: {plural(len(row.saves), "save")}'
        why = why if row.saves else row.error or 'no save was measured'
        return replace(row, remark=why)
    if reference is None or reference.save_s is None or row.save_s is None:
        return row
    by_others = None
    if row.cause == 'other_load':
        by_others = 'other programs held these saves up'
    if row.setting == reference.setting:
        return replace(row, remark=by_others)
    usual_s = reference.save_s
    gross_s = row.save_s - usual_s
    chance = rank_sum_chance(
        [save.wall_s for save in reference.saves], [save.wall_s for save in row.saves]
    )
    is_long = is_delay(gross_s, usual_s, SLOW_SAVE)
    remark, is_harmful = None, None if is_long else False
    if is_long:
        remark = by_others
        if remark is None and chance > BENCH_CHANCE:
            remark = 'longer, but within noise'
        is_harmful = None if remark else True
    return replace(
        row,
        gross_s=gross_s,
        net_s=_median(
            [
                net_delay_s(max(save.wall_s - usual_s, 0.0), won_s)
                for save, won_s in zip(row.saves, won)
            ]
        ),
        chance=chance,
        is_harmful=is_harmful,
        remark=remark,
    )


def _median(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    return median(known) if known else None
