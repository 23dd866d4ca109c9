"""Folds what the loader's workers did over a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from mmgpu_hooks.evidence.weights import (
    max_known,
    median,
    min_known,
    pooled_std,
    same_or_mixed,
    sum_known,
    weighted_mean,
)
from mmgpu_hooks.records import (
    DurationStats,
    IntervalRecord,
    LoaderSettings,
    LoaderSummary,
    SlowSample,
    TransformSummary,
    WorkersWindow,
)

_SLOWEST = 5


def fold_worker_cpu(
    intervals: Sequence[IntervalRecord], loader: LoaderSettings
) -> tuple[float | None, float | None, int | None]:
    """CPU and run delay of all workers per batch, and how many there were.

    Over the whole run, because workers make batches ahead: an epoch's may all be made
    in its first interval. Workers that were reached count their batches themselves. Of
    the others, what was made and never taken is at most what was in flight when they
    started, and no more than an epoch has.
    """
    windows = [r.workers for r in intervals if r.workers and r.workers.count]
    batches = 0.0
    ahead = 0.0
    for window in windows:
        if window.worker_batches:
            batches += sum(window.worker_batches)
            continue
        batches += window.iterations
        if window.fresh:
            ahead = window.count * (loader.prefetch_factor or 1) / 2
            if loader.batches_per_epoch is not None:
                left = loader.batches_per_epoch - window.iterations
                ahead = min(ahead, max(left, 0))
    batches += ahead
    if batches <= 0:
        return None, None, None
    return (
        sum(window.cpu_s for window in windows) / batches,
        sum(window.run_delay_s for window in windows) / batches,
        Counter(window.count for window in windows).most_common(1)[0][0],
    )


def fold_loader(
    intervals: Sequence[IntervalRecord], steady: Sequence[IntervalRecord]
) -> LoaderSummary | None:
    """Fold the workers' windows.

    Args:
        intervals: All of the run.
        steady: Those without the warm-up.
    """
    every = [record.workers for record in intervals if record.workers]
    if not every:
        return None
    calm = [record.workers for record in steady if record.workers]
    if not any(window.occupancy for window in calm):
        # workers may have made all batches ahead, in the first interval
        calm = every
    busy = [(w.occupancy, w.occupancy_std_s) for w in calm if w.occupancy]
    shares = _worker_shares(calm)
    asked = [w for w in calm if w.ready_mean is not None]
    blocked = [w for w in calm if w.blocked_s is not None]
    samples = sum(window.timed_samples for window in calm)
    return LoaderSummary(
        source=same_or_mixed(window.source for window in calm) or 'outside',
        batches=sum(stats.count for stats, _ in busy),
        occupancy_s=_mean_of(stats for stats, _ in busy),
        occupancy_std_s=pooled_std(
            [(stats.mean_s, std_s, stats.count) for stats, std_s in busy]
        ),
        occupancy_p95_s=median(stats.p95_s for stats, _ in busy),
        batch_cpu_s=_mean_of(w.batch_cpu for w in calm if w.batch_cpu),
        asks=sum(_asks(window) for window in asked),
        ready_mean=weighted_mean((w.ready_mean, _asks(w)) for w in asked),
        ready_zero_pct=weighted_mean((w.ready_zero_pct, _asks(w)) for w in asked),
        out_of_order=sum_known(window.out_of_order for window in asked),
        share_min_pct=min(shares, default=None),
        share_max_pct=max(shares, default=None),
        affinity_cpus=min_known(window.affinity_cpus for window in every),
        blocked_pct=weighted_mean(
            (100 * (w.blocked_s or 0.0) / (w.count * w.window_s), w.count * w.window_s)
            for w in blocked
            if w.count and w.window_s > 0
        ),
        pss_bytes=max_known(window.pss_bytes for window in every),
        timed_samples=samples,
        transforms=_add_transforms(calm, samples),
        slowest=_slowest(every),
    )


def _asks(window: WorkersWindow) -> int:
    # older evidence has no count of its own
    return window.asks or window.iterations


def _mean_of(parts: Iterable[DurationStats]) -> float | None:
    return weighted_mean((stats.mean_s, stats.count) for stats in parts)


def _worker_shares(windows: Sequence[WorkersWindow]) -> list[float]:
    """Share of the batches that each worker made, by worker id, in percent."""
    made: Counter[int] = Counter()
    for window in windows:
        for worker, batches in enumerate(window.worker_batches):
            made[worker] += batches
    whole = sum(made.values())
    return [100 * batches / whole for batches in made.values()] if whole else []


def _add_transforms(
    windows: Sequence[WorkersWindow], samples: int
) -> tuple[TransformSummary, ...]:
    calls: Counter[str] = Counter()
    seconds: dict[str, list[float]] = {}
    for window in windows:
        for name, cost in window.transforms.items():
            calls[name] += cost.calls
            seconds.setdefault(name, []).append(cost.total_s)
    totals = {name: math.fsum(parts) for name, parts in seconds.items()}
    return tuple(
        TransformSummary(
            name=name,
            calls=calls[name],
            total_s=total_s,
            image_s=total_s / samples if samples else None,
        )
        for name, total_s in sorted(totals.items(), key=lambda item: -item[1])
    )


def _slowest(windows: Sequence[WorkersWindow]) -> tuple[SlowSample, ...]:
    by_index: dict[int, SlowSample] = {}
    for window in windows:
        for sample in window.slowest:
            known = by_index.get(sample.index)
            if known is None or known.seconds < sample.seconds:
                by_index[sample.index] = sample
    ordered = sorted(by_index.values(), key=lambda sample: -sample.seconds)
    return tuple(ordered[:_SLOWEST])
