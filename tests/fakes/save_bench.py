"""Synthetic results of ``mmgpu save-bench``."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from fakes.saves import make_save
from mmgpu_hooks.experiment.save_bench_judge import judge_save_bench
from mmgpu_hooks.schema.text import quoted
from mmgpu_hooks.schema.tried import SaveBench, SaveBenchRow

NOISE = (0.98, 0.99, 1.0, 1.0, 1.01, 1.02)
"""Factors of six save times relative to their median."""


def make_row(
    workers: int,
    save_s: float | None,
    *,
    noise: Sequence[float] = NOISE,
    cause: str | None = None,
    won_s: float | None = 0.0,
    status: str = 'completed',
    error: str | None = None,
) -> SaveBenchRow:
    """Returns a result row of ``mmgpu save-bench`` without its verdict."""
    walls = [] if save_s is None else [save_s * factor for factor in noise]
    saves = tuple(
        make_save(24 * number, cpu_s=0.4, run_delay_s=wall_s - 0.4)
        for number, wall_s in enumerate(walls, start=2)
    )
    known = bool(saves)
    return SaveBenchRow(
        workers,
        status,
        None if error is None else quoted(error),
        saves=saves,
        save_s=median(walls) if known else None,
        cpu_s=0.4 if known else None,
        run_delay_s=median(walls) - 0.4 if known else None,
        blocked_s=0.0 if known else None,
        other_cores=0.1 if known else None,
        slow=len(saves) if cause else 0,
        cause=cause,
        won_s=(won_s,) * len(saves),
    )


def make_bench(*rows: SaveBenchRow, interrupted: bool = False) -> SaveBench:
    """Returns a judged save benchmark with the given rows."""
    asked = len(rows) + interrupted
    return judge_save_bench(rows, asked=asked, seconds=95.0, is_interrupted=interrupted)
