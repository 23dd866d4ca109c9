"""Judges if the number of workers affects the time of checkpoint saves; no I/O.

Ranks are compared, not means: there are a handful of saves on either side, and one may
be ten times as long. The exact rank sum test needs no assumption about their spread,
and three saves against three can already differ. Saves are held against those beside
the fewest workers of the same experiment, and settings are trained in random order, so
that a drift of the machine does not look like an effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.saves import is_delay, net_delay_s, won_back_s
from mmgpu_hooks.model.stats import rank_sum_chance
from mmgpu_hooks.schema.text import phrase, quoted
from mmgpu_hooks.schema.tried import SaveBench, SaveBenchRow, Trial


def summarize_saves(
    num_workers: int, most: int, result: Trial, run: Run | None
) -> SaveBenchRow:
    """Summarises the seconds of checkpoint saves with one number of workers.

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
    causes = Counter(judged.cause for judged in slow if judged.cause)
    usual_cause = max(causes, key=causes.__getitem__, default=None)
    # there is one save an iteration
    after = {record.iteration: record for record in run.after_saves}
    loader = run.meta.loader
    return replace(
        row,
        saves=saves,
        won_s=tuple(won_back_s(after.get(save.iteration), loader) for save in saves),
        save_s=_median([save.wall_s for save in saves]),
        cpu_s=_median([save.cpu_s for save in saves]),
        run_delay_s=_median([save.run_delay_s for save in saves]),
        blocked_s=_median([save.blocked_s for save in saves]),
        other_cores=_median(
            [save.other_cpu_s and save.other_cpu_s / save.wall_s for save in saves]
        ),
        slow=len(slow),
        cause=usual_cause,
    )


def judge_save_bench(
    measured: Sequence[SaveBenchRow],
    *,
    asked: int = 0,
    seconds: float = 0.0,
    is_interrupted: bool = False,
) -> SaveBench:
    """Compares the save times with each number of workers to those with the fewest.

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
    return SaveBench(
        rows=tuple(rows),
        reference=fewest,
        harmful_workers=harmful,
        is_interrupted=is_interrupted,
        seconds=seconds,
        asked=asked,
    )


def _compare(row: SaveBenchRow, reference: SaveBenchRow | None) -> SaveBenchRow:
    if len(row.saves) < thresholds.BENCH_SAVES:
        few = phrase('too few to tell by: {saves}', saves=len(row.saves))
        if not row.saves:
            few = phrase('no save was measured')
            few = quoted(row.error) if row.error else few
        return replace(row, remark=few)
    if reference is None or reference.save_s is None or row.save_s is None:
        return row
    remark, is_harmful = row.remark, None
    if row.cause == 'other_load':
        remark = phrase('other programs held these saves up')
    if row is reference:
        return replace(row, remark=remark)
    usual_walls_s = [save.wall_s for save in reference.saves]
    walls_s = [save.wall_s for save in row.saves]
    usual_s, gross_s = reference.save_s, row.save_s - reference.save_s
    if not is_delay(gross_s, usual_s, thresholds.SLOW_SAVE):
        remark, is_harmful = None, False
    elif remark is None and _is_by_chance(usual_walls_s, walls_s):
        remark = phrase('longer, but within noise')
    elif remark is None:
        is_harmful = True
    delays_s = [max(wall_s - usual_s, 0.0) for wall_s in walls_s]
    return replace(
        row,
        gross_s=gross_s,
        net_s=_median(list(map(net_delay_s, delays_s, row.won_s))),
        is_harmful=is_harmful,
        remark=remark,
    )


def _is_by_chance(usual_walls_s: Sequence[float], walls_s: Sequence[float]) -> bool:
    """True if the difference of two series of save times may be due to chance."""
    return rank_sum_chance(usual_walls_s, walls_s) > thresholds.BENCH_CHANCE


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
