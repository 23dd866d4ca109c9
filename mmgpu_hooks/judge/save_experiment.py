"""Judges saves that were made beside several numbers of workers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.saves import is_delay, net_delay_s, won_back_s
from mmgpu_hooks.model.stats import rank_sum_chance
from mmgpu_hooks.schema.figures import plural
from mmgpu_hooks.schema.tried import SaveBench, SaveBenchRow, Trial


def summarize_saves(
    num_workers: int, most: int, result: Trial, run: Run | None
) -> SaveBenchRow:
    """The saves beside one number of workers, by themselves.

    Args:
        num_workers: Of the training.
        most: Saves to look at.
        result: What became of it.
        run: What it recorded; one that was cut short has the saves until then.
    """
    row = SaveBenchRow(num_workers, result.status, result.error)
    if run is None:
        return row
    # the first save finds every cache cold
    pairs = list(zip(run.save_records, run.judged_saves))[1:][:most]
    saves = tuple(save for save, _ in pairs if save.error is None)
    slow = [judged for save, judged in pairs if not save.error and judged.is_slow]
    causes = Counter(judged.cause for judged in slow if judged.cause).most_common(1)
    # there is one save an iteration
    after = {one.iteration: one for one in run.save_aftermaths}
    loader = run.run.loader
    return replace(
        row,
        saves=saves,
        won_s=tuple(won_back_s(after.get(one.iteration), loader) for one in saves),
        save_s=_median([one.wall_s for one in saves]),
        cpu_s=_median([one.cpu_s for one in saves]),
        run_delay_s=_median([one.run_delay_s for one in saves]),
        blocked_s=_median([one.blocked_s for one in saves]),
        other_cores=_median(
            [one.other_cpu_s and one.other_cpu_s / one.wall_s for one in saves]
        ),
        slow=len(slow),
        cause=causes[0][0] if causes else None,
    )


def judge_save_bench(
    measured: Sequence[SaveBenchRow],
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
    least = thresholds.BENCH_SAVES
    ordered = sorted(measured, key=lambda row: row.num_workers)
    reference = next((row for row in ordered if len(row.saves) >= least), None)
    rows = [_compare(row, reference) for row in ordered]
    harmful = None
    # a number above it that is known to be harmless speaks against it; one of which
    # nothing is known does not
    for row in reversed(rows):
        if row.is_harmful is False:
            break
        harmful = row.num_workers if row.is_harmful else harmful
    fewest = reference.num_workers if reference else None
    return SaveBench(tuple(rows), fewest, harmful, is_interrupted, seconds, asked)


def _compare(row: SaveBenchRow, reference: SaveBenchRow | None) -> SaveBenchRow:
    if len(row.saves) < thresholds.BENCH_SAVES:
        few = f'too few to tell by: {plural(len(row.saves), "save")}'
        few = few if row.saves else row.error or 'no save was measured'
        return replace(row, remark=few)
    if reference is None or reference.save_s is None or row.save_s is None:
        return row
    remark, is_harmful = row.remark, None
    if row.cause == 'other_load':
        remark = 'other programs held these saves up'
    if row is reference:
        return replace(row, remark=remark)
    walls = [[save.wall_s for save in one.saves] for one in (reference, row)]
    usual_s, gross_s = reference.save_s, row.save_s - reference.save_s
    if not is_delay(gross_s, usual_s, thresholds.SLOW_SAVE):
        remark, is_harmful = None, False
    elif remark is None and rank_sum_chance(*walls) > thresholds.BENCH_CHANCE:
        remark = 'longer, but within noise'
    elif remark is None:
        is_harmful = True
    delays_s = [max(wall_s - usual_s, 0.0) for wall_s in walls[1]]
    return replace(
        row,
        gross_s=gross_s,
        net_s=_median(list(map(net_delay_s, delays_s, row.won_s))),
        is_harmful=is_harmful,
        remark=remark,
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
