"""Folds what the loader's workers did over a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import compress
from operator import mul

from mmgpu_hooks.evidence.interval_table import IntervalTable
from mmgpu_hooks.evidence.pooled_percentile import pool_p95
from mmgpu_hooks.evidence.summary_workers import fold_odd_worker
from mmgpu_hooks.evidence.weights import (
    max_known,
    min_known,
    pooled_std,
    same_or_mixed,
    sum_known,
    total,
    weighted_mean,
)
from mmgpu_hooks.schema import LoaderSettings, LoaderSummary, TransformSummary

_MADE = ('workers', 'worker_batches')


def fold_worker_cpu(
    table: IntervalTable, loader: LoaderSettings
) -> tuple[float | None, float | None, int | None]:
    """CPU and run delay of all workers per batch, and how many there were.

    Over the whole run, because workers make batches ahead: an epoch's may all be made
    in its first interval. Workers that were reached count their batches themselves. Of
    the others, what was made and never taken is at most what was in flight when they
    started, and no more than an epoch has.
    """
    windows = table.where(table.ints('workers', 'count').filled())
    # a list of what each worker made has a first entry
    unreached = [first is None for first in windows.ints(*_MADE, 0)]
    others = windows.where(unreached)
    taken = others.ints('workers', 'iterations').filled()
    counts = others.ints('workers', 'count').filled()
    starts = compress(zip(counts, taken), others.flags('workers', 'fresh').filled())
    batches = float(sum(_made(windows)) + sum(taken))
    for count, iterations in list(starts)[-1:]:
        ahead = count * (loader.prefetch_factor or 1) / 2
        if loader.batches_per_epoch is not None:
            ahead = min(ahead, max(loader.batches_per_epoch - iterations, 0))
        batches += ahead
    if batches <= 0:
        return None, None, None
    return (
        total(windows.floats('workers', 'cpu_s')) / batches,
        total(windows.floats('workers', 'run_delay_s')) / batches,
        Counter(windows.ints('workers', 'count').filled()).most_common(1)[0][0],
    )


def fold_loader(table: IntervalTable, steady: IntervalTable) -> LoaderSummary | None:
    """Fold the workers' windows.

    Args:
        table: All of the run.
        steady: Those without the warm-up.
    """
    every = table.having('workers')
    if not len(every):
        return None
    calm = steady.having('workers')
    if not len(calm.having('workers', 'occupancy')):
        # workers may have made all batches ahead, in the first interval
        calm = every
    busy = calm.having('workers', 'occupancy')
    asked = calm.having('workers', 'ready_mean')
    asks = _asks(asked)
    shares = _worker_shares(calm)
    samples = total(calm.ints('workers', 'timed_samples'))
    occupancy_s = busy.floats('workers', 'occupancy', 'mean_s')
    batches = busy.ints('workers', 'occupancy', 'count')
    cpu = calm.having('workers', 'batch_cpu')
    return LoaderSummary(
        source=same_or_mixed(calm.words('workers', 'source')) or 'outside',
        batches=total(batches),
        occupancy_s=weighted_mean(occupancy_s, batches.filled()),
        occupancy_std_s=pooled_std(
            occupancy_s, busy.floats('workers', 'occupancy_std_s'), batches.filled()
        ),
        occupancy_p95_s=pool_p95(busy, 'workers', 'occupancy'),
        batch_cpu_s=weighted_mean(
            cpu.floats('workers', 'batch_cpu', 'mean_s'),
            cpu.ints('workers', 'batch_cpu', 'count').filled(),
        ),
        asks=sum(asks),
        ready_mean=weighted_mean(asked.floats('workers', 'ready_mean'), asks),
        ready_zero_pct=weighted_mean(asked.floats('workers', 'ready_zero_pct'), asks),
        out_of_order=sum_known(asked.ints('workers', 'out_of_order')),
        share_min_pct=min(shares, default=None),
        share_max_pct=max(shares, default=None),
        affinity_cpus=min_known(every.ints('workers', 'affinity_cpus')),
        odd_worker=fold_odd_worker(calm),
        blocked_pct=_blocked_pct(calm),
        pss_bytes=max_known(every.ints('workers', 'pss_bytes')),
        timed_samples=samples,
        transforms=_add_transforms(calm, samples),
        slowest=table.slowest,
    )


def _asks(windows: IntervalTable) -> Sequence[int]:
    # older evidence has no count of its own
    iterations = windows.ints('workers', 'iterations').filled()
    return [
        n or m for n, m in zip(windows.ints('workers', 'asks').filled(), iterations)
    ]


def _blocked_pct(windows: IntervalTable) -> float | None:
    """Share of the seconds that workers were neither on a core nor waiting for one."""
    told = windows.having('workers', 'blocked_s')
    counts = told.ints('workers', 'count').filled()
    worked_s = list(map(mul, counts, told.floats('workers', 'window_s').filled()))
    blocked_s = total(told.where(worked_s).floats('workers', 'blocked_s'))
    return 100 * blocked_s / math.fsum(worked_s) if any(worked_s) else None


def _made(windows: IntervalTable) -> list[int]:
    """Batches that each worker made which counted them, by worker id."""
    columns = [windows.ints(*_MADE, worker) for worker in windows.names(*_MADE)]
    return [total(column) for column in columns if column.is_known]


def _worker_shares(windows: IntervalTable) -> list[float]:
    """Share of the batches that each worker made, by worker id, in percent."""
    made = _made(windows)
    whole = sum(made)
    return [100 * batches / whole for batches in made] if whole else []


def _add_transforms(
    windows: IntervalTable, samples: int
) -> tuple[TransformSummary, ...]:
    field = ('workers', 'transforms')
    there = [
        (name, windows.having(*field, name).floats(*field, name, 'total_s'))
        for name in windows.names(*field)
    ]
    totals = {name: total(seconds) for name, seconds in there if len(seconds)}
    return tuple(
        TransformSummary(
            name=name,
            calls=total(windows.ints(*field, name, 'calls')),
            total_s=total_s,
            image_s=total_s / samples if samples else None,
        )
        for name, total_s in sorted(totals.items(), key=lambda item: -item[1])
    )
