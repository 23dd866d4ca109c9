"""Judges a sweep's trials: a table row for each one, and the fastest settings.

Each trial left the evidence of a run; its row holds what the table and CSV say of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.run_comparison import ITER, summarize_figures
from mmgpu_hooks.model.stats import LEAST_VALUES, estimate_mean, fit_line
from mmgpu_hooks.recommend.job import SAME_SPEED
from mmgpu_hooks.recommend.limits import Limits
from mmgpu_hooks.schema.judged import Estimate
from mmgpu_hooks.schema.text import quoted
from mmgpu_hooks.schema.tried import (
    BatchMemory,
    GpuSpan,
    MemoryLine,
    SweepRecipe,
    SweepRow,
    SweepSetting,
)

KNOWN_WITHIN = 0.03
"""Relative half width of the iteration time's confidence interval that ends a trial.

0.03 is 3 %."""

LEAST_INTERVALS = 3
"""Smallest number of log intervals from which an iteration time is estimated.

With so few, its confidence interval is wide."""


def estimate_iter(run: Run | None, warm_up: int) -> Estimate | None:
    """Estimates a trial's mean iteration seconds; ``None`` with too few intervals.

    Args:
        run: As far as it was recorded.
        warm_up: First intervals to leave out.
    """
    if run is None:
        return None
    series = summarize_figures(run.every.after(warm_up), LEAST_INTERVALS)[ITER]
    return estimate_mean(series) if series is not None else None


def is_iter_settled(iter_s: Estimate | None) -> bool:
    """True if the estimated iteration time is known precisely enough to end a trial."""
    if iter_s is None or iter_s.count < LEAST_VALUES:
        return False
    return iter_s.half_width <= KNOWN_WITHIN * iter_s.value


def complete_row(
    row: SweepRow, run: Run | None, warm_up: int, until: int | None = None
) -> SweepRow:
    """Adds the times and memory that a trial recorded to its row of the sweep's table.

    Args:
        row: With how the trial ended.
        run: What it left, if anything that can be read.
        warm_up: First intervals to leave out.
        until: The last iteration that counts: those after it only make saves.
    """
    if run is None:
        return row
    row = _add_saves(row, run)
    run = run.since(0, until)
    row = replace(row, gpu_timeline=tuple(_list_spans(run, warm_up)))
    if len(run.intervals) <= warm_up:
        return row
    # steady figures leave out the first interval themselves
    steady = run.since(max(warm_up - 1, 0))
    parts = steady.figures.per_iteration
    gpu, cap = steady.figures.gpu, None
    util_pct = gpu.util_pct if gpu else None
    images_per_s = steady.figures.images_per_s
    if images_per_s is not None:
        # the evidence is that of one rank
        images_per_s *= row.setting.gpus or 1
    if steady.meta.host.usable_cores is not None:
        cap = Limits(steady).cap()
    return replace(
        row,
        iterations=steady.figures.steady_iterations,
        iter_s=estimate_iter(run, warm_up),
        data_wait_s=parts.data_wait_s if parts else None,
        images_per_s=images_per_s,
        gpu_util_pct=util_pct,
        gpu_zero_pct=gpu.zero_pct if gpu else None,
        gpu_samples=int(gpu.samples) if gpu else 0,
        gpu_unknown=quoted(run.figures.why_no_gpu_util) if util_pct is None else None,
        memory_peak_bytes=steady.figures.gpu_mem_peak_bytes,
        memory_reserved_bytes=steady.figures.gpu_mem_reserved_bytes,
        host_memory_bytes=steady.figures.process_rss_bytes,
        cpu_cores=steady.used_cores,
        external_cpu_cores=steady.figures.external_cpu_cores,
        most_workers=cap.workers if cap else None,
        most_workers_reason=cap.reason if cap else None,
    )


def _add_saves(row: SweepRow, run: Run) -> SweepRow:
    """Adds the seconds of a trial's checkpoint saves, except the first, to its row."""
    saves = [save for save in run.save_records[1:] if save.error is None]
    if not saves:
        return row
    delays = [save.run_delay_s for save in saves if save.run_delay_s is not None]
    return replace(
        row,
        saves_s=tuple(save.wall_s for save in saves),
        save_s=median(save.wall_s for save in saves),
        save_run_delay_s=median(delays) if delays else None,
    )


def _list_spans(run: Run, warm_up: int) -> Iterator[GpuSpan]:
    """Yields log intervals with GPU utilisation: begin and end (s), utilisation (%)."""
    for number, interval in enumerate(run.intervals):
        gpu = interval.gpu
        if gpu is None or gpu.util_pct is None:
            continue
        yield GpuSpan(
            begin_s=max(interval.elapsed_s - interval.duration_s, 0.0),
            end_s=interval.elapsed_s,
            util_pct=gpu.util_pct,
            zero_pct=gpu.zero_pct,
            samples=gpu.samples,
            is_warm_up=number < warm_up,
        )


def fit_memory(rows: Sequence[SweepRow]) -> tuple[MemoryLine, ...]:
    """Fits lines of GPU or host memory over batch size, to trials of similar settings.

    Args:
        rows: All trials; those that failed are left out.

    Returns:
        Nothing for a group with fewer than two batch sizes.
    """
    groups: dict[str, dict[int, BatchMemory]] = {}
    is_cuda = any(row.memory_peak_bytes for row in rows)
    for row in rows:
        batch = row.setting.batch_size
        total = row.memory_peak_bytes if is_cuda else row.host_memory_bytes
        if batch is None or not total or not row.is_measured:
            continue
        rest = replace(row.setting, batch_size=None, prefetch_factor=None)
        found = groups.setdefault(replace(rest, pin_memory=None).group, {})
        if batch in found and found[batch].total_bytes >= total:
            continue
        reserved = row.memory_reserved_bytes if is_cuda else None
        found[batch] = BatchMemory(batch, total, row.model_bytes, reserved)
    return tuple(
        _fit_memory(name, 'cuda' if is_cuda else 'host', found)
        for name, found in groups.items()
        if len(found) > 1
    )


def _fit_memory(
    group: str, source: str, found: Mapping[int, BatchMemory]
) -> MemoryLine:
    points = tuple(found[batch] for batch in sorted(found))
    line = fit_line(
        [point.batch_size for point in points], [point.total_bytes for point in points]
    )
    off_pct = max(
        100
        * abs(line.constant + line.slope * point.batch_size - point.total_bytes)
        / point.total_bytes
        for point in points
    )
    return MemoryLine(group, source, points, line.constant, line.slope, off_pct)


def choose_best(rows: Sequence[SweepRow]) -> tuple[SweepSetting, ...]:
    """Returns the best setting for each batch size, the fastest one first.

    A batch size belongs to the recipe, so it is not traded for speed: within each, what
    is as good as equal to the fastest and needs the fewest workers is best.

    Args:
        rows: All trials.

    Returns:
        Nothing for a batch size none of whose trials may be recommended.
    """
    groups: dict[SweepRecipe, list[SweepRow]] = {}
    for row in rows:
        is_done = row.status == 'completed' and row.is_measured
        if is_done and not row.exceeds_host:
            groups.setdefault(row.setting.recipe, []).append(row)
    best = []
    for group in groups.values():
        enough = (1 - SAME_SPEED) * max(map(_speed, group))
        equal = [row for row in group if _speed(row) >= enough]
        best.append(min(equal, key=lambda r: (r.setting.num_workers, -_speed(r))))
    return tuple(row.setting for row in sorted(best, key=_speed, reverse=True))


def _speed(row: SweepRow) -> float:
    """Returns a trial's images per second; if unknown, its iterations per second."""
    if row.images_per_s is not None:
        return row.images_per_s
    return 1 / row.iter_s.value if row.iter_s is not None else 0.0
